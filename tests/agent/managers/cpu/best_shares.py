"""The distribution of CPUs over nodes by trying every combination of them, slow and obvious.

Which nodes share equally, and who gets what is over; the deviation is rounded as the kubelet rounds
it. It shares no code with what it checks.
"""

from __future__ import annotations

from itertools import combinations
from math import floor, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def best_shares(
    room: list[int], number: int, base: int, extra: int, group: int
) -> dict[int, int] | None:
    """Try every set of nodes and, for the extra groups, every subset; the first best wins."""
    best: tuple[float, dict[int, int]] | None = None
    for combo in combinations(range(len(room)), number):
        left = {index: room[index] - base for index in combo}
        if min(left.values()) < 0 or sum(x // group for x in left.values()) < extra:
            continue
        able = [index for index in combo if left[index] >= group]
        local: tuple[float, dict[int, int]] | None = None
        for given in _deals(able, left, extra, group):
            after = list(room)
            for index in combo:
                after[index] -= base + given.get(index, 0) * group
            balance = deviation(after)
            if local is None or balance < local[0]:
                local = balance, {index: given.get(index, 0) for index in combo}
        if local is not None and (best is None or local[0] < best[0]):
            best = local
    return None if best is None else best[1]


def _deals(
    able: list[int], left: dict[int, int], extra: int, group: int
) -> Iterator[dict[int, int]]:
    if not extra:
        yield {}
        return
    for size in range(len(able), 0, -1):
        for subset in combinations(able, size):
            if sum(left[index] // group for index in subset) < extra:
                continue
            given = dict.fromkeys(subset, 0)
            remaining = extra
            while remaining:
                for index in subset:
                    if remaining and left[index] // group > given[index]:
                        given[index] += 1
                        remaining -= 1
            yield given


def deviation(values: list[int]) -> float:
    """Return the population standard deviation, rounding mean and result to three decimals."""
    mean = _round3(sum(values) / len(values))
    return _round3(sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def _round3(value: float) -> float:
    return floor(value * 1000 + 0.5) / 1000

from __future__ import annotations

from itertools import combinations
from math import floor, sqrt
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.cpu.distribute import EqualShares, NodeShare, equal_shares
from agent.managers.cpu.topology import CpuTopology
from agent.managers.topology.hint import SearchBudget
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator


def given_by(
    room: list[int], number: int, groups: int, group: int, work: SearchBudget | None = None
) -> dict[int, int] | None:
    shares = EqualShares(room, number, groups, group)
    if not shares.possible:
        return None
    chosen, deal = shares.best(work or SearchBudget())
    extra = dict(deal.extra_groups)
    return {index: extra.get(index, 0) for index in chosen}


def test_of_equally_balanced_sets_the_first_wins_not_the_roomiest() -> None:
    room = [14, 12, 5, 11, 14, 22, 12]
    assert (
        given_by(room, 5, 9, 4) == {0: 0, 1: 0, 3: 1, 4: 0, 5: 3} == best_shares(room, 5, 4, 4, 4)
    )


def test_the_average_node_says_how_many_nodes_a_request_needs_at_least() -> None:
    """Six of ten CPUs are more than half, so two nodes must share; the smaller one has only two."""
    uneven = CpuTopology.from_rows((cpu, cpu, 0, cpu // 8, 0) for cpu in range(10))
    assert equal_shares(uneven, uneven.all.bits, 6, 1) is None
    assert equal_shares(uneven, uneven.all.bits, 5, 1) == [NodeShare(Mask.parse("0-7").bits, 5, 0)]


def test_the_node_that_leaves_the_host_balanced_gives_the_extra_group() -> None:
    """The example of `distribute`: nodes of 8 CPUs with 8, 6 and 3 free."""
    three = CpuTopology.from_rows((cpu, cpu // 2, 0, cpu // 8, 0) for cpu in range(24))
    shares = equal_shares(three, Mask.parse("0-7,8-13,16-18").bits, 10, 2)
    assert shares is not None
    assert {share.free.bit_count(): share.extra_groups for share in shares} == {8: 1, 6: 0}


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
        for dealt in _deals(able, left, extra, group):
            after = list(room)
            for index in combo:
                after[index] -= base + dealt.get(index, 0) * group
            balance = deviation(after)
            if local is None or balance < local[0]:
                local = balance, {index: dealt.get(index, 0) for index in combo}
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


def rooms(most: int, least_nodes: int, most_nodes: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, most), min_size=least_nodes, max_size=most_nodes)


# Shows in differences.md: best-distribution
@given(
    st.tuples(rooms(30, 1, 7), st.integers(1, 7)) | st.tuples(rooms(30, 9, 11), st.integers(1, 4)),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4]),
)
def test_the_choice_equals_trying_every_set(
    drawn: tuple[list[int], int], groups: int, group: int
) -> None:
    room, number = drawn
    number = min(number, len(room), groups)
    base, extra = groups // number * group, groups % number
    work = SearchBudget(left=10**6)
    found = given_by(room, number, groups, group, work)
    assert found == best_shares(room, number, base, extra, group)
    assert not work.exceeded


@given(rooms(64, 9, 64), st.integers(1, 64), st.integers(1, 400), st.sampled_from([1, 2]))
def test_with_many_nodes_every_share_fits_and_adds_up(
    room: list[int], number: int, groups: int, group: int
) -> None:
    number = min(number, len(room), groups)
    shares = given_by(room, number, groups, group)
    if shares is not None:
        base = groups // number
        assert sum(base + extra for extra in shares.values()) == groups
        assert all((base + extra) * group <= room[index] for index, extra in shares.items())
        assert len(shares) == number


def test_what_is_too_much_to_compare_is_noted_and_still_fits() -> None:
    room = [3 * (number + 1) for number in range(16)]
    work = SearchBudget()
    shares = given_by(room, 8, 100, 1, work)
    assert work.exceeded
    assert shares is not None
    assert sum(12 + extra for extra in shares.values()) == 100
    assert all(12 + extra <= room[index] for index, extra in shares.items())

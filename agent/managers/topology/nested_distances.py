"""A lower bound on how far apart so many NUMA nodes must be, whichever of them are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class DistanceBound:
    """Distances as if nodes lay in a row of nested groups: never more than they really are.

    Of two neighbours in the row, `gap` is the least distance between any node up to the one and any
    from the other on; two nodes are as far apart as the widest gap between them. On a machine
    whose nodes are numbered package by package that is the distance itself. In nested groups the
    least total of so many nodes is computed group by group instead of set by set.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        size = len(rows)
        self._own = [rows[at][at] for at in range(size)]
        gaps = [min([min(row[at + 1 :]) for row in rows[: at + 1]]) for at in range(size - 1)]
        self._gaps = [*gaps, max(gaps, default=0)]
        self._least: dict[tuple[int, int], list[int]] = {}
        self._groups: dict[int, list[tuple[int, int, int]]] = {}

    def at_least(self, near: Sequence[int], first: int, more: int) -> int:
        """Return a lower bound on what `more` of the first nodes add to a total.

        `near` is by node its distance to and from those that are chosen already, all of them
        behind the first nodes.
        """
        if not more:
            return 0
        sums = [0]
        *inner, (start, end, gap) = self._seen_from(first)
        for begin, stop, step in inner:
            group = _moved(self._within(begin, stop), min(near[begin:stop]))
            sums = _combined(sums, group, step, more)
        least, to_chosen = self._within(start, end), min(near[start:end])
        return min(
            [
                total + least[more - taken] + (more - taken) * (to_chosen + taken * gap)
                for taken, total in enumerate(sums)
                if 0 <= more - taken < len(least)
            ]
        )

    def _seen_from(self, first: int) -> list[tuple[int, int, int]]:
        """Return the first nodes in groups as they are seen from behind them, outwards.

        A group is its start, its end, and the distance of its nodes from all nearer nodes.
        """
        groups = self._groups.get(first)
        if groups is None:
            groups = self._groups[first] = []
            end, gap = first, self._gaps[first - 1]
            while end:
                start = end - 1
                while start and self._gaps[start - 1] <= gap:
                    start -= 1
                groups.append((start, end, gap))
                end, gap = start, self._gaps[start - 1] if start else 0
        return groups

    def _within(self, start: int, end: int) -> list[int]:
        """Return the least total of 0, 1, 2, ... of the nodes from `start` to before `end`."""
        known = self._least.get((start, end))
        if known is None:
            if end - start == 1:
                known = [0, self._own[start]]
            else:
                gaps = self._gaps[start : end - 1]
                widest = max(gaps)
                middle = end - 1 - gaps[::-1].index(widest)
                known = _combined(
                    self._within(start, middle), self._within(middle, end), widest, end - start
                )
            self._least[start, end] = known
        return known


def _moved(least: Sequence[int], far: int) -> list[int]:
    """Return the least totals of a group whose nodes all have this distance from outer nodes."""
    return [total + count * far for count, total in enumerate(least)]


def _combined(one: Sequence[int], other: Sequence[int], gap: int, most: int) -> list[int]:
    """Return the least total of 0, 1, 2, ... nodes of two groups that are `gap` apart."""
    size = min(most, len(one) + len(other) - 2)
    return [
        min(
            [
                one[count - taken] + other[taken] + (count - taken) * taken * gap
                for taken in range(max(0, count - len(one) + 1), min(count, len(other) - 1) + 1)
            ]
        )
        for count in range(size + 1)
    ]

"""A slow, obvious rendering of the static policy's choice, for hosts with groups of equal size.

Plain sets of CPU ids, every order recomputed, every combination of NUMA nodes tried, the deviation
rounded as the kubelet rounds it. It shares no code with what it checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.cpu.topology import CpuRow


@dataclass
class Reference:
    """One host; a kind of group is the name of a column of its rows."""

    rows: Sequence[CpuRow]

    def members(self, kind: str, ident: int, cpus: set[int]) -> set[int]:
        return {row.cpu for row in self.rows if getattr(row, kind) == ident and row.cpu in cpus}

    def ids(self, kind: str, cpus: set[int]) -> set[int]:
        return {getattr(row, kind) for row in self.rows if row.cpu in cpus}

    @property
    def all(self) -> set[int]:
        return {row.cpu for row in self.rows}

    @property
    def numa_first(self) -> bool:
        return len(self.ids("socket", self.all)) >= len(self.ids("node", self.all))

    @property
    def cpus_per_core(self) -> int:
        return len(self.all) // len(self.ids("core", self.all))

    def ranked(self, kind: str, ids: Iterable[int], free: set[int]) -> list[int]:
        return sorted(ids, key=lambda ident: (len(self.members(kind, ident, free)), ident))

    def order(self, free: set[int], *kinds: str) -> list[int]:
        """Return ids of the last kind: outer groups in order, the groups in them in order."""
        result: list[int] = []
        self._nest(free, free, kinds, result)
        return result

    def _nest(
        self, free: set[int], inside: set[int], kinds: Sequence[str], result: list[int]
    ) -> None:
        for ident in self.ranked(kinds[0], self.ids(kinds[0], inside), free):
            if len(kinds) == 1:
                result.append(ident)
            else:
                self._nest(free, self.members(kinds[0], ident, inside), kinds[1:], result)

    def node_order(self, free: set[int]) -> list[int]:
        return self.order(free, "node") if self.numa_first else self.order(free, "socket", "node")

    def packed(
        self, available: set[int], count: int, *, spread: bool = False, uncore: bool = False
    ) -> set[int]:
        free, taken = set(available), set[int]()
        levels = ["node", "socket"] if self.numa_first else ["socket", "node"]
        self._take_whole(free, taken, count, levels[0], self.order(free, levels[0]))
        self._take_whole(free, taken, count, levels[1], self.order(free, *levels))
        if uncore:
            self._take_uncore(free, taken, count)
        if not spread:
            self._take_whole(free, taken, count, "core", self.order(free, *levels, "core"))
        for cpu in list(self._singles(free, levels, spread=spread)):
            if len(taken) < count:
                taken.add(cpu)
        return taken

    def _take_whole(
        self, free: set[int], taken: set[int], count: int, kind: str, ids: Iterable[int]
    ) -> None:
        for ident in list(ids):
            group = self.members(kind, ident, self.all)
            if group <= free and len(group) <= count - len(taken):
                taken |= group
                free -= group

    def _take_uncore(self, free: set[int], taken: set[int], count: int) -> None:
        caches = [
            cache
            for node in self.node_order(free)
            for cache in self.ranked(
                "uncore", self.ids("uncore", self.members("node", node, free)), free
            )
        ]
        for cache in caches:
            self._take_whole(free, taken, count, "uncore", caches)
            need = count - len(taken)
            if need:
                part = self._part_of_cache(cache, free, need)
                if len(part) == need:
                    taken |= part
                    free -= part

    def _part_of_cache(self, cache: int, free: set[int], need: int) -> set[int]:
        threads = self.cpus_per_core
        cores = sorted(self.ids("core", self.members("uncore", cache, free)))
        chosen = set(cores[: ceil(need / threads)])
        part = sorted(row.cpu for row in self.rows if row.core in chosen and row.cpu in free)
        if need % 2 and threads > 1 and len(part) > need:
            part.pop()
        return set(part)

    def _singles(self, free: set[int], levels: list[str], *, spread: bool) -> Iterator[int]:
        if spread:
            upto = levels[: levels.index("socket") + 1]
            for socket in self.order(free, *upto):
                yield from sorted(self.members("socket", socket, free))
        else:
            for core in self.order(free, *levels, "core"):
                yield from sorted(self.members("core", core, free))

    def distributed(self, available: set[int], count: int, group: int) -> set[int]:
        nodes = self.node_order(available)
        room = [len(self.members("node", node, available)) for node in nodes]
        shares = None if count % group else self._shares(room, count, group)
        if shares is None:
            return self.packed(available, count)
        taken: set[int] = set()
        base, given = shares
        for index, extra in given.items():
            inside = self.members("node", nodes[index], available)
            for portion in [base] + [group] * extra:
                taken |= self.packed(inside - taken, portion)
        return taken

    def _shares(self, room: list[int], count: int, group: int) -> tuple[int, dict[int, int]] | None:
        groups, total_nodes = count // group, len(self.ids("node", self.all))
        per_node = ceil(ceil(len(self.all) / group) / total_nodes)
        for number in range(ceil(groups / per_node), min(groups, len(room)) + 1):
            base = count // number // group * group
            shares = best_shares(room, number, base, (count - base * number) // group, group)
            if shares is not None:
                return base, shares
        return None


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

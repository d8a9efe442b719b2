"""Generated hosts for tests of the CPU manager's choices, and how sets of CPUs lie on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from agent.managers.cpu.topology import CpuTopology
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Shape:
    """A host of equal parts.

    `nodes` are per socket where positive; -2 means that one node spans two sockets. `linux`
    numbering puts the first threads of all cores first, otherwise siblings are neighbours.
    """

    sockets: int = 2
    nodes: int = 1
    caches: int = 1
    cores: int = 4
    threads: int = 2
    linux: bool = True

    def rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the rows of all CPUs; `cores` are per node (or per socket, with nodes < 0)."""
        groups = self.sockets * max(self.nodes, 1)
        total = groups * self.cores
        for core in range(total):
            group = core // self.cores
            socket = group // max(self.nodes, 1)
            node = group if self.nodes > 0 else socket // -self.nodes
            cache = group * self.caches + core % self.cores * self.caches // self.cores
            for thread in range(self.threads):
                first = core if self.linux else core * self.threads
                cpu = thread * total + core if self.linux else core * self.threads + thread
                yield cpu, first, socket, node, cache

    def topology(self) -> CpuTopology:
        return CpuTopology.from_rows(self.rows())


TWO_SOCKETS = Shape(cores=4).topology()
"""Two sockets, each one node of 4 cores with 2 threads: CPUs 0-3,8-11 and 4-7,12-15."""


def shapes(*, caches: bool = True) -> st.SearchStrategy[Shape]:
    """Generate hosts of equal parts with at most 32 CPUs."""
    return (
        st.builds(
            Shape,
            sockets=st.sampled_from([1, 2, 4]),
            nodes=st.sampled_from([1, 1, 2, 4, -2]),
            caches=st.sampled_from([1, 2]) if caches else st.just(1),
            cores=st.sampled_from([1, 2, 4]),
            threads=st.sampled_from([1, 2, 4]),
            linux=st.booleans(),
        )
        .filter(lambda s: s.caches <= s.cores and (s.nodes > 0 or s.sockets % 2 == 0))
        .filter(lambda s: s.sockets * max(s.nodes, 1) * s.cores * s.threads <= 32)
    )


@st.composite
def regular_hosts(draw: st.DrawFn) -> CpuTopology:
    """Generate hosts whose cores, caches, nodes and sockets are of equal size."""
    return draw(shapes()).topology()


@st.composite
def asymmetric_hosts(draw: st.DrawFn) -> CpuTopology:
    """Generate hosts with offline threads, and node ids with holes."""
    rows = list(draw(shapes()).rows())
    step = draw(st.sampled_from([1, 3]))
    online = draw(st.integers(min_value=1, max_value=(1 << len(rows)) - 1))
    return CpuTopology.from_rows(
        (cpu, core, socket, node * step, cache)
        for cpu, core, socket, node, cache in rows
        if online >> cpu & 1
    )


def any_hosts() -> st.SearchStrategy[CpuTopology]:
    """Generate regular and asymmetric hosts."""
    return st.one_of(regular_hosts(), asymmetric_hosts())


def masks_of(topology: CpuTopology) -> st.SearchStrategy[Mask]:
    """Generate subsets of a host's CPUs."""
    everything = topology.all.bits
    return st.integers(min_value=0, max_value=everything).map(lambda bits: Mask(bits & everything))


def cores_touched(topology: CpuTopology, cpus: Mask) -> int:
    return sum(1 for core in topology.cores if core.cpus & cpus.bits)


def needlessly_shared(topology: CpuTopology, free: Mask, others: Mask, chosen: Mask) -> Mask:
    """Return the chosen CPUs that have CPUs of `others` on their core for no reason.

    There is one where no core would serve instead: a core all of whose CPUs were `free`, are not
    chosen, and are no more than those that stand beside others (so nothing of it is left over).
    """
    shared = topology.cores_of(others) & chosen
    serves = any(
        not core.cpus & ~free.bits and not core.cpus & chosen.bits and core.size <= len(shared)
        for core in topology.cores
    )
    return shared if serves else EMPTY


def torn(topology: CpuTopology, cpus: Mask) -> int:
    """Return how many of the CPUs are on cores that have others as well."""
    return sum(
        (core.cpus & cpus.bits).bit_count() for core in topology.cores if core.cpus & ~cpus.bits
    )

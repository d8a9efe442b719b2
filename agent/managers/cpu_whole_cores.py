"""Whole physical cores: what `full-pcpus-only` promises (KEP-2625), also where cores differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu_accumulator import rank

if TYPE_CHECKING:
    from agent.managers.cpu_topology import CpuGroup, CpuTopology


def splits_a_core(topology: CpuTopology, cpus: int) -> bool:
    """Tell whether `cpus` (bits) hold some but not all threads of a core."""
    return any(core.cpus & cpus and core.cpus & ~cpus for core in topology.cores)


def whole_cores(topology: CpuTopology, free: int, count: int) -> int | None:
    """Return whole free cores (as bits) with exactly `count` CPUs, None when there are none.

    Cores of nodes with the fewest free CPUs come first, as everywhere; one is passed over when the
    rest could not make up the count without it.
    """
    order = _free_cores(topology, free)
    reachable = _reachable_sums(order)
    if not reachable[0] >> count & 1:
        return None
    taken = 0
    for core, rest in zip(order, reachable[1:], strict=True):
        if core.size <= count and rest >> count - core.size & 1:
            taken |= core.cpus
            count -= core.size
    return taken


def _free_cores(topology: CpuTopology, free: int) -> list[CpuGroup]:
    order: dict[int, CpuGroup] = {}
    for node in rank(topology.nodes, free):
        for core in rank(topology.cores_in_node[node.id], free):
            if not core.cpus & ~free:
                order.setdefault(core.id, core)
    return list(order.values())


def _reachable_sums(cores: list[CpuGroup]) -> list[int]:
    """Return for each position the sums (bit n: sum n) that the cores from there on can make."""
    sums = [1]
    for core in reversed(cores):
        sums.append(sums[-1] | sums[-1] << core.size)
    sums.reverse()
    return sums

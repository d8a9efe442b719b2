"""Whole physical cores: what `full-pcpus-only` promises (KEP-2625), also where cores differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu_accumulator import rank

if TYPE_CHECKING:
    from agent.managers.cpu_topology import CpuGroup, CpuTopology, Groups


def splits_a_core(topology: CpuTopology, cpus: int) -> bool:
    """Tell whether `cpus` (bits) hold some but not all threads of a core."""
    return any(core.cpus & cpus and core.cpus & ~cpus for core in topology.cores)


def unsplit(topology: CpuTopology, free: int, chosen: int) -> int:
    """Return whole cores in place of `chosen` CPUs (bits) if those split a core needlessly.

    The kubelet's packing can do so where cores differ in size, because it knows only the average.
    The answer stays on the same NUMA nodes and touches no more sockets and cores; where whole cores
    cannot do that, `chosen` stands.
    """
    if not splits_a_core(topology, chosen):
        return chosen
    nodes = sum(node.cpus for node in topology.nodes if node.cpus & chosen)
    whole = whole_cores(topology, free & nodes, chosen.bit_count())
    if whole is None or any(
        _touched(groups, whole) > _touched(groups, chosen)
        for groups in (topology.sockets, topology.cores)
    ):
        return chosen
    return whole


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


def _touched(groups: Groups, cpus: int) -> int:
    return sum(1 for group in groups if group.cpus & cpus)

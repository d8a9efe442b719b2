"""Exclusive slices of a pod's budget by physical core: `full-pcpus-only` inside it (KEP-2625).

A budget is made of whole cores, its slices need not be. No two exclusive containers get threads of
one core as long as there are cores enough; the threads that are left over go to the pod's shared
pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from agent.managers.cpu_uneven_cores import most_in_whole_cores
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.cpu_topology import CpuTopology

#: Takes a number of CPUs out of some, by the policy options.
Take: TypeAlias = Callable[[Mask, int], Mask]


def slices_by_core(
    topology: CpuTopology, take: Take, budget: Mask, asked: Mapping[str, int]
) -> dict[str, Mask]:
    """Return the slices of containers that run at the same time, by name.

    `asked` are numbers of CPUs, together no more than the budget has. No core is shared where that
    can be avoided; where it cannot, every container has the whole cores that it can fill, and only
    what exceeds them shares a core with another one.
    """
    apart = _apart(topology, take, budget, asked)
    return _tight(topology, take, budget, asked) if apart is None else apart


def _apart(
    topology: CpuTopology, take: Take, budget: Mask, asked: Mapping[str, int]
) -> dict[str, Mask] | None:
    """Give every container cores of its own; None when they do not suffice."""
    slices: dict[str, Mask] = {}
    touched = EMPTY
    for name, count in asked.items():
        free = budget - touched
        if len(free) < count:
            return None
        slices[name] = take(free, count)
        touched |= topology.cores_of(slices[name])
    return slices


def _tight(
    topology: CpuTopology, take: Take, budget: Mask, asked: Mapping[str, int]
) -> dict[str, Mask]:
    """Give every container its whole cores first, then the single threads that are missing."""
    slices: dict[str, Mask] = {}
    left = budget
    for name, count in asked.items():
        slices[name] = take(left, most_in_whole_cores(topology, left.bits, count))
        left -= slices[name]
    untouched = left
    for name, count in asked.items():
        missing = count - len(slices[name])
        if missing:
            source = untouched if len(untouched) >= missing else left
            single = take(_near(topology, source, slices[name], missing), missing)
            slices[name] |= single
            left -= single
            untouched -= topology.cores_of(single)
    return slices


def _near(topology: CpuTopology, free: Mask, own: Mask, count: int) -> Mask:
    """Return the part of the free CPUs that single threads are taken from.

    One core that has room is better than several, and the NUMA nodes of the container's whole
    cores are better than others.
    """
    inside = topology.cpus_in_nodes(topology.nodes_of(own))
    cores = [Mask(core.cpus) & free for core in topology.cores]
    fitting = [cpus for cpus in cores if len(cpus) >= count]
    if not fitting:
        return free
    return min(fitting, key=lambda cpus: (not cpus & inside, len(cpus), cpus.bits))

"""Merging of hints on machines of which only the nodes and their distances matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from agent.managers.topology.hint import Hint, SearchBudget
from agent.managers.topology.merge import align, unadmitted
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.managers.policy import TopologyPolicy
    from agent.managers.topology.distances import Distances
    from agent.managers.topology.many_nodes import ProviderHints

_ONE_CPU: Final = CpuTopology.from_rows([(0, 0, 0, 0, None)])


def merge(
    nodes: Mask | int,
    distances: Distances,
    policy: TopologyPolicy,
    provider_hints: Sequence[ProviderHints],
    work: SearchBudget | None = None,
) -> tuple[Hint, bool]:
    """Return the alignment on a machine of these nodes, and whether the policy admits it.

    A merge that is deferred is made, as it is for the explanation of a rejection.
    """
    ids = nodes if isinstance(nodes, Mask) else Mask(nodes)
    machine = Machine(
        _ONE_CPU, tuple(MachineNode(node, 0, {}, distances.get(node, {})) for node in ids)
    )
    work = SearchBudget() if work is None else work
    alignment = align(machine, policy, provider_hints, work)
    if alignment is None:
        return unadmitted(machine, policy, provider_hints), False
    return alignment.hint, alignment.admitted

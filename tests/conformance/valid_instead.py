"""Whether another answer than the kubelet's is as good, on hosts that it reckons with averages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.managers.demand import demand_of
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.decision import Decision
    from agent.ledger import Ledger
    from agent.managers.cpu_topology import CpuTopology
    from agent.managers.rules import Rules


def valid_instead(
    rules: Rules, before: Ledger, decision: Decision, expected: Mapping[str, Any]
) -> bool:
    """Tell whether a decision is valid where the kubelet's rests on averages.

    Of an admitted pod: the same containers hold CPUs, as many, only ones that were free, in no
    more NUMA nodes, sockets and cores than the kubelet's answer touches.
    """
    if decision.grant is None or not expected["admitted"]:
        return _refusal_is_valid(decision, expected)
    free = rules.assignable_cpus - before.exclusive_cpus
    if decision.grant.exclusive_cpus - free:
        return False
    return all(
        _no_wider(rules.machine.cpus, ours, theirs)
        for ours, theirs in _pairs(decision, expected["pod"])
    )


def _pairs(
    decision: Decision, expected: Mapping[str, Any]
) -> Iterator[tuple[Mask | None, Mask | None]]:
    assert decision.grant is not None
    yield decision.grant.cpus, _mask(expected["cpus"])
    for container in decision.grant.containers:
        yield container.cpus, _mask(expected["containers"][container.name]["cpus"])


def _no_wider(topology: CpuTopology, ours: Mask | None, theirs: Mask | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return len(ours) == len(theirs) and all(
        _touched(groups, ours) <= _touched(groups, theirs)
        for groups in (topology.nodes, topology.sockets, topology.cores)
    )


def _touched(groups: Any, cpus: Mask) -> int:
    return sum(1 for group in groups if group.cpus & cpus.bits)


def _mask(text: str | None) -> Mask | None:
    return None if text is None else Mask.parse(text)


def _refusal_is_valid(decision: Decision, expected: Mapping[str, Any]) -> bool:
    return False

"""Whether another answer than the kubelet's is right, by rules that do not ask our own code.

Each function is one reason for a deliberate difference; the user documentation lists them.
"""

from __future__ import annotations

from itertools import combinations
from statistics import pstdev
from typing import TYPE_CHECKING, Any, Final

from agent.decision import Reason
from agent.managers.demand import demand_of
from agent.pods.model import ContainerKind
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.decision import Decision, Refusal
    from agent.ledger import Ledger
    from agent.managers.cpu_topology import CpuTopology, Groups
    from agent.managers.rules import Rules
    from agent.pods.model import Pod

_ROUNDING: Final = 0.0011


def valid_instead(
    rules: Rules, before: Ledger, pod: Pod, decision: Decision, expected: Mapping[str, Any]
) -> bool:
    """Tell whether a decision is valid where the kubelet's rests on averages (irregular hosts).

    Of an admitted pod: its containers hold as many CPUs as the kubelet gives, only ones that were
    free, in no more NUMA nodes, sockets and cores than the kubelet's touch; with
    `full-pcpus-only` in whole cores. Where the kubelet's own answer hands out a CPU twice or
    splits a core it is no measure: then ours has to give every container what it asks for. A
    refusal for the cores' sake is valid when the free whole cores do not add up to the request.
    """
    free = rules.assignable_cpus - before.exclusive_cpus
    broken = expected["admitted"] and _is_broken(rules, free, pod, expected["pod"])
    if decision.grant is None:
        return broken or _refusal_is_valid(rules, before, pod, decision, expected)
    if decision.grant.exclusive_cpus - free:
        return False
    if broken:
        return _as_many_as_asked(rules, decision, pod)
    if rules.policy.cpu.options.full_pcpus_only and not _whole_cores(rules, decision):
        return False
    if not expected["admitted"]:
        return _as_many_as_asked(rules, decision, pod)
    return all(
        _no_wider(rules.machine.cpus, ours, theirs)
        for ours, theirs in _pairs(decision, expected["pod"])
    )


def valid_reservation(rules: Rules, expected: Mapping[str, Any]) -> bool:
    """Tell whether the reserved CPUs are as many as the kubelet's, and no further apart."""
    return _no_wider(rules.machine.cpus, rules.policy.cpu.reserved, _mask(expected["reserved"]))


def evenly_distributed(
    rules: Rules, before: Ledger, decision: Decision, expected: Mapping[str, Any]
) -> bool:
    """Tell whether `distribute-cpus-across-numa` leaves the nodes at least as even as theirs.

    The kubelet loses the best distribution to slice aliasing on four nodes and more.
    """
    if not rules.policy.cpu.options.distribute_cpus_across_numa or decision.grant is None:
        return False
    if not expected["admitted"]:
        return False
    free = rules.assignable_cpus - before.exclusive_cpus
    theirs = Mask(0)
    for _, cpus in _pairs(decision, expected["pod"]):
        theirs |= cpus or Mask(0)
    ours = decision.grant.exclusive_cpus
    same_numbers = all(
        (a is None) == (b is None) and len(a or ()) == len(b or ())
        for a, b in _pairs(decision, expected["pod"])
    )
    return (
        same_numbers
        and not ours - free
        and _unevenness(rules, free - ours) <= _unevenness(rules, free - theirs) + _ROUNDING
    )


def refused_for_own_demand(rules: Rules, pod: Pod, decision: Decision) -> bool:
    """Tell whether a refusal names a container that demands CPUs, memory or devices itself.

    A pod that the documents admit may still lack the room, or the whole cores, for one of its
    containers with exclusive resources. It must never be refused for the sake of the others.
    """
    named = decision.refusal.container if decision.refusal else None
    return any(
        bool(container.cpus or container.memory or container.devices)
        for container in demand_of(rules.policy, pod).containers
        if container.name == named
    )


def has_negative_amounts(pod: Mapping[str, Any]) -> bool:
    """Tell whether a recorded pod asks for less than nothing, which the API server refuses."""
    spec = pod["spec"]
    parts = [*spec.get("initContainers", ()), *spec["containers"], spec]
    return any(
        str(amount).startswith("-")
        for part in parts
        for amounts in part.get("resources", {}).values()
        for amount in amounts.values()
    )


def same_memory_in_all(ledger: Ledger, expected: Mapping[str, Any]) -> bool:
    """Tell whether the charges add up to the kubelet's over all nodes, type by type."""
    ours: dict[str, int] = {}
    theirs: dict[str, int] = {}
    for node, memory in expected.get("mem_nodes", {}).items():
        for kind, (_, reserved) in memory["memory"].items():
            theirs[kind] = theirs.get(kind, 0) + reserved
            charged = ledger.memory[int(node)].reserved.get(kind, 0)
            ours[kind] = ours.get(kind, 0) + charged
    return ours == theirs


def _is_broken(rules: Rules, free: Mask, pod: Pod, grant: Mapping[str, Any]) -> bool:
    """Tell whether a recorded grant takes busy CPUs, overlaps in itself, or splits a core."""
    slices = {
        name: Mask.parse(container["cpus"])
        for name, container in grant["containers"].items()
        if container["isolation"] == "container"
    }
    together = [
        slices[container.name]
        for container in pod.all_containers()
        if container.name in slices and container.kind is not ContainerKind.INIT
    ]
    overlaps = any(one & other for one, other in combinations(together, 2))
    taken = list(slices.values()) if grant["cpus"] is None else [Mask.parse(grant["cpus"])]
    splits = rules.policy.cpu.options.full_pcpus_only and any(
        _splits_a_core(rules.machine.cpus, cpus) for cpus in taken
    )
    return overlaps or splits or any(cpus - free for cpus in taken)


def _as_many_as_asked(rules: Rules, decision: Decision, pod: Pod) -> bool:
    assert decision.grant is not None
    demand = demand_of(rules.policy, pod)
    if decision.grant.cpus is not None and len(decision.grant.cpus) != demand.cpus:
        return False
    held = {container.name: container.cpus for container in decision.grant.containers}
    return all(len(held[c.name] or ()) == c.cpus for c in demand.containers if c.cpus)


def _refusal_is_valid(
    rules: Rules, before: Ledger, pod: Pod, decision: Decision, expected: Mapping[str, Any]
) -> bool:
    assert decision.refusal is not None
    if not expected["admitted"]:
        return bool(decision.refusal.reason == expected["reason"])
    return _no_whole_cores(rules, before, pod, decision.refusal)


def _no_whole_cores(rules: Rules, before: Ledger, pod: Pod, refusal: Refusal) -> bool:
    """Tell whether no whole cores are free that make up the request.

    Once an earlier container of the pod has taken some, nothing is known of what was left.
    """
    if refusal.reason is not Reason.SMT_ALIGNMENT or refusal.asked is None:
        return False
    first = next((c.name for c in demand_of(rules.policy, pod).containers if c.cpus), None)
    free = rules.assignable_cpus - before.exclusive_cpus - rules.reserved_physical_cpus
    sums = {0}
    for core in rules.machine.cpus.cores:
        if not core.cpus & ~free.bits:
            sums |= {total + core.size for total in sums}
    return refusal.asked not in sums or refusal.container not in (None, first)


def _whole_cores(rules: Rules, decision: Decision) -> bool:
    assert decision.grant is not None
    parts = [decision.grant.cpus] if decision.grant.cpus is not None else [
        container.cpus for container in decision.grant.containers
    ]  # fmt: skip
    return not any(_splits_a_core(rules.machine.cpus, cpus) for cpus in parts if cpus is not None)


def _splits_a_core(topology: CpuTopology, cpus: Mask) -> bool:
    return any(core.cpus & cpus.bits not in (0, core.cpus) for core in topology.cores)


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


def _unevenness(rules: Rules, left: Mask) -> float:
    return pstdev((node.cpus & left.bits).bit_count() for node in rules.machine.cpus.nodes)


def _touched(groups: Groups, cpus: Mask) -> int:
    return sum(1 for group in groups if group.cpus & cpus.bits)


def _mask(text: str | None) -> Mask | None:
    return None if text is None else Mask.parse(text)

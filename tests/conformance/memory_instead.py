"""Whether another answer than the kubelet's is right for the memory that containers ask for.

Each function is one reason for a deliberate difference; the user documentation lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.pods.model import ContainerKind
from tests.conformance.effective import (
    asked_memory,
    asks_in_init_only,
    containers_of,
    is_guaranteed,
)
from tests.conformance.valid_instead import as_many_as_asked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import ContainerAllocation
    from agent.managers.decision import Decision
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

#: How the kubelet rejects a container for its memory.
_FOR_MEMORY: Final = "Allocate failed due to [memorymanager]"
_NOT_EXTENDED: Final = f"{_FOR_MEMORY} failed to find the extended preferred hint"


def counts_init_memory(
    rules: EffectivePolicy,
    pod: Pod,
    decision: Decision,
    expected: Mapping[str, Any],
    document: Mapping[str, Any],
) -> bool:
    """Return whether an answer may differ for a memory type that only init containers ask for.

    It counts for a Guaranteed pod without a managed budget in pod scope (KEP-693, effective
    request). Admitted, every container has as many CPUs, bytes and devices as it asks for.
    Rejected, the kubelet rejects the pod, too, or it admits it against the hint: some container's
    memory lies outside of the nodes that the kubelet aligned the pod to.
    """
    topology = rules.policy.topology
    concerned = topology.is_pod_scope and rules.static_memory and not pod.resources
    if not concerned or not asks_in_init_only(document):
        return False
    if decision.allocation is None:
        return not expected["admitted"] or _memory_beside_the_hint(expected["pod"])
    return as_many_as_asked(rules, decision, pod) and _has_all(rules, decision, document)


def pins_no_shared_memory(
    rules: EffectivePolicy,
    pod: Pod,
    decision: Decision,
    expected: Mapping[str, Any],
    document: Mapping[str, Any],
) -> bool:
    """Return whether an answer may differ since the kubelet pins memory for a shared container.

    A container of a Guaranteed pod with a managed budget that is not Guaranteed itself has no
    memory of its own (KEP-5526). The kubelet asks for it nevertheless, unless the pod is served as
    one: in container scope, and with topology policy none. It has then rejected the pod for memory;
    we may admit it, with all that is asked for, or reject it for what a container demands itself.
    """
    policy = rules.policy
    as_one = policy.topology.is_pod_scope
    managed = policy.pod_level_managers and rules.static_memory and pod.resources is not None
    if as_one or not managed or expected["admitted"]:
        return False
    for_memory = str(expected.get("message", "")).startswith(_FOR_MEMORY)
    stated = {one["name"]: one for one in containers_of(document)}
    if not for_memory or all(map(is_guaranteed, stated.values())):
        return False
    if decision.allocation is None:
        return rejected_for_own_demand(rules, pod, decision)
    enough = _has_all(rules, decision, document, of_budget=True)
    return as_many_as_asked(rules, decision, pod) and enough


def reuses_memory(
    rules: EffectivePolicy,
    pod: Pod,
    decision: Decision,
    expected: Mapping[str, Any],
    document: Mapping[str, Any],
) -> bool:
    """Return whether a preferred hint serves with what ended init containers left on its nodes.

    The kubelet reuses their memory (KEP-753), but leaves it out when it asks whether the nodes of
    the hint have enough, and so has rejected the pod. Ours has all that is asked for.
    """
    refused = str(expected.get("message", "")).startswith(_NOT_EXTENDED)
    reused = any(each.is_standard_init and each.memory for each in rules.demand(pod).containers)
    if expected["admitted"] or not refused or not reused or decision.allocation is None:
        return False
    return as_many_as_asked(rules, decision, pod) and _has_all(rules, decision, document)


def rejected_for_own_demand(rules: EffectivePolicy, pod: Pod, decision: Decision) -> bool:
    """Return whether a rejection names a container that demands CPUs, memory or devices itself.

    A pod that the documents admit may still lack the room, or the whole cores, for one of its
    containers with exclusive resources. It must never be rejected for the sake of the others.
    """
    named = decision.rejection.container if decision.rejection else None
    return any(
        any(container.part(manager.name) for manager in rules.managers)
        for container in rules.demand(pod).containers
        if container.name == named
    )


def _has_all(
    rules: EffectivePolicy,
    decision: Decision,
    document: Mapping[str, Any],
    *,
    of_budget: bool = False,
) -> bool:
    """Return whether the containers of an admitted pod have the memory and devices they ask for."""
    assert decision.allocation is not None
    stated = {one["name"]: one for one in containers_of(document)}
    return all(
        _has_memory(one, asked_memory(stated[one.name], of_budget=of_budget))
        and _has_devices(rules, one, stated[one.name])
        for one in decision.allocation.containers
    )


def _has_memory(container: ContainerAllocation, asked: Mapping[str, int]) -> bool:
    """Return whether blocks add up to the request; later init containers may have some."""
    allocated: dict[str, int] = {}
    for block in container.memory:
        allocated[block.type] = allocated.get(block.type, 0) + block.size
    if container.kind is ContainerKind.INIT:
        return all(size <= asked.get(name, 0) for name, size in allocated.items())
    return {name: size for name, size in allocated.items() if size} == asked


def _has_devices(
    rules: EffectivePolicy, container: ContainerAllocation, stated: Mapping[str, Any]
) -> bool:
    limits = (stated.get("resources") or {}).get("limits") or {}
    asked = {name: int(limits[name]) for name in rules.policy.devices if name in limits}
    return {name: len(ids) for name, ids in container.devices.items()} == asked


def _memory_beside_the_hint(allocation: Mapping[str, Any]) -> bool:
    return any(
        set(block["numa"]) - set(container["hint"]["mask"] or ())
        for container in allocation["containers"].values()
        for block in container["memory"] or ()
    )

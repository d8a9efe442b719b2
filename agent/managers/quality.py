"""How good an allocation is: what each container has of what a latency-critical one wants.

The policies decide whether less than that is a rejection; many admit the second best. A verdict
says what an allocation has, and of what is lacking why, so that it is never silent; a pod can
require parts of it (`agent.pods.model`).

A violation says why the current policy would not make an existing allocation. Allocations are kept
whatever changes (design, decision 4): the policy, an option, a reservation, the CPUs, memory, nodes
and devices of the host. Each resource manager says which of its resources violate the current
policy; what concerns the alignment of all resources is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocation import Isolation, Origin
from agent.managers.amounts import nodes_text
from agent.managers.decision import Reason, Rejection
from agent.managers.device.kubelet import given_devices
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.managers.violations import ADMIT_AGAIN, Rule, Violation
from agent.pods.model import Quality
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.demand import PodDemand
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.managers.topology.hint import Hint


def invalid_allocations(
    rules: EffectivePolicy, ledger: Ledger, offline: Mask = EMPTY
) -> tuple[Violation, ...]:
    """Return all violations of the current policy, in the order of admission.

    `offline` are CPUs that exist but are offline. A pod just admitted under the same policy has no
    violations, except for shared cores on hosts whose cores differ in size, where whole cores are
    not guaranteed.
    """
    checks = [manager.violations(rules, ledger, offline) for manager in rules.managers]
    found: list[Violation] = []
    for allocation in ledger.allocations.values():
        for check in checks:
            found += check(allocation)
        found += _of_alignment(rules, allocation)
    return tuple(found)


def _of_alignment(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    topology = rules.policy.topology
    if (
        allocation.has_budget
        and allocation.origin is not Origin.RECOVERED
        and not (rules.policy.pod_level_managers and topology.is_pod_scope)
    ):
        message = "has a pod-level budget, which these gates and this scope do not allocate"
        remedy = f"set PodLevelResourceManagers and the pod scope again, or {ADMIT_AGAIN}"
        yield Violation.of(allocation, Rule.POD_BUDGET, message, remedy)
    if topology.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _several_nodes(rules, allocation)
    if topology.policy is TopologyManagerPolicy.RESTRICTED:
        yield from _not_preferred(allocation)


def _several_nodes(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    of_pod = rules.policy.topology.scope is not TopologyManagerScope.CONTAINER
    for container in (None,) if of_pod else allocation.containers:
        nodes = EMPTY
        for manager in rules.managers:
            nodes |= manager.nodes(rules, allocation, container)
        if len(nodes) > 1:
            message = f"is spread over nodes {nodes}, single-numa-node allows one"
            name = None if container is None else container.name
            yield Violation.of(allocation, Rule.TOPOLOGY_POLICY, message, container=name)


def _not_preferred(allocation: PodAllocation) -> Iterator[Violation]:
    """Yield containers whose recorded alignment was not preferred (policy restricted).

    Allocations made under policy none have no recorded alignment, so they are not checked.
    """
    for container in allocation.containers:
        if container.hint.nodes is not None and not container.hint.preferred:
            nodes = Mask(container.hint.nodes)
            message = f"is on nodes {nodes}, not a preferred alignment, which restricted rejects"
            name = container.name
            yield Violation.of(allocation, Rule.TOPOLOGY_POLICY, message, container=name)


class Judgement(Struct, frozen=True):
    """Whether a container has one quality; `why` says why not, "" if it has."""

    container: str
    quality: Quality
    why: str = ""

    @property
    def met(self) -> bool:
        """Whether the container has it."""
        return not self.why


class Intrusion(Struct, frozen=True):
    """A cgroup that may use exclusive CPUs of a pod to which it does not belong.

    `cpus` are these CPUs, `user` is the namespace/name of the pod that the cgroup is of ("": none).
    `cause` is that of the difference (`agent.reconcile.diff.Cause`) or `intruding task`, `why` says
    in one line how the cgroup differs, or which process is there, and what to do.
    """

    cgroup: str
    cpus: Mask
    user: str
    cause: str
    why: str

    def __str__(self) -> str:
        of = f" of pod {self.user}" if self.user else ""
        return f"CPUs {self.cpus} may be used by /{self.cgroup}{of}: {self.why}"


def verdict(
    rules: HostPolicy, allocation: PodAllocation, intruding: Collection[Intrusion] = ()
) -> tuple[Judgement, ...]:
    """Return what every container has of each quality that applies to it.

    Of a container without CPUs of its own only pinned memory and devices are judged: that it shares
    is what it asked for (its `why`), unless its specification is not known. `intruding` is what may
    use CPUs of the pod now: none that it has are exclusive, its own or the pod's.
    """
    judged = (
        judgement
        for container in allocation.containers
        for judgement in _of(rules, container, allocation.idle)
        if not (judgement.quality is Quality.EXCLUSIVE and container.why and judgement.why)
    )
    return _broken(allocation, tuple(judged), intruding) if intruding else tuple(judged)


def _broken(
    allocation: PodAllocation, judged: Iterable[Judgement], intruding: Collection[Intrusion]
) -> tuple[Judgement, ...]:
    """Return judgements with what intrudes on containers' CPUs, whatever else makes them share."""
    broken = [
        Judgement(container.name, Quality.EXCLUSIVE, "; ".join(map(str, found)))
        for container in allocation.containers
        if (own := container.cpus) is not None
        and (found := [each for each in intruding if not each.cpus.isdisjoint(own)])
    ]
    over = {(each.container, each.quality) for each in broken}
    return (*broken, *(each for each in judged if (each.container, each.quality) not in over))


def unmet(rules: HostPolicy, demand: PodDemand, allocation: PodAllocation) -> Rejection | None:
    """Return why an allocation lacks what its pod requires, None if it lacks nothing."""
    asked = demand.asked.required
    if nodes := demand.asked.near_nodes:
        far = _far_from(rules, nodes, allocation)
        if far:
            message = f"the pod would not be near {nodes_text(nodes)} as it requires: {far}"
            return Rejection(Reason.REQUIREMENT, message)
    if not asked:
        return None
    judged = [each for one in allocation.containers for each in _of(rules, one, allocation.idle)]
    for quality in sorted(asked - {each.quality for each in judged}):
        message = f"the pod would not get what it requires: {quality}: {_NOTHING[quality]}"
        return Rejection(Reason.REQUIREMENT, message)
    lacking = [each for each in judged if each.quality in asked and each.why]
    if not lacking:
        return None
    details = "; ".join(f"{each.container} is not {each.quality}: {each.why}" for each in lacking)
    return Rejection(
        Reason.REQUIREMENT,
        f"the pod would not get what it requires: {details}",
        container=lacking[0].container,
    )


#: Why a quality cannot be judged of any container of a pod.
_NOTHING: Final = {
    Quality.EXCLUSIVE: "the pod has no container",
    Quality.ALIGNED: "no container has CPUs or pinned memory of its own",
    Quality.WHOLE_CORES: "no container has CPUs of its own",
    Quality.NEAR_DEVICE: "no container has a device and CPUs or pinned memory of its own",
}


def _far_from(rules: HostPolicy, nodes: Mask, allocation: PodAllocation) -> str:
    """Return which containers are on none of some nodes, "" if each that is on any node is."""
    of_cpus = rules.machine.cpus.nodes_of
    places = {
        container.name: place
        for container in allocation.containers
        if (place := of_cpus(container.cpus or EMPTY) or rules.memory_places(container))
    }
    if not places:
        return "none of its containers has CPUs or memory of its own"
    far = (f"{name} is on {nodes_text(on)}" for name, on in places.items() if not on & nodes)
    return ", ".join(far)


def _of(rules: HostPolicy, container: ContainerAllocation, idle: Mask) -> Iterator[Judgement]:
    exclusive = container.isolation is Isolation.CONTAINER
    cpus = (container.cpus or EMPTY) if exclusive else EMPTY
    cpu_nodes, memory_nodes = rules.machine.cpus.nodes_of(cpus), rules.memory_places(container)
    devices, near = list(_devices(rules, container)), cpu_nodes or memory_nodes
    why = container.why or "its specification is not known"
    yield Judgement(container.name, Quality.EXCLUSIVE, "" if exclusive else why)
    if cpus or container.memory:
        spread = _spread(container.hint, cpu_nodes, memory_nodes)
        yield Judgement(container.name, Quality.ALIGNED, spread)
    if cpus:
        yield Judgement(container.name, Quality.WHOLE_CORES, _shared_cores(rules, cpus, idle))
    if devices and near:
        yield Judgement(container.name, Quality.NEAR_DEVICE, _far(devices, near))


def _spread(hint: Hint, cpu_nodes: Mask, memory_nodes: Mask) -> str:
    """Return why CPUs and memory are not aligned, "" if they are."""
    if len(cpu_nodes | memory_nodes) <= 1:
        return ""
    if hint.preferred and (not memory_nodes or not cpu_nodes or cpu_nodes <= memory_nodes):
        return ""
    parts = [
        f"{what} on {nodes_text(nodes)}"
        for what, nodes in (("CPUs", cpu_nodes), ("memory", memory_nodes))
        if nodes
    ]
    return ", ".join(parts)


def _shared_cores(rules: HostPolicy, cpus: Mask, idle: Mask) -> str:
    siblings = rules.machine.cpus.cores_of(cpus) - cpus - idle
    if not siblings:
        return ""
    noun = "CPU" if len(siblings) == 1 else "CPUs"
    return f"not its own on the same cores: {noun} {siblings}"


def _devices(rules: HostPolicy, container: ContainerAllocation) -> Iterator[tuple[str, str, Mask]]:
    """Yield resource, id and nodes of every device, allocated by the agent or by the kubelet."""
    for resource, ids in sorted(container.devices.items()):
        places = {device.id: device.nodes for device in rules.policy.devices.get(resource, ())}
        recorded = container.device_nodes.get(resource, {})
        for each in ids:
            yield resource, each, recorded.get(each) or places.get(each, EMPTY)
    for given in given_devices(container):
        yield given.resource, given.id, given.nodes


def _far(devices: Iterable[tuple[str, str, Mask]], near: Mask) -> str:
    far = [
        f"{resource} {each} is on {nodes_text(nodes)}"
        for resource, each, nodes in devices
        if nodes and not nodes & near
    ]
    return f"{'; '.join(far)}, the container on {nodes_text(near)}" if far else ""

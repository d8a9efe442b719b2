"""From the ledger to the settings that every pod and container cgroup should have.

Pure: what is desired follows from the ledger, the node's shared pool and where the containers are.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.pods.model import CPU
from agent.reconcile.desired.container import container_entitlement, default_entitlement
from agent.reconcile.desired.limits import EVERYTHING, class_weight, container_defaults, pod_values
from agent.reconcile.desired.quota import pod_quotas
from agent.reconcile.identify.containers import IdentifiedBy
from cgroupfs.controllers import CPUSET, NEEDED
from cgroupfs.plan import Setting
from cgroupfs.state import CPU_WEIGHT, UNLIMITED
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.managers.allocations.ledger import PodAllocation
    from agent.reconcile.desired.container import ContainerSettings
    from agent.reconcile.desired.limits import EnforcedControllers
    from agent.reconcile.desired.state import Desired
    from agent.reconcile.identify.containers import (
        IdentifiedCgroups,
        Located,
        LocatedPod,
        OrphanedCgroup,
    )


class Role(StrEnum):
    """What a cgroup is to the ledger."""

    POD = "pod"
    CONTAINER = "container"
    SUBGROUP = "subgroup"
    SANDBOX = "sandbox"
    UNIDENTIFIED = "unidentified"
    LEFTOVER = "leftover"
    #: The cgroup of a QoS class, in which pods stand.
    QOS_CLASS = "qos class"
    #: The cgroup in which these and all pods stand.
    ALL_PODS = "all pods"


#: What the agent made for pods to stand in.
ABOVE_PODS: Final = frozenset({Role.QOS_CLASS, Role.ALL_PODS})


_NO_VALUES: Final[Mapping[str, str]] = MappingProxyType({})
#: What is in a pod and no container of its specification, as far as is known.
_WITHOUT_AN_ALLOCATION: Final = {
    IdentifiedBy.SANDBOX: Role.SANDBOX,
    IdentifiedBy.UNKNOWN: Role.UNIDENTIFIED,
}


class DesiredCgroup(Struct, frozen=True):
    """One cgroup, what it is, and the settings it should have.

    `pod` is the pod's uid, "" for a leftover and for what pods stand in. `container` is None
    for anything but a container (or a subgroup of one) that is known by name.
    """

    setting: Setting
    role: Role
    pod: str
    container: str | None = None
    identity: IdentifiedBy | None = None


def desired_cgroups(
    target: Desired, landscape: IdentifiedCgroups, enforced: EnforcedControllers = EVERYTHING
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired of every cgroup, pods before their containers.

    A pod's set is the union of what its members may use: its budget where it has one, the sets of
    its containers, the node's shared pool where a container runs there. Memory nodes are pinned
    only where memory was allocated. A pod's own cgroup is listed although it may not exist yet.
    Files of controllers that are not `enforced` are left as they are.
    """
    desired: list[DesiredCgroup] = []
    if CPU in enforced.controllers:
        desired.extend(_classes(target, landscape))
    for uid, located in landscape.pods.items():
        desired.extend(_pod(target.ledger.allocations[uid], located, target.shared_pool, enforced))
    for leftover in landscape.leftovers:
        desired.extend(_leftover(leftover, target.shared_pool))
    if set(NEEDED) <= enforced.controllers:
        return tuple(desired)
    return tuple(replace(item, setting=_only(item.setting, enforced)) for item in desired)


def _only(setting: Setting, enforced: EnforcedControllers) -> Setting:
    """Return a setting without the files of controllers that belong to somebody else."""
    sets, quota = CPUSET in enforced.controllers, CPU in enforced.controllers
    return replace(
        setting,
        cpus=setting.cpus if sets else None,
        mems=setting.mems if sets else None,
        cpu_max=setting.cpu_max if quota else None,
        exclusive=setting.exclusive and sets,
    )


def _classes(target: Desired, landscape: IdentifiedCgroups) -> Iterator[DesiredCgroup]:
    for qos, cgroup in landscape.classes.items():
        weight = class_weight(qos, target.ledger.allocations.values())
        yield DesiredCgroup(Setting(cgroup, values={CPU_WEIGHT: weight}), Role.QOS_CLASS, "")


def _pod(
    pod: PodAllocation, located: LocatedPod, shared_pool: Mask, enforced: EnforcedControllers
) -> Iterator[DesiredCgroup]:
    quotas = pod_quotas(pod)
    allocated = {c.name: container_entitlement(c, shared_pool, quotas) for c in pod.containers}
    others = {
        IdentifiedBy.SANDBOX: default_entitlement(pod, shared_pool),
        IdentifiedBy.UNKNOWN: default_entitlement(pod, shared_pool, quotas.unidentified),
    }
    members = [
        (m, others.get(m.identity) or _entitlement(pod, allocated, m)) for m in located.containers
    ]
    inside = [
        entitlement
        for member, entitlement in members
        if member.cgroup.startswith(f"{located.cgroup}/")
    ]
    setting = Setting(
        located.cgroup,
        cpus=_union(pod.cpus, (e.cpus for e in (*allocated.values(), *inside))) or None,
        mems=_pod_mems(pod, allocated.values()),
        cpu_max=quotas.pod,
        exclusive=bool(pod.exclusive_cpus),
        values=pod_values(pod, enforced),
    )
    yield DesiredCgroup(setting, Role.POD, pod.uid)
    limits = {c.name: container_defaults(c, enforced) for c in pod.containers}
    for member, entitlement in members:
        yield from _member(pod, member, entitlement, limits)


def _entitlement(
    pod: PodAllocation, allocated: Mapping[str, ContainerSettings], member: Located
) -> ContainerSettings:
    container = member.container or pod.containers[0].name
    if container not in allocated:
        raise ValueError(f"pod {pod.uid} has no container {container!r}")
    return allocated[container]


def _member(
    pod: PodAllocation,
    member: Located,
    entitlement: ContainerSettings,
    limits: Mapping[str, Mapping[str, str]],
) -> Iterator[DesiredCgroup]:
    role = _WITHOUT_AN_ALLOCATION.get(member.identity, Role.CONTAINER)
    # One without a name is a container all the same where all of them are alike.
    known = role is Role.CONTAINER
    name = member.container or pod.containers[0].name
    setting = Setting(
        member.cgroup,
        cpus=entitlement.cpus,
        mems=entitlement.mems,
        cpu_max=entitlement.cpu_max,
        exclusive=entitlement.exclusive,
        defaults=limits[name] if known else _NO_VALUES,
    )
    yield DesiredCgroup(setting, role, pod.uid, member.container, member.identity)
    for subgroup in member.subgroups:
        # The container's quota counts for everything inside; one in there, which a runtime may
        # have set (crun does), would throttle it again.
        ours = subgroup.quota and setting.cpu_max is not None
        inner = replace(
            setting, cgroup=subgroup.cgroup, cpu_max=UNLIMITED if ours else None, defaults={}
        )
        yield DesiredCgroup(inner, Role.SUBGROUP, pod.uid, member.container, member.identity)


def _leftover(leftover: OrphanedCgroup, shared_pool: Mask) -> Iterator[DesiredCgroup]:
    """Confine what runs without an allocation to the node's shared pool: nothing else is free."""
    for path in (leftover.cgroup, *leftover.containers):
        yield DesiredCgroup(Setting(path, cpus=shared_pool or None), Role.LEFTOVER, "")


def _pod_mems(pod: PodAllocation, allocated: Collection[ContainerSettings]) -> Mask | None:
    """Return the nodes of a pod's cgroup, None while any member may use the whole host's."""
    if not pod.memory and any(entitlement.mems is None for entitlement in allocated):
        return None
    budget = _union(None, (block.nodes for block in pod.memory))
    return _union(budget, (entitlement.mems for entitlement in allocated)) or None


def _union(first: Mask | None, others: Iterable[Mask | None]) -> Mask:
    union = EMPTY if first is None else first
    for mask in others:
        if mask is not None:
            union |= mask
    return union

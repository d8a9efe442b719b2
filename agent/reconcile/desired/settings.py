"""From the ledger to the settings that every pod and container cgroup should have.

Pure: the settings follow from the ledger, the node's shared pool and the identified cgroups.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.pods.model import CPU
from agent.reconcile.desired.container import container_settings, default_settings
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
    ORPHANED = "orphaned"
    #: The cgroup of a QoS class, above the pods of the class.
    QOS_CLASS = "qos class"
    #: The cgroup above the QoS classes and all pods.
    ALL_PODS = "all pods"


#: The cgroups that the agent creates above the pods.
ABOVE_PODS: Final = frozenset({Role.QOS_CLASS, Role.ALL_PODS})


_NO_VALUES: Final[Mapping[str, str]] = MappingProxyType({})
#: Cgroups in a pod that match no container of its specification.
_WITHOUT_AN_ALLOCATION: Final = {
    IdentifiedBy.SANDBOX: Role.SANDBOX,
    IdentifiedBy.UNKNOWN: Role.UNIDENTIFIED,
}


class DesiredCgroup(Struct, frozen=True):
    """One cgroup, what it is, and the settings it should have.

    `pod` is the pod's uid, "" for an orphaned cgroup and for those above the pods. `container` is
    the name of an identified container, also for its subgroups, else None.
    """

    setting: Setting
    role: Role
    pod: str
    container: str | None = None
    identity: IdentifiedBy | None = None


def desired_cgroups(
    target: Desired, identified: IdentifiedCgroups, enforced: EnforcedControllers = EVERYTHING
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired of every cgroup, pods before their containers.

    A pod's set is the union of what its members may use: its budget where it has one, the sets of
    its containers, the node's shared pool where a container runs there. Memory nodes are pinned
    only where memory was allocated. A pod's own cgroup is listed although it may not exist yet.
    Files of controllers that are not `enforced` are left as they are.
    """
    desired: list[DesiredCgroup] = []
    if CPU in enforced.controllers:
        desired.extend(_classes(target, identified))
    for uid, located in identified.pods.items():
        desired.extend(_pod(target.ledger.allocations[uid], located, target.shared_pool, enforced))
    for orphan in identified.orphaned:
        desired.extend(_orphaned(orphan, target.shared_pool))
    if set(NEEDED) <= enforced.controllers:
        return tuple(desired)
    return tuple(replace(item, setting=_only(item.setting, enforced)) for item in desired)


def _only(setting: Setting, enforced: EnforcedControllers) -> Setting:
    """Return a setting without the files of controllers that are not enforced."""
    sets, quota = CPUSET in enforced.controllers, CPU in enforced.controllers
    return replace(
        setting,
        cpus=setting.cpus if sets else None,
        mems=setting.mems if sets else None,
        cpu_max=setting.cpu_max if quota else None,
        exclusive=setting.exclusive and sets,
    )


def _classes(target: Desired, identified: IdentifiedCgroups) -> Iterator[DesiredCgroup]:
    for qos, cgroup in identified.classes.items():
        weight = class_weight(qos, target.ledger.allocations.values())
        yield DesiredCgroup(Setting(cgroup, values={CPU_WEIGHT: weight}), Role.QOS_CLASS, "")


def _pod(
    pod: PodAllocation, located: LocatedPod, shared_pool: Mask, enforced: EnforcedControllers
) -> Iterator[DesiredCgroup]:
    quotas = pod_quotas(pod)
    allocated = {c.name: container_settings(c, shared_pool, quotas) for c in pod.containers}
    others = {
        IdentifiedBy.SANDBOX: default_settings(pod, shared_pool),
        IdentifiedBy.UNKNOWN: default_settings(pod, shared_pool, quotas.unidentified),
    }
    members = [
        (m, others.get(m.identity) or _settings_of(pod, allocated, m)) for m in located.containers
    ]
    inside = [
        settings for member, settings in members if member.cgroup.startswith(f"{located.cgroup}/")
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
    for member, settings in members:
        yield from _member(pod, member, settings, limits)


def _settings_of(
    pod: PodAllocation, allocated: Mapping[str, ContainerSettings], member: Located
) -> ContainerSettings:
    container = member.container or pod.containers[0].name
    if container not in allocated:
        raise ValueError(f"pod {pod.uid} has no container {container!r}")
    return allocated[container]


def _member(
    pod: PodAllocation,
    member: Located,
    settings: ContainerSettings,
    limits: Mapping[str, Mapping[str, str]],
) -> Iterator[DesiredCgroup]:
    role = _WITHOUT_AN_ALLOCATION.get(member.identity, Role.CONTAINER)
    # A cgroup without a name is a container too where all containers are alike.
    known = role is Role.CONTAINER
    name = member.container or pod.containers[0].name
    setting = Setting(
        member.cgroup,
        cpus=settings.cpus,
        mems=settings.mems,
        cpu_max=settings.cpu_max,
        exclusive=settings.exclusive,
        defaults=limits[name] if known else _NO_VALUES,
    )
    yield DesiredCgroup(setting, role, pod.uid, member.container, member.identity)
    for subgroup in member.subgroups:
        # The container's quota covers all cgroups inside; a quota of the subgroup, which a runtime
        # may set (crun does), would throttle a second time.
        ours = subgroup.quota and setting.cpu_max is not None
        inner = replace(
            setting, cgroup=subgroup.cgroup, cpu_max=UNLIMITED if ours else None, defaults={}
        )
        yield DesiredCgroup(inner, Role.SUBGROUP, pod.uid, member.container, member.identity)


def _orphaned(orphan: OrphanedCgroup, shared_pool: Mask) -> Iterator[DesiredCgroup]:
    """Confine an orphaned cgroup to the node's shared pool, the only CPUs without an owner."""
    for path in (orphan.cgroup, *orphan.containers):
        yield DesiredCgroup(Setting(path, cpus=shared_pool or None), Role.ORPHANED, "")


def _pod_mems(pod: PodAllocation, allocated: Collection[ContainerSettings]) -> Mask | None:
    """Return the nodes of a pod's cgroup, None while any container may use all of the host's."""
    if not pod.memory and any(settings.mems is None for settings in allocated):
        return None
    budget = _union(None, (block.nodes for block in pod.memory))
    return _union(budget, (settings.mems for settings in allocated)) or None


def _union(first: Mask | None, others: Iterable[Mask | None]) -> Mask:
    union = EMPTY if first is None else first
    for mask in others:
        if mask is not None:
            union |= mask
    return union

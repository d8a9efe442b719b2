"""From the ledger to the settings that every cgroup of the pods should have.

Pure: the settings follow from the ledger, the node's shared pool and the identified cgroups.

The shared pool is written once, not into every container. The cgroups of the QoS classes Burstable
and BestEffort carry the pool, and what is in them inherits. Guaranteed pods stand beside the pods
with exclusive CPUs: one without exclusive CPUs carries the pool in its own cgroup, and what is in
that inherits, unless the layout has a cgroup for all of these, which carries it. So a change of
the pool writes the two classes and those pods, however many pods and containers there are. Three
kinds of cgroups cannot inherit the pool and carry it themselves: a container that shares in a pod
with exclusive CPUs, a container that was bound to a cgroup outside of its pod's, and the pods of a
class in which a pod has CPUs of its own. The cgroup of such a class has the pool and these CPUs, so
that it confines its pods, and the partitions beside it stay valid. The cgroup of a pod in a pool of
its own (`agent.pools`) carries that, and what is in it inherits: a change of the pool writes each
of these pods once.

The cgroup of all pods has no cpuset of its own: one that another process wrote there confines every
pod inside.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVarTuple

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocation import Isolation
from agent.managers.cpu.manager import exclusive_cpus
from agent.pods.model import MEMORY
from agent.reconcile.container_settings import (
    container_settings,
    default_settings,
    ephemeral_settings,
)
from agent.reconcile.enforced import EVERYTHING
from agent.reconcile.identify import IdentifiedBy
from agent.reconcile.pod_classes import NO_PODS
from agent.reconcile.quota import pod_quotas
from agent.reconcile.values import (
    allocatable_amounts,
    class_values,
    container_defaults,
    container_memory,
    ephemeral_memory,
    node_values,
    pod_values,
    quota_value,
)
from cgroupfs.apply import CPUSET, NEEDED
from cgroupfs.names import Tier
from cgroupfs.plan import Setting
from cgroupfs.settings import EXCLUSIVE, MEMBER, PARTITION, UNLIMITED
from cgroupfs.tree import is_within, parent
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.pools import PodPool
    from agent.reconcile.container_settings import ContainerSettings
    from agent.reconcile.enforced import EnforcedControllers
    from agent.reconcile.identify import Located
    from agent.reconcile.orphans import OrphanedCgroup
    from agent.reconcile.pod_cgroups import IdentifiedCgroups, LocatedPod
    from agent.reconcile.pod_classes import PodClasses
    from agent.reconcile.target import Desired


class Role(StrEnum):
    """What a cgroup is to the ledger."""

    POD = "pod"
    CONTAINER = "container"
    SUBGROUP = "subgroup"
    SANDBOX = "sandbox"
    EPHEMERAL = "ephemeral"
    UNIDENTIFIED = "unidentified"
    ORPHANED = "orphaned"
    #: The cgroup of a QoS class, above the pods of the class.
    QOS_CLASS = "qos class"
    #: The cgroup above the QoS classes and all pods.
    ALL_PODS = "all pods"
    #: A cgroup of the host's own services or sessions, beside the pods.
    HOST = "host"


#: The cgroups that the agent creates above the pods.
ABOVE_PODS: Final = frozenset({Role.QOS_CLASS, Role.ALL_PODS})
#: The cgroups that are reported as long as they exist, though nothing differs.
NOTED: Final = frozenset({Role.EPHEMERAL, Role.UNIDENTIFIED})


#: The cgroups of one pod stand together in what is desired.
BY_POD: Final = attrgetter("pod")
_Inputs = TypeVarTuple("_Inputs")
_NO_AMOUNTS: Final[Mapping[str, int]] = MappingProxyType({})
_NO_VALUES: Final[Mapping[str, str]] = MappingProxyType({})
#: Cgroups in a pod that match no container of its specification.
_WITHOUT_AN_ALLOCATION: Final = {
    IdentifiedBy.SANDBOX: Role.SANDBOX,
    IdentifiedBy.EPHEMERAL: Role.EPHEMERAL,
    IdentifiedBy.UNKNOWN: Role.UNIDENTIFIED,
}


class HostSets(Struct, frozen=True):
    """The CPUs and memory nodes that the cgroup above all pods has; empty when not shown.

    `online` are the CPUs that the root has.
    """

    cpus: Mask = EMPTY
    mems: Mask = EMPTY
    online: Mask = EMPTY


UNKNOWN_HOST: Final = HostSets()

#: Returns what the host's own cgroups are to have, given the exclusive and the online CPUs.
HostSettings: TypeAlias = "Callable[[Mask, Mask], Iterable[Setting]]"


#: Returns which pods (uids) are to be partitions, and of which kind, given the cgroup of all pods;
#: None where partitions are not to be looked at.
PartitionWords: TypeAlias = "Callable[[Desired, str], Mapping[str, str] | None]"


def no_partitions(_target: Desired, _all_pods: str) -> None:
    """Return None: partitions are left as they are."""


def no_host_settings(_exclusive: Mask, _online: Mask) -> tuple[Setting, ...]:
    """Return nothing: the host's own cgroups stay as they are."""
    return ()


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

    def needed(self, controllers: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of these controllers the cgroup needs: without a set of its own no cpuset.

        systemd disables the cpuset controller where no unit has a set.
        """
        if not self.setting.inherits:
            return controllers
        return tuple(name for name in controllers if name != CPUSET)


def desired_cgroups(
    target: Desired,
    identified: IdentifiedCgroups,
    enforced: EnforcedControllers = EVERYTHING,
    host: HostSets = UNKNOWN_HOST,
    classes: PodClasses = NO_PODS,
    known: KnownPods | None = None,
    beside: HostSettings = no_host_settings,
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired of every cgroup, those above first.

    A pod's set is the union of what its members may use: its budget where it has one, the sets of
    its containers, the node's shared pool where a container runs there. Memory nodes are pinned
    only where memory was allocated. A pod's own cgroup is listed although it may not exist yet.
    Files of controllers that are not `enforced` are left as they are. `classes` are those of a
    ledger before, from which the present ones are made; `known` is what was desired before.
    `beside` says what the host's own cgroups are to have.
    """
    classes = classes.of(target.ledger.allocations)
    node = allocatable_amounts(target.capacity, enforced)
    pool = replace(SharedPool.of(target, identified, host, classes), node=node)
    limits = node if enforced.limits_all_pods else target.capacity
    pods = known or KnownPods()
    pods.start(pool, enforced, target.ledger.allocations)
    desired: list[DesiredCgroup] = []
    allocations = target.ledger.allocations
    for uid, located in identified.pods.items():
        desired.extend(pods.of(allocations[uid], located, target.pools.get(uid)))
    for orphan in identified.orphaned:
        desired.extend(_orphaned(orphan, pool))
    above = _above_pods(identified, pool, _nodes_of(desired, host), classes, limits, enforced)
    # The root lacks what a partition still has that is about to end.
    own = beside(exclusive_cpus(target.ledger), host.online | target.shared_pool)
    everything = (*above, *desired, *(_host(each, desired) for each in own))
    if set(NEEDED) <= enforced.controllers:
        return everything
    return tuple(replace(item, setting=_only(item.setting, enforced)) for item in everything)


def with_partitions(
    desired: Iterable[DesiredCgroup],
    words: Mapping[str, str],
    all_pods: str,
    allocations: Mapping[str, PodAllocation],
    known: KnownChanges | None = None,
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired with the pods in `words` as partitions of these kinds.

    The cgroup of all pods has the exclusive CPUs of all of them, those included that are not
    observed; without these the kernel makes no (remote) partition below. No other cgroup beside
    the pods' is a partition. `known` is what was made before.

    1. A pod's cgroup is one, with the idle siblings, unless a container of it, an ephemeral one
       included, runs in the node's shared pool.
    2. So are its containers with exclusive CPUs, inside that or without it, as far as the pod then
       has CPUs left for its sandbox and for what starts in it (`_Apart.home`).
    3. Of two cgroups with the same CPUs neither is: an init container's that has ended and its
       successor's, or two of one container.
    4. A cgroup that is not identified yet stays among the CPUs of the pod, so that the pod does not
       cease to be a partition whenever a container starts.
    """
    known = known or KnownChanges()
    known.keep(allocations)
    union = _union(None, (allocations[uid].exclusive_cpus for uid in words))
    given = {EXCLUSIVE: str(union)}
    found = [DesiredCgroup(Setting(all_pods, values=given), Role.ALL_PODS, "")]
    for uid, group in groupby(desired, BY_POD):
        pod = allocations.get(uid)
        if pod is not None:
            word = words.get(uid, MEMBER)
            found += known.of(uid, (tuple(group), pod, word, all_pods), _partitioned)
            continue
        for item in group:
            setting = item.setting
            if item.role is Role.ALL_PODS:
                found[0] = replace(item, setting=_more(setting, given))
                continue
            if item.role is Role.ORPHANED and setting.cgroup.startswith(f"{all_pods}/"):
                setting = _more(setting, _partition(EMPTY, MEMBER))
            found.append(item if setting is item.setting else replace(item, setting=setting))
    return tuple(found)


class _Apart(Struct):
    """What of a pod are partitions of the kind `word`: the pod itself if `whole`, containers.

    `cpus` are those of the pod's cgroup, `own` those that are exclusive. `home` are what no
    container has as a partition: those that none has to itself, else those of the last. The kernel
    starts nothing in a cgroup without CPUs (ENOSPC, cpuset_can_attach_check in
    kernel/cgroup/cpuset.c).
    """

    cgroup: str
    word: str
    own: Mask
    cpus: Mask | None
    whole: bool
    home: Mask
    containers: dict[str, Mask]

    @classmethod
    def of(cls, setting: Setting, pod: PodAllocation, word: str, *, ephemeral: bool) -> _Apart:
        """Return what is apart of a pod whose containers are not known yet."""
        own = EMPTY if word == MEMBER else pod.exclusive_cpus
        shares = ephemeral or any(each.isolation is Isolation.HOST for each in pod.containers)
        whole = bool(own) and setting.cpus is not None and not shares
        cpus = own if whole else setting.cpus
        alone = [each.cpus for each in pod.containers if each.isolation is Isolation.CONTAINER]
        home = _union(cpus, ()) - _union(None, alone) or (alone[-1] if alone else None)
        return cls(setting.cgroup, word, own, cpus, whole, home or EMPTY, {})

    def setting(self, item: DesiredCgroup) -> Setting:
        """Return the setting of the pod's cgroup, or of one inside."""
        setting, given = item.setting, _union(None, self.containers.values())
        if item.role is Role.SUBGROUP:
            return setting
        if item.role is Role.POD:
            setting = replace(setting, cpus=self.cpus, given=given)
            return _more(setting, _partition(self.own, self.word if self.whole else MEMBER))
        if item.role is Role.SANDBOX and setting.whole_cpus:
            # All CPUs of the host in its file would make the partitions beside it invalid.
            whole = EMPTY if given else setting.whole_cpus
            setting = replace(setting, cpus=self.home if given else self.cpus, whole_cpus=whole)
        if (
            item.role is Role.UNIDENTIFIED
            and self.whole
            and not (setting.cpus or EMPTY) <= self.own
        ):
            setting = replace(setting, cpus=self.home)
        own = self.containers.get(setting.cgroup, EMPTY)
        return _more(setting, _partition(own, self.word if own else MEMBER))


def _partitioned(
    items: tuple[DesiredCgroup, ...], pod: PodAllocation, word: str, all_pods: str
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired of a pod's cgroups with the pod as a partition of this kind."""
    apart = _apart(items, pod, word, all_pods)
    if apart is None:
        return items
    return tuple(
        replace(item, setting=apart.setting(item))
        if is_within(item.setting.cgroup, (apart.cgroup,))
        else item
        for item in items
    )


def _apart(
    items: Iterable[DesiredCgroup], pod: PodAllocation, word: str, all_pods: str
) -> _Apart | None:
    """Return what of a pod is apart, None for a pod beside which there are no partitions."""
    own = next((item.setting for item in items if item.role is Role.POD), None)
    if own is None or parent(own.cgroup) != all_pods:
        return None
    ephemeral = any(item.role is Role.EPHEMERAL for item in items)
    found, seen = _Apart.of(own, pod, word, ephemeral=ephemeral), EMPTY
    mine = found.containers
    for item in items:
        cpus = item.setting.cpus
        if item.role is not Role.CONTAINER or cpus is None:
            continue
        for other in [path for path in mine if not cpus.isdisjoint(mine[path])]:
            del mine[other]
        if found.own and item.setting.exclusive and cpus.isdisjoint(found.home | seen):
            mine[item.setting.cgroup] = cpus
        seen |= cpus
    return found


def _partition(cpus: Mask, word: str) -> Mapping[str, str]:
    return {EXCLUSIVE: str(cpus), PARTITION: word}


def _more(setting: Setting, values: Mapping[str, str]) -> Setting:
    return replace(setting, values={**setting.values, **values})


class SharedPool(Struct, frozen=True):
    """The node's shared pool, and who carries it.

    `carriers` are the cgroups of the QoS classes that carry the pool, each with a final slash;
    `split` are the others, which have CPUs of their pods beside it. `whole` are all CPUs of the
    host, those included that a pod has and that are offline. `node` is what pods together may use
    (`allocatable_amounts`).
    """

    cpus: Mask
    whole: Mask
    carriers: tuple[str, ...] = ()
    split: Mapping[str, Mask] = MappingProxyType({})
    node: Mapping[str, int] = _NO_AMOUNTS

    @classmethod
    def of(
        cls, target: Desired, identified: IdentifiedCgroups, host: HostSets, classes: PodClasses
    ) -> SharedPool:
        """Return the pool; a class carries it unless a pod of the class has CPUs of its own.

        Of the pods that share, all that were not found to inherit are among the identified ones.
        """
        whole = host.cpus | target.shared_pool | exclusive_cpus(target.ledger)
        if not target.shared_pool:
            return cls(EMPTY, whole)
        split = classes.split_classes()
        shared = f"{identified.classes.get(Tier.SHARED, '')}/"
        pods = target.ledger.allocations
        if len(shared) > 1:
            inside = (
                pods[uid].exclusive_cpus - pods[uid].idle
                for uid, located in identified.pods.items()
                if located.cgroup.startswith(shared)
            )
            split |= {Tier.SHARED: own} if (own := _union(None, inside)) else {}
        paths = identified.classes.items()
        carriers = tuple(f"{path}/" for tier, path in paths if tier not in split)
        own_sets = {path: split[tier] for tier, path in paths if tier in split}
        return cls(target.shared_pool, whole, carriers, own_sets)

    def inherited(self, cgroup: str) -> Setting | None:
        """Return the setting of a cgroup that inherits the pool from a class, None outside."""
        return self.below(cgroup, self.cpus) if cgroup.startswith(self.carriers) else None

    def below(self, cgroup: str, cpus: Mask | None) -> Setting:
        """Return the setting of a cgroup that inherits `cpus`; None leaves its set as it is."""
        return Setting(cgroup, cpus=cpus, whole_cpus=self.whole if cpus else EMPTY)


class KnownPods:
    """What is desired of the cgroups of each pod, made again only when an input changed.

    The inputs are compared, not assumed: the allocation (the same object), the pod's cgroups as
    they were found, the shared pool and the controllers that are enforced. What cgroups show is no
    input.
    """

    def __init__(self) -> None:
        self._pool = SharedPool(EMPTY, EMPTY)
        self._enforced = EVERYTHING
        self._pods: dict[
            str, tuple[PodAllocation, LocatedPod, PodPool | None, tuple[DesiredCgroup, ...]]
        ] = {}

    def start(
        self,
        pool: SharedPool,
        enforced: EnforcedControllers,
        allocations: Mapping[str, PodAllocation],
    ) -> None:
        """Take the inputs that all pods have in common; forget the pods without an allocation."""
        if pool != self._pool or enforced != self._enforced:
            self._pool, self._enforced = pool, enforced
            self._pods.clear()
        if len(self._pods) > len(allocations):
            self._pods = {uid: one for uid, one in self._pods.items() if uid in allocations}

    def of(
        self, pod: PodAllocation, located: LocatedPod, own: PodPool | None = None
    ) -> tuple[DesiredCgroup, ...]:
        """Return what is desired of a pod's cgroup and of those of its containers.

        `own` is the pool that the pod is in, which its cgroup carries.
        """
        before = self._pods.get(pod.uid)
        if before is not None and before[0] is pod and before[1:3] == (located, own):
            return before[3]
        pool, mems = self._pool, EMPTY
        if own is not None:
            pool, mems = replace(pool, cpus=own.cpus, carriers=()), own.mems
        desired = tuple(_pod(pod, located, pool, self._enforced, mems))
        if not located.boundary:  # of such a pod the containers are not known
            self._pods[pod.uid] = (pod, located, own, desired)
        return desired


class KnownChanges:
    """What was made of the cgroups desired of each pod, made again only when an input changed.

    So what is desired stays the same object, and is not compared again (`observe.Settled`).
    """

    def __init__(self) -> None:
        self._pods: dict[str, tuple[tuple[object, ...], tuple[DesiredCgroup, ...]]] = {}

    def keep(self, allocations: Mapping[str, PodAllocation]) -> None:
        """Forget the pods without an allocation."""
        if len(self._pods) > len(allocations):
            self._pods = {uid: one for uid, one in self._pods.items() if uid in allocations}

    def of(
        self,
        uid: str,
        inputs: tuple[*_Inputs],
        make: Callable[[*_Inputs], tuple[DesiredCgroup, ...]],
    ) -> tuple[DesiredCgroup, ...]:
        """Return what `make`, a pure function, makes of these inputs."""
        before = self._pods.get(uid)
        if before is not None and before[0] == inputs:
            return before[1]
        made = make(*inputs)
        self._pods[uid] = inputs, made
        return made


def _only(setting: Setting, enforced: EnforcedControllers) -> Setting:
    """Return a setting without the files of controllers that are not enforced."""
    sets = CPUSET in enforced.controllers
    return replace(
        setting,
        cpus=setting.cpus if sets else None,
        mems=setting.mems if sets else None,
        exclusive=setting.exclusive and sets,
        whole_cpus=setting.whole_cpus if sets else EMPTY,
        whole_mems=setting.whole_mems if sets else EMPTY,
        values=enforced.enforceable(setting.values),
    )


def _nodes_of(desired: Iterable[DesiredCgroup], host: HostSets) -> Mask:
    """Return all memory nodes: a node of a pod may be missing from what the host shows."""
    nodes = host.mems
    for item in desired:
        if item.setting.mems is not None:
            nodes |= item.setting.mems
    return nodes


def _above_pods(
    identified: IdentifiedCgroups,
    pool: SharedPool,
    mems: Mask,
    classes: PodClasses,
    limits: Mapping[str, int],
    enforced: EnforcedControllers,
) -> Iterator[DesiredCgroup]:
    """Yield the agent's own cgroups above the pods: of all pods, then of the QoS classes."""
    if identified.all_pods:
        values = node_values(classes, limits, enforced)
        setting = Setting(
            identified.all_pods, whole_cpus=pool.whole, whole_mems=mems, values=values
        )
        yield DesiredCgroup(setting, Role.ALL_PODS, "")
    for tier, cgroup in identified.classes.items():
        setting = Setting(
            cgroup,
            cpus=pool.cpus | pool.split.get(cgroup, EMPTY) or None,
            whole_cpus=EMPTY if pool.cpus else pool.whole,
            whole_mems=mems,
            values=class_values(classes, tier, enforced),
        )
        yield DesiredCgroup(setting, Role.QOS_CLASS, "")


def _host(setting: Setting, desired: Iterable[DesiredCgroup]) -> DesiredCgroup:
    """Return a cgroup of the host, with the CPUs of the containers that were bound inside it."""
    inside = f"{setting.cgroup}/"
    bound = (each.setting for each in desired if each.setting.cgroup.startswith(inside))
    more = _union(None, (each.cpus for each in bound))
    if setting.cpus is not None and more:
        setting = replace(setting, cpus=setting.cpus | more)
    return DesiredCgroup(setting, Role.HOST, "")


def _pod(
    pod: PodAllocation,
    located: LocatedPod,
    pool: SharedPool,
    enforced: EnforcedControllers,
    mems: Mask,
) -> Iterator[DesiredCgroup]:
    quotas = pod_quotas(pod, enforced.period_us)
    allocated = {c.name: container_settings(c, pool.cpus, quotas) for c in pod.containers}
    others = {
        # A sandbox does no work: without a pod shared pool it has what its pod has.
        IdentifiedBy.SANDBOX: default_settings(pod, EMPTY),
        IdentifiedBy.EPHEMERAL: ephemeral_settings(pool.cpus, quotas),
        IdentifiedBy.UNKNOWN: default_settings(pod, pool.cpus, quotas.unidentified),
    }
    own = f"{located.cgroup}/"
    members = [
        (m, others.get(m.identity) or _settings_of(pod, allocated, m)) for m in located.containers
    ]
    inside = (settings for member, settings in members if member.cgroup.startswith(own))
    cpus = _union(pod.cpus, (each.cpus for each in (*allocated.values(), *inside))) or None
    setting = replace(
        pool.inherited(located.cgroup) or Setting(located.cgroup, cpus=cpus),
        mems=_pod_mems(pod, allocated.values(), mems),
        exclusive=bool(pod.exclusive_cpus),
        values=pod_values(pod, quotas.pod, enforced),
    )
    yield DesiredCgroup(setting, Role.POD, pod.uid)
    node = pool.node.get(MEMORY, 0)
    limits = {
        c.name: (container_memory(pod, c, enforced, node), container_defaults(pod, c, enforced))
        for c in pod.containers
    }
    of_ephemeral = ephemeral_memory(enforced, node)
    for member, settings in members:
        inherits = member.cgroup.startswith(own) and (
            not pod.exclusive_cpus
            or (member.identity is IdentifiedBy.SANDBOX and settings.cpus is None)
        )
        cpus, whole = (setting.cpus, pool.whole) if inherits else (settings.cpus, EMPTY)
        yield from _member(
            pod, member, settings, limits, (cpus, EMPTY if cpus is None else whole), of_ephemeral
        )


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
    limits: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]],
    cpus: tuple[Mask | None, Mask],
    of_ephemeral: Mapping[str, str],
) -> Iterator[DesiredCgroup]:
    role = _WITHOUT_AN_ALLOCATION.get(member.identity, Role.CONTAINER)
    # A cgroup without a name is a container too where all containers are alike.
    known = role is Role.CONTAINER
    name = member.container or pod.containers[0].name
    # What is alike are limits and CPUs, not what is reserved.
    named = known and (member.container is not None or len(pod.containers) == 1)
    memory, defaults = limits[name]
    if not named:
        memory = of_ephemeral if role is Role.EPHEMERAL else _NO_VALUES
    setting = Setting(
        member.cgroup,
        cpus=cpus[0],
        whole_cpus=cpus[1],
        mems=settings.mems,
        exclusive=settings.exclusive,
        values={**quota_value(settings.cpu_max), **memory},
        defaults=defaults if known else _NO_VALUES,
    )
    yield DesiredCgroup(setting, role, pod.uid, member.container, member.identity)
    for subgroup in member.subgroups:
        # The container's quota covers all cgroups inside; a quota of the subgroup, which a runtime
        # may set (crun does), would throttle a second time.
        ours = subgroup.quota and settings.cpu_max is not None
        inner = replace(
            setting,
            cgroup=subgroup.cgroup,
            values=quota_value(UNLIMITED if ours else None),
            defaults=_NO_VALUES,
        )
        yield DesiredCgroup(inner, Role.SUBGROUP, pod.uid, member.container, member.identity)


def _orphaned(orphan: OrphanedCgroup, pool: SharedPool) -> Iterator[DesiredCgroup]:
    """Confine an orphaned cgroup to the node's shared pool, the only CPUs without an owner."""
    own = pool.inherited(orphan.cgroup) or Setting(orphan.cgroup, cpus=pool.cpus or None)
    yield DesiredCgroup(own, Role.ORPHANED, "")
    for path in orphan.containers:
        yield DesiredCgroup(pool.below(path, pool.cpus or None), Role.ORPHANED, "")


def _pod_mems(
    pod: PodAllocation, allocated: Collection[ContainerSettings], bound: Mask
) -> Mask | None:
    """Return the nodes of a pod's cgroup, None while any container may use all of the host's.

    `bound` are those of containers without pinned memory, empty for all of the host's.
    """
    budget = _union(None, (block.nodes for block in pod.memory))
    if not pod.memory and any(settings.mems is None for settings in allocated):
        if not bound:
            return None
        budget = bound
    return _union(budget, (settings.mems for settings in allocated)) or None


def _union(first: Mask | None, others: Iterable[Mask | None]) -> Mask:
    union = EMPTY if first is None else first
    for mask in others:
        if mask is not None:
            union |= mask
    return union

"""What the files of one value of the cgroups of pods get: quotas, weights and limits.

The arithmetic of `cpu.max` is the kubelet's (pkg/kubelet/cm/helpers_linux.go, MilliCPUToQuota): a
limit of m millicores is m * 100 microseconds in each 100,000, at least 1,000. Which cgroup is
limited follows KEP-5526: a container with exclusive CPUs has no quota and is throttled by no cgroup
above it ("Interaction with CPU Quota Management"), and all containers of a pod with a budget
together stay within it ("Container Scope"; kubernetes.io, "Resource managers"). So what the others
of such a pod may use is what the exclusive CPUs leave of the budget:

- in pod scope they run in the pod's shared pool, which has as many CPUs as are left;
- elsewhere each has a quota of its own, and these quotas add up to no more than what is left.

The limit of a pod (`PodAllocation.cpu`) is the kubelet's (ResourceConfigForPod): the one stated for
the pod, else the sum over its containers, and none as soon as one of these has no limit.

Without a kubelet no other process sets the other files on the cgroups of pods. The rules are the
kubelet's (pkg/kubelet/cm, ResourceConfigForPod and qos_container_manager_linux.go): a weight
follows the CPU request, that of the cgroup of a QoS class the requests of its pods; memory is
limited where the pod or all of its containers state a limit; and huge pages are limited to what the
pod requests, to 0 for every other size. A container's own limit is written where its runtime set
none. The cgroup of all pods is limited to what is allocatable, of processes too
(getNodeAllocatableInternalAbsolute: hard eviction thresholds are not taken off). Where huge pages
count as memory (cgroup-v2.rst, memory_hugetlb_accounting), they are added to all that is written of
memory: a process that touches a huge page beyond memory.max is neither killed nor runs on.

Memory QoS (KEP-2570, "Mapping Rules"): what a Guaranteed pod requests is reserved by memory.min,
what a Burstable one requests by memory.low, of pods, of their containers, and in sum of all
cgroups above them. Containers of other pods than Guaranteed ones are slowed down from memory.high
on.
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import accumulate
from mmap import PAGESIZE
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocation import Isolation, Origin
from agent.pods.model import CPU, HUGEPAGES_PREFIX, MEMORY, PID, ContainerKind, QosClass
from agent.pods.quantity import Quantity
from agent.reconcile.target import huge_pages_of
from cgroupfs.apply import HUGETLB, NEEDED
from cgroupfs.names import Tier
from cgroupfs.settings import (
    CPU_MAX,
    CPU_WEIGHT,
    DEFAULT_PERIOD_US,
    MAX_QUOTA_US,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_MIN,
    MIN_QUOTA_US,
    NO_LIMIT,
    PIDS_MAX,
    UNLIMITED,
    VALUE_FILES,
    CpuMax,
    KernelController,
    controller_of,
    huge_pages,
    limit_text,
    reserved_pages,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.reconcile.target import PodClasses, Requested
    from sysfs.mask import Mask

#: cgroup v1's shares and what they become in v2: the kubelet still computes in shares
#: (MilliCPUToShares and getCPUWeight in pkg/kubelet/cm).
_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
SHARES_PER_CPU: Final = 1024
_MILLIS_PER_CPU: Final = 1000
_MAX_WEIGHT: Final = 10_000
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NEEDED: Final = frozenset(NEEDED)
#: What is limited of huge pages: with the second, mmap of too many fails, in place of SIGBUS later.
_PAGE_ROWS: Final = (huge_pages, reserved_pages)


class EnforcedControllers(Struct, frozen=True, dict=True):
    """The controllers whose files the agent writes, and by which settings it writes them.

    Files of controllers that are not in `controllers` are neither written nor compared.
    `page_sizes` are bytes; without any, huge pages are not limited.
    """

    controllers: frozenset[str] = frozenset(each.value for each in KernelController)
    page_sizes: tuple[int, ...] = ()
    #: The period of quotas in microseconds, None for no quotas (`cpuCFSQuota`).
    period_us: int | None = DEFAULT_PERIOD_US
    #: Whether requested memory is reserved (`memoryReservationPolicy`).
    reserves_memory: bool = False
    #: From which part of what a container may use beyond its request on it is slowed down
    #: (`memoryThrottlingFactor`); None: it is not.
    throttling: float | None = None
    #: What of the node is not allocatable, but for hard eviction: CPUs in millicores, memory types
    #: in bytes, processes (`PID`).
    reserved: Mapping[str, int] = MappingProxyType({})
    #: Whether pods together are limited to what is allocatable (`enforceNodeAllocatable`), or to
    #: the node's capacity.
    limits_all_pods: bool = True
    #: Whether huge pages count as memory (`cgroupfs.tree.counts_huge_pages`): limits and
    #: reservations of memory are then those of both.
    counts_huge_pages: bool = False
    #: How many processes the kernel allows, 0 where that is not known: they are not limited then.
    most_processes: int = 0

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The controllers that every cgroup of a pod needs: the threaded ones."""
        return tuple(name for name in NEEDED if name in self.controllers)

    @cached_property
    def further(self) -> tuple[str, ...]:
        """The controllers that limits need; a cgroup with processes cannot pass most of them on.

        Source: cgroup-v2.rst, "No Internal Process Constraint".
        """
        return tuple(each for each in KernelController if each in self.controllers - _NEEDED)

    @cached_property
    def pages(self) -> Mapping[str, int]:
        """The sizes of huge pages that are limited, by the name of their resource."""
        if HUGETLB not in self.controllers:
            return MappingProxyType({})
        return MappingProxyType(
            {f"{HUGEPAGES_PREFIX}{Quantity.of_bytes(size)}": size for size in self.page_sizes}
        )

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The files of one value that are read of a cgroup."""
        sizes = self.pages.values()
        return (*VALUE_FILES, *(row(size).file for size in sizes for row in _PAGE_ROWS))

    def counted(self, amounts: Mapping[str, int]) -> int:
        """Return the bytes of huge pages, among amounts by resource, that count as memory."""
        return huge_pages_of(amounts) if self.counts_huge_pages else 0

    def reserved_of(self, requested: Requested) -> int:
        """Return the bytes that are reserved of what pods request together."""
        pages = requested.huge_pages if self.counts_huge_pages else 0
        return requested.memory + pages if self.reserves_memory else 0

    def only(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values of files whose controllers are enforced."""
        return {f: text for f, text in values.items() if controller_of(f) in self.controllers}

    def among(self, available: Collection[str]) -> EnforcedControllers:
        """Return what of this a kernel with these controllers can enforce.

        `cpuset` and `cpu` are kept in any case; the start checks report when they are missing.
        """
        return replace(self, controllers=self.controllers & (frozenset(available) | _NEEDED))


EVERYTHING: Final = EnforcedControllers()


def cpu_weight(request_millis: int) -> int:
    """Return the weight of a CPU request, from 1 to 10,000."""
    shares = cpu_shares(request_millis)
    return 1 + (shares - _MIN_SHARES) * (_MAX_WEIGHT - 1) // (_MAX_SHARES - _MIN_SHARES)


def cpu_shares(request_millis: int) -> int:
    """Return the shares of a CPU request."""
    shares = request_millis * SHARES_PER_CPU // _MILLIS_PER_CPU
    return min(max(shares, _MIN_SHARES), _MAX_SHARES)


def pod_values(
    pod: PodAllocation, quota: CpuMax | None, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the files of one value of a pod's own cgroup with their texts.

    For an imported pod without a specification only the `quota` is set, where it is known; memory
    without a limit is left as it is.
    """
    values = quota_value(quota)
    if pod.origin is Origin.DECIDED:
        request = 0 if pod.qos is QosClass.BEST_EFFORT else pod.cpu.request_millis or 0
        unstated = dict.fromkeys(enforced.pages, 0)
        values |= {CPU_WEIGHT: str(cpu_weight(request))}
        values |= _limits({**unstated, **pod.limits}, enforced, enforced.counted(pod.limits))
        request = pod.requests.get(MEMORY, 0) + enforced.counted(pod.requests)
        values |= _reservation(pod, request, enforced)
    return enforced.only(values)


def quota_value(quota: CpuMax | None) -> dict[str, str]:
    """Return the value of `cpu.max`, nothing where the file is left as it is."""
    return {} if quota is None else {CPU_MAX: str(quota)}


_RESERVED_BY: Final = {QosClass.GUARANTEED: MEMORY_MIN, QosClass.BURSTABLE: MEMORY_LOW}


def _reservation(pod: PodAllocation, size: int, enforced: EnforcedControllers) -> dict[str, str]:
    """Return the file that reserves memory for a pod or a container of it, none for BestEffort."""
    if not enforced.reserves_memory or pod.qos not in _RESERVED_BY:
        return {}
    return {_RESERVED_BY[pod.qos]: limit_text(size)}


def container_memory(
    pod: PodAllocation,
    container: ContainerAllocation,
    enforced: EnforcedControllers,
    allocatable: int,
) -> Mapping[str, str]:
    """Return what Memory QoS writes of a container; nothing without a known specification.

    `allocatable` is the node's memory in bytes, which stands for a limit that is not stated.
    """
    if pod.origin is not Origin.DECIDED:
        return _NOTHING
    request = container.memory_request
    values = _reservation(pod, request + enforced.counted(container.limits), enforced)
    if enforced.throttling is not None:
        high = None
        if pod.qos is not QosClass.GUARANTEED:
            high = _throttled_from(request, container.limits.get(MEMORY, 0), enforced, allocatable)
        pages = enforced.counted(_usable_pages(pod, container, enforced))
        values[MEMORY_HIGH] = NO_LIMIT if high is None else limit_text(high + pages)
    return enforced.only(values)


def ephemeral_memory(enforced: EnforcedControllers, allocatable: int) -> Mapping[str, str]:
    """Return what Memory QoS writes of an ephemeral container, which can state no resources.

    Whatever the class of its pod, the kubelet goes by the container alone: nothing of it is
    reserved, and it is slowed down as one that states nothing.
    """
    if enforced.throttling is None:
        return _NOTHING
    high = _throttled_from(0, 0, enforced, allocatable)
    return enforced.only({MEMORY_HIGH: NO_LIMIT if high is None else limit_text(high)})


def _throttled_from(
    request: int, limit: int, enforced: EnforcedControllers, allocatable: int
) -> int | None:
    """Return the bytes from which on a container is slowed down, None where it never is.

    Source: KEP-2570, "Alpha v1.27"; with the fix of kubernetes/kubernetes#138139, which counts a
    container that neither requests memory nor is limited as any other.
    """
    if request == limit and request:
        return None
    high = int(request + ((limit or allocatable) - request) * (enforced.throttling or 0))
    return high if high - high % PAGESIZE > request else None


def class_values(
    classes: PodClasses, tier: Tier, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the values of the cgroup of a QoS class.

    Without reservations memory.low of Burstable pods is 0, so that none below it counts.
    """
    values = {CPU_WEIGHT: str(cpu_weight(classes.of_tier(tier).millis))}
    file = {Tier.BURSTABLE: MEMORY_LOW, Tier.SHARED: MEMORY_MIN}.get(tier)
    if file is not None:
        values[file] = limit_text(enforced.reserved_of(classes.of_tier(tier)))
    return enforced.only(values)


def node_values(
    classes: PodClasses, amounts: Mapping[str, int], enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the values of the cgroup of all pods.

    `amounts` are what is allocatable (`allocatable_amounts`). The kubelet reserves by memory.min
    there, too, what Burstable pods request; that does not reach these, since no cgroup has more of
    memory.low than its parent (cgroup-v2.rst, memory.low), so that both are set.
    """
    burstable = enforced.reserved_of(classes.burstable)
    guaranteed = enforced.reserved_of(classes.all_guaranteed)
    values = {
        MEMORY_MIN: limit_text(guaranteed + burstable),
        MEMORY_LOW: limit_text(burstable),
    }
    if CPU in amounts:
        values[CPU_WEIGHT] = str(cpu_weight(amounts[CPU]))
    if enforced.most_processes:
        kept = enforced.reserved.get(PID, 0) if enforced.limits_all_pods else 0
        values[PIDS_MAX] = str(max(enforced.most_processes - kept, 0))
    # The node's capacity of memory has the huge pages in it; what is allocatable has not.
    pages = enforced.counted(amounts) if enforced.limits_all_pods else 0
    return enforced.only(values | _limits(amounts, enforced, pages))


def allocatable_amounts(
    capacity: Mapping[str, int], enforced: EnforcedControllers
) -> dict[str, int]:
    """Return what pods may use of the node's capacity; memory without that of huge pages."""
    left = {name: max(size - enforced.reserved.get(name, 0), 0) for name, size in capacity.items()}
    if MEMORY in left:
        left[MEMORY] = max(left[MEMORY] - huge_pages_of(left), 0)
    return left


def container_defaults(
    pod: PodAllocation, container: ContainerAllocation, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the limits of a container, for where its runtime set none.

    They are those that the container states. It has no huge pages of a size that others of the pod
    have and it does not state; of a budget that the pod states for all, each may use any.
    """
    unstated = dict.fromkeys(_denied_pages(pod, container, enforced), 0)
    if not (container.limits or unstated):
        return _NOTHING
    pages = enforced.counted(_usable_pages(pod, container, enforced))
    return enforced.only(_limits({**unstated, **container.limits}, enforced, pages))


def _denied_pages(
    pod: PodAllocation, container: ContainerAllocation, enforced: EnforcedControllers
) -> Iterator[str]:
    """Yield the sizes of huge pages of a pod of which a container is to have none."""
    for name in enforced.pages.keys() - container.limits.keys():
        if 0 < pod.limits.get(name, 0) <= sum(c.limits.get(name, 0) for c in pod.containers):
            yield name


def _usable_pages(
    pod: PodAllocation, container: ContainerAllocation, enforced: EnforcedControllers
) -> Mapping[str, int]:
    """Return the limits that bind a container: its own, else the pod's."""
    denied = frozenset(_denied_pages(pod, container, enforced))
    of_pod = {name: size for name, size in pod.limits.items() if name not in denied}
    return {**of_pod, **container.limits}


def _limits(stated: Mapping[str, int], enforced: EnforcedControllers, pages: int) -> dict[str, str]:
    """Return the texts of limits in bytes, which are stated by memory type.

    `pages` are those of the huge pages that count as memory.
    """
    limits = {MEMORY_MAX: limit_text(stated[MEMORY] + pages)} if MEMORY in stated else {}
    for resource, size in enforced.pages.items():
        if resource in stated:
            text = limit_text(stated[resource], size)
            limits |= {row(size).file: text for row in _PAGE_ROWS}
    return limits


#: The least that the kernel takes as a quota, in millicores.
_LEAST: Final = MIN_QUOTA_US * _MILLIS_PER_CPU // DEFAULT_PERIOD_US
#: What each container gets before any is raised to its limit, as far as there is enough, in
#: millicores: a container that requests nothing would hardly run otherwise.
_FLOOR: Final = 100
#: A pod's quota that exceeds all of its use by this fraction of the use never throttles. The
#: kernel hands a quota out in slices, of which each CPU may keep one, and a cgroup may overrun its
#: own quota within a tick. Measured on Linux 6.12, two busy exclusive CPUs and two containers at
#: their quotas of one CPU: of 50 periods 25 were throttled with nothing to spare, 4 with a
#: twentieth, 2 with a tenth, none with a quarter.
_SPARE: Final = 4


class PodQuotas(Struct, frozen=True):
    """The quotas of a pod's cgroup and of its containers by name; None leaves a file as it is.

    `unidentified` is for a cgroup in the pod that matches no container, `ephemeral` for one of a
    container that the pod's specification does not have.
    """

    pod: CpuMax | None
    containers: Mapping[str, CpuMax | None]
    unidentified: CpuMax | None = None
    ephemeral: CpuMax | None = None


class _Phase(Struct, frozen=True):
    """A phase of a pod's life: which containers run, and what they may use, in millicores.

    `fixed` is what containers may use that run on CPUs of the pod: exclusive ones and the pod
    shared pool. `members` are limited by a quota. So are the first `beside` of the pod's sidecars
    with a quota, which run beside a standard init container. `spare` is what the pod's limit leaves
    when each container with a quota has what it requests.
    """

    fixed: int
    members: Sequence[ContainerAllocation]
    beside: int
    spare: int


def cpu_max(limit_millis: int, period_us: int = DEFAULT_PERIOD_US) -> CpuMax:
    """Return the quota of a limit in millicores; 0 means unlimited, as in the kubelet."""
    if not limit_millis:
        return UNLIMITED
    quota = limit_millis * period_us // _MILLIS_PER_CPU
    # More than the kernel can count is more than any machine has: no limit.
    return UNLIMITED if quota > MAX_QUOTA_US else CpuMax(max(quota, MIN_QUOTA_US), period_us)


def pod_quotas(pod: PodAllocation, period_us: int | None = DEFAULT_PERIOD_US) -> PodQuotas:
    """Return the quotas of a pod's cgroup and of its containers in each period, none without one.

    Containers with exclusive CPUs have none, unless the feature gate
    DisableCPUQuotaWithExclusiveCPUs is off. Any other container has its own limit, or the pod's
    where it states none (kubelet, getCPULimit). A quota of the pod that could throttle exclusive
    CPUs is lifted, and what these leave of the limit is divided instead: to each container what it
    requests, then up to the stated limits, then evenly. The pod's own quota is not written where
    the limit is unknown, as for an imported pod without a specification.
    """
    limit = pod.cpu.limit_millis
    if period_us is None:
        return PodQuotas(UNLIMITED, dict.fromkeys([c.name for c in pod.containers], UNLIMITED))
    cap_of = partial(cpu_max, period_us=period_us)
    if not limit:
        known = limit is not None or pod.origin is Origin.DECIDED
        own = _by_own_limit(pod.containers, None, cap_of)
        return PodQuotas(UNLIMITED if known else None, own)
    own = _by_own_limit(pod.containers, limit, cap_of)
    if not any(map(_is_unthrottled, pod.containers)):
        return PodQuotas(cap_of(limit), own)
    phases = _phases(pod, limit)
    caps = _divided(phases)
    quotas = own | {name: cap_of(cap) for name, cap in caps.items()}
    lifted = pod.quota_disabled or not _always_leave_room(phases, caps, limit)
    in_pool = any(container.isolation is Isolation.POD for container in pod.containers)
    bound = _of_others(pod, phases[0], limit)
    others = cap_of(bound)
    return PodQuotas(
        UNLIMITED if lifted else cap_of(limit),
        MappingProxyType(quotas),
        None if in_pool else others,
        others,
    )


def _of_others(pod: PodAllocation, up: _Phase, limit: int) -> int:
    """Return the limit, 0 for none, of a cgroup that matches no container of the specification.

    A pod that states a limit beyond those of its containers has its others within what exclusive
    CPUs leave of that. Where it states nothing for them, or nothing is left, they have the bound
    that the kubelet has for them, which is the pod's quota: all of the pod's limit, or none where
    the kubelet removes the quota of the pod.
    """
    rest, stated = limit - up.fixed, [member.cpu.limit_millis for member in up.members]
    beyond = None in stated or rest > sum(filter(None, stated))
    if rest > 0 and beyond:
        return rest
    return 0 if pod.quota_disabled else limit


def _is_unthrottled(container: ContainerAllocation) -> bool:
    return container.isolation is Isolation.CONTAINER and container.quota_disabled


def _by_own_limit(
    containers: Iterable[ContainerAllocation],
    of_pod: int | None,
    cap_of: Callable[[int], CpuMax],
) -> dict[str, CpuMax | None]:
    quotas: dict[str, CpuMax | None] = {}
    for container in containers:
        limit = container.cpu.limit_millis or of_pod
        if _is_unthrottled(container):
            quotas[container.name] = UNLIMITED
        else:
            quotas[container.name] = None if limit is None else cap_of(limit)
    return quotas


def _phases(pod: PodAllocation, limit: int) -> tuple[_Phase, ...]:
    """Return the phase of a started pod, then those of its standard init containers."""
    running = [c for c in pod.containers if c.kind is not ContainerKind.INIT]
    fixed = _millis(_own_cpus(running))
    members = [container for container in running if _has_quota(container)]
    spare = limit - fixed - sum(map(_request, members))
    return (_Phase(fixed, members, 0, spare), *_starting(pod.containers, limit))


def _starting(containers: Iterable[ContainerAllocation], limit: int) -> Iterator[_Phase]:
    own_cpus = beside = requested = 0
    for container in containers:
        sharing = [container] if _has_quota(container) else []
        bits = own_cpus | _own_cpus([container])
        if container.kind is ContainerKind.INIT:
            spare = limit - _millis(bits) - requested - sum(map(_request, sharing))
            yield _Phase(_millis(bits), sharing, beside, spare)
        elif container.kind is ContainerKind.SIDECAR:
            own_cpus = bits
            beside += len(sharing)
            requested += sum(map(_request, sharing))


def _own_cpus(containers: Iterable[ContainerAllocation]) -> int:
    """Return the CPUs (bits) of the containers that are limited by their cpuset."""
    bits = 0
    for container in containers:
        if not _has_quota(container) and container.cpus is not None:
            bits |= container.cpus.bits
    return bits


def _has_quota(container: ContainerAllocation) -> bool:
    """Return whether a container is limited by its quota, not by a cpuset of the pod's own CPUs."""
    return container.isolation is Isolation.HOST or (
        container.isolation is Isolation.CONTAINER and not container.quota_disabled
    )


def _millis(bits: int) -> int:
    return bits.bit_count() * _MILLIS_PER_CPU


def _request(container: ContainerAllocation) -> int:
    return max(container.cpu.request_millis or 0, _LEAST)


def _divided(phases: Sequence[_Phase]) -> dict[str, int]:
    """Return the cap in millicores of each container that has a quota.

    A cap applies for the whole life of its container, so sidecars get no more than the standard
    init containers beside them can spare.
    """
    up, *starting = phases
    raised = _raised(up.members, up.spare)
    sidecars = [c for c in up.members if c.kind is ContainerKind.SIDECAR]
    tightest = min((phase.spare for phase in starting if phase.beside), default=up.spare)
    if sum(raised[c.name] for c in sidecars) > tightest:
        apps = [c for c in up.members if c.kind is not ContainerKind.SIDECAR]
        raised = _raised(sidecars, tightest)
        raised |= _raised(apps, up.spare - sum(raised.values()))
    above = list(accumulate((raised[c.name] for c in sidecars), initial=0))
    for phase in starting:
        raised |= _raised(phase.members, phase.spare - above[phase.beside])
    members = (container for phase in phases for container in phase.members)
    return {c.name: _request(c) + raised[c.name] for c in members}


def _raised(members: Sequence[ContainerAllocation], spare: int) -> dict[str, int]:
    """Divide `spare` millicores among containers, above what each of them requests."""
    raised = dict.fromkeys([container.name for container in members], 0)
    for most in (_up_to_floor, _up_to_limit, _up_to_any):
        rooms = {c.name: most(c, spare) - raised[c.name] for c in members}
        for name, more in _evenly(rooms, spare).items():
            raised[name] += more
            spare -= more
    return raised


def _up_to_floor(container: ContainerAllocation, _spare: int) -> int:
    return min(_FLOOR, container.cpu.limit_millis or _FLOOR) - _request(container)


def _up_to_limit(container: ContainerAllocation, _spare: int) -> int:
    return (container.cpu.limit_millis or 0) - _request(container)


def _up_to_any(container: ContainerAllocation, spare: int) -> int:
    # What the floor gave is taken off again by the caller.
    return 0 if container.cpu.limit_millis else spare + _FLOOR


def _evenly(rooms: Mapping[str, int], amount: int) -> dict[str, int]:
    """Divide an amount as evenly as the rooms allow, in whole millicores; never more than it.

    Equal rooms get equal shares: the indivisible rest is not given out, so that equal containers
    get equal quotas.
    """
    amount = max(amount, 0)
    waiting = sorted(room for room in rooms.values() if room > 0)
    level = 0
    for place, room in enumerate(waiting):
        level = min(room, amount // (len(waiting) - place))
        amount -= level
        if level < room:
            break
    return {name: min(room, level) for name, room in rooms.items() if room > 0}


def _always_leave_room(phases: Sequence[_Phase], caps: Mapping[str, int], limit: int) -> bool:
    """Return whether a pod's limit is so far above what it may use that it never throttles."""
    sidecars = [c for c in phases[0].members if c.kind is ContainerKind.SIDECAR]
    above = list(accumulate((caps[c.name] for c in sidecars), initial=0))
    uses = [
        phase.fixed + above[phase.beside] + sum(caps[c.name] for c in phase.members)
        for phase in phases
    ]
    return all(use + use // _SPARE <= limit for use in uses)


class ContainerSettings(Struct, frozen=True):
    """CPUs, memory nodes and quota of one container's cgroup; None leaves a setting as it is.

    `exclusive`: the CPUs are out of the node's shared pool.
    """

    cpus: Mask | None
    mems: Mask | None = None
    cpu_max: CpuMax | None = None
    exclusive: bool = False


def container_settings(
    container: ContainerAllocation, shared_pool: Mask, quotas: PodQuotas
) -> ContainerSettings:
    """Return the settings of a container: its own CPUs, or the node's current shared pool."""
    cpus = shared_pool if container.cpus is None else container.cpus
    return ContainerSettings(
        cpus=cpus or None,
        mems=container.mems or None,
        cpu_max=quotas.containers[container.name],
        exclusive=container.cpus is not None,
    )


def default_settings(
    pod: PodAllocation, shared_pool: Mask, cpu_max: CpuMax | None = None
) -> ContainerSettings:
    """Return the settings of a sandbox or of an unidentified cgroup of a pod.

    The CPUs are the pod's shared pool where there is one, else the node's: never the exclusive
    CPUs of another container.
    """
    own = pod_shared_pool(pod)
    return ContainerSettings(
        cpus=own or shared_pool or None, cpu_max=cpu_max, exclusive=own is not None
    )


def ephemeral_settings(shared_pool: Mask, quotas: PodQuotas) -> ContainerSettings:
    """Return the settings of a container that the pod's specification does not have.

    It has no part in the pod's budget: its CPUs are the node's shared pool, never the pod's. The
    pod's quota and memory bound it (KEP-5526, "Ephemeral Containers").
    """
    return ContainerSettings(cpus=shared_pool or None, cpu_max=quotas.ephemeral)


def pod_shared_pool(pod: PodAllocation) -> Mask | None:
    """Return the CPUs that the containers of a pod-level pod share, None when they share none.

    A standard init container may run on more CPUs than the pool, so its set is not used.
    """
    return next(
        (
            container.cpus
            for container in pod.containers
            if container.isolation is Isolation.POD and container.kind is not ContainerKind.INIT
        ),
        None,
    )


def all_alike(pod: PodAllocation) -> bool:
    """Return whether every container of a pod has the same settings."""
    quotas = pod_quotas(pod).containers
    first, *rest = pod.containers
    alike = (first.cpus, first.mems, quotas[first.name], first.limits)
    return all((c.cpus, c.mems, quotas[c.name], c.limits) == alike for c in rest)

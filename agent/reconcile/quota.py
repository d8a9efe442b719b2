"""What `cpu.max` the cgroups of a pod get.

The arithmetic is the kubelet's (pkg/kubelet/cm/helpers_linux.go, MilliCPUToQuota): a limit of m
millicores is m * 100 microseconds in each 100,000, at least 1,000. Which cgroup is limited follows
KEP-5526: a container with exclusive CPUs has no quota and is throttled by no cgroup above it
("Interaction with CPU Quota Management"), and all containers of a pod with a budget together stay
within it ("Container Scope"; kubernetes.io, "Resource managers"). So what the others of such a pod
may use is what the exclusive CPUs leave of the budget:

- in pod scope they run in the pod's shared pool, which has as many CPUs as are left;
- elsewhere each has a quota of its own, and these quotas add up to no more than what is left.

The limit of a pod (`PodAllocation.cpu`) is the kubelet's (ResourceConfigForPod): the one stated for
the pod, else the sum over its containers, and none as soon as one of these has no limit.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocation import Isolation, Origin
from agent.pods.model import HUGEPAGES_PREFIX, MEMORY, ContainerKind, QosClass
from agent.pods.quantity import Quantity
from cgroupfs.apply import HUGETLB, NEEDED
from cgroupfs.settings import (
    CPU_MAX,
    CPU_WEIGHT,
    DEFAULT_PERIOD_US,
    MAX_QUOTA_US,
    MEMORY_MAX,
    MIN_QUOTA_US,
    UNLIMITED,
    VALUE_FILES,
    CpuMax,
    KernelController,
    controller_of,
    huge_pages,
    limit_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from sysfs.mask import Mask


# --- limits ---------------------------------------------------------------------------------------
# What the files of one value of the cgroups of pods get.
#
# Without a kubelet no other process sets them on the cgroups of pods. The rules are the kubelet's
# (pkg/kubelet/cm, ResourceConfigForPod and qos_container_manager_linux.go): a weight follows the
# CPU request, that of the cgroup of a QoS class the requests of its pods; memory is limited where
# the pod or all of its containers state a limit; and huge pages are limited to what the pod
# requests, to 0 for every other size. A container's own limit is written where its runtime set
# none.

#: cgroup v1's shares and what they become in v2: the kubelet still computes in shares
#: (MilliCPUToShares and getCPUWeight in pkg/kubelet/cm).
_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
_SHARES_PER_CPU: Final = 1024
_MILLIS_PER_CPU: Final = 1000
_MAX_WEIGHT: Final = 10_000
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NEEDED: Final = frozenset(NEEDED)


class EnforcedControllers(Struct, frozen=True, dict=True):
    """The controllers whose files the agent writes, and the sizes of huge pages it limits.

    Files of controllers that are not in `controllers` are neither written nor compared.
    `page_sizes` are bytes; without any, huge pages are not limited.
    """

    controllers: frozenset[str] = frozenset(each.value for each in KernelController)
    page_sizes: tuple[int, ...] = ()

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The controllers that every cgroup of a pod needs: the threaded ones."""
        return tuple(name for name in NEEDED if name in self.controllers)

    @cached_property
    def further(self) -> tuple[str, ...]:
        """The controllers that limits need; a cgroup with processes cannot pass them on.

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
        return (*VALUE_FILES, *(huge_pages(size).file for size in self.pages.values()))

    def only(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values of files whose controllers are enforced."""
        return {f: text for f, text in values.items() if controller_of(f) in self.controllers}

    def among(self, available: Collection[str]) -> EnforcedControllers:
        """Return what of this a kernel with these controllers can enforce.

        `cpuset` and `cpu` are kept in any case; the start checks report when they are missing.
        """
        return EnforcedControllers(
            self.controllers & (frozenset(available) | _NEEDED), self.page_sizes
        )


EVERYTHING: Final = EnforcedControllers()


def cpu_weight(request_millis: int) -> int:
    """Return the weight of a CPU request, from 1 to 10,000."""
    shares = request_millis * _SHARES_PER_CPU // _MILLIS_PER_CPU
    shares = min(max(shares, _MIN_SHARES), _MAX_SHARES)
    return 1 + (shares - _MIN_SHARES) * (_MAX_WEIGHT - 1) // (_MAX_SHARES - _MIN_SHARES)


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
        values |= _limits({**unstated, **pod.limits}, enforced)
    return enforced.only(values)


def quota_value(quota: CpuMax | None) -> dict[str, str]:
    """Return the value of `cpu.max`, nothing where the file is left as it is."""
    return {} if quota is None else {CPU_MAX: str(quota)}


def container_defaults(
    container: ContainerAllocation, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the limits that a container states, for where its runtime set none."""
    if not container.limits:
        return _NOTHING
    return enforced.only(_limits(container.limits, enforced))


def _limits(stated: Mapping[str, int], enforced: EnforcedControllers) -> dict[str, str]:
    """Return the texts of limits in bytes, which are stated by memory type."""
    limits = {MEMORY_MAX: limit_text(stated[MEMORY])} if MEMORY in stated else {}
    for resource, size in enforced.pages.items():
        if resource in stated:
            limits[huge_pages(size).file] = limit_text(stated[resource], size)
    return limits


# --- quota ----------------------------------------------------------------------------------------

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

    `unidentified` is for a cgroup in the pod that matches no container.
    """

    pod: CpuMax | None
    containers: Mapping[str, CpuMax | None]
    unidentified: CpuMax | None = None


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


def cpu_max(limit_millis: int) -> CpuMax:
    """Return the quota of a limit in millicores; 0 means unlimited, as in the kubelet."""
    if not limit_millis:
        return UNLIMITED
    quota = limit_millis * DEFAULT_PERIOD_US // _MILLIS_PER_CPU
    # More than the kernel can count is more than any machine has: no limit.
    return UNLIMITED if quota > MAX_QUOTA_US else CpuMax(max(quota, MIN_QUOTA_US))


def pod_quotas(pod: PodAllocation) -> PodQuotas:
    """Return the quotas of a pod's cgroup and of its containers.

    Containers with exclusive CPUs have none, unless the feature gate
    DisableCPUQuotaWithExclusiveCPUs is off. Any other container has its own limit, or the pod's
    where it states none (kubelet, getCPULimit). A quota of the pod that could throttle exclusive
    CPUs is lifted, and what these leave of the limit is divided instead: to each container what it
    requests, then up to the stated limits, then evenly. The pod's own quota is not written where
    the limit is unknown, as for an imported pod without a specification.
    """
    limit = pod.cpu.limit_millis
    if not limit:
        known = limit is not None or pod.origin is Origin.DECIDED
        return PodQuotas(UNLIMITED if known else None, _by_own_limit(pod.containers, None))
    if not any(map(_is_unthrottled, pod.containers)):
        return PodQuotas(cpu_max(limit), _by_own_limit(pod.containers, limit))
    phases = _phases(pod, limit)
    caps = _divided(phases)
    quotas = _by_own_limit(pod.containers, limit) | {n: cpu_max(cap) for n, cap in caps.items()}
    lifted = pod.quota_disabled or not _always_leave_room(phases, caps, limit)
    in_pool = any(container.isolation is Isolation.POD for container in pod.containers)
    return PodQuotas(
        UNLIMITED if lifted else cpu_max(limit),
        MappingProxyType(quotas),
        None if in_pool else _of_others(phases[0], limit),
    )


def _of_others(up: _Phase, limit: int) -> CpuMax:
    """Return the quota of a cgroup that matches no container of the specification.

    A pod that states a limit beyond those of its containers has its others within what exclusive
    CPUs leave of that. Where it states nothing for them, or nothing is left, they have no quota: an
    ephemeral container runs in the node's pool, and the kubelet gives it none.
    """
    rest, stated = limit - up.fixed, [member.cpu.limit_millis for member in up.members]
    beyond = None in stated or rest > sum(filter(None, stated))
    return cpu_max(rest) if rest > 0 and beyond else UNLIMITED


def _is_unthrottled(container: ContainerAllocation) -> bool:
    return container.isolation is Isolation.CONTAINER and container.quota_disabled


def _by_own_limit(
    containers: Iterable[ContainerAllocation], of_pod: int | None
) -> dict[str, CpuMax | None]:
    quotas: dict[str, CpuMax | None] = {}
    for container in containers:
        limit = container.cpu.limit_millis or of_pod
        if _is_unthrottled(container):
            quotas[container.name] = UNLIMITED
        else:
            quotas[container.name] = None if limit is None else cpu_max(limit)
    return quotas


# --- the phases of a pod's life -----------------------------------------------------------------


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


# --- dividing what exclusive CPUs leave ---------------------------------------------------------


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


# --- container ------------------------------------------------------------------------------------
# The settings that the cgroup of one container should have.


class ContainerSettings(Struct, frozen=True):
    """CPUs, memory nodes and quota; None leaves a setting as it is.

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

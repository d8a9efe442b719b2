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

from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocations.allocation import Isolation
from agent.managers.allocations.origin import Origin
from agent.pods.model import ContainerKind
from cgroupfs.settings import DEFAULT_PERIOD_US, MAX_QUOTA_US, MIN_QUOTA_US, UNLIMITED, CpuMax

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation

_MILLIS_PER_CPU: Final = 1000
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

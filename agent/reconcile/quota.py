"""The quotas (`cpu.max`) of a pod's cgroup and of the cgroups in it.

In: the allocation of a pod and the period of quotas. Out: `PodQuotas`. No quota that is written
throttles a container with exclusive CPUs, unless the feature gate DisableCPUQuotaWithExclusiveCPUs
is off. The other containers of its pod divide what these CPUs leave of the pod's limit; each has
10m at least, the kernel's smallest quota.

Words. A container is *bound by its quota* or by a cpuset of the pod's own CPUs. A *phase* is the
turn of an init container or the time of the started pod. What a phase can *spare* is the limit
without the CPUs of cpusets and without the requests of the containers bound by their quota.

Sources. The amounts are the kubelet's (pkg/kubelet/cm/helpers_linux.go, MilliCPUToQuota): a limit
of m millicores is m * 100 microseconds in each 100,000, at least 1,000. The limit of a pod is the
kubelet's (ResourceConfigForPod): the stated one, else the sum over the containers; none if one of
these has no limit. Which cgroups have a quota follows KEP-5526 ("Interaction with CPU Quota
Management", "Container Scope") and kubernetes.io, "Resource managers".

Example: a pod states a limit of 4 CPUs. `app` has 2 exclusive CPUs; `web` requests 500m, the
sidecar `log` requests 250m and is limited to 500m, and the init container `setup`, which runs
beside `log` before the others, requests 1000m.

1. `app` has no quota. The other two have 2000m of the limit: 750m are requested, 1250m are spare.
2. `log` is raised to its limit, 500m. `web` gets the rest: 1500m.
3. `setup` may use the whole limit but for what `log` may: 3500m.
4. All together may use all of the limit, so a quota of the pod could throttle `app`: it is lifted.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocation import Isolation, Origin
from agent.pods.model import ContainerKind
from cgroupfs.settings import DEFAULT_PERIOD_US, MAX_QUOTA_US, MIN_QUOTA_US, UNLIMITED, CpuMax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation

_MILLIS_PER_CPU: Final = 1000
#: The smallest quota that the kernel takes, in millicores.
_LEAST: Final = MIN_QUOTA_US * _MILLIS_PER_CPU // DEFAULT_PERIOD_US
#: Up to so many millicores each container is raised first, if that can be spared: one without a
#: request would hardly run otherwise.
_FLOOR: Final = 100
#: A quota of the pod counts as one that does not throttle if it exceeds what the pod may use by the
#: use divided by this: by a quarter. The kernel hands a quota out in slices, of which each CPU may
#: keep one, and a cgroup may exceed its own quota within a tick. Measured on Linux 6.12 with two
#: busy exclusive CPUs and two containers at their quotas of one CPU: of 50 periods, 25 were
#: throttled with nothing to spare, 4 with a twentieth, 2 with a tenth, none with a quarter.
_HEADROOM_DIVISOR: Final = 4


class PodQuotas(Struct, frozen=True):
    """The quotas of a pod's cgroups; None leaves a file as it is."""

    #: Of the pod's own cgroup.
    pod: CpuMax | None
    #: Of the containers by name.
    containers: Mapping[str, CpuMax | None]
    #: Of a cgroup in the pod that matches no container.
    unidentified: CpuMax | None = None
    #: Of a container that is not in the pod's specification.
    ephemeral: CpuMax | None = None


def cpu_max(limit_millis: int, period_us: int = DEFAULT_PERIOD_US) -> CpuMax:
    """Return the quota of a limit in millicores; 0 means unlimited, as in the kubelet."""
    if not limit_millis:
        return UNLIMITED
    quota = limit_millis * period_us // _MILLIS_PER_CPU
    # A quota above the kernel's largest one binds nothing.
    return UNLIMITED if quota > MAX_QUOTA_US else CpuMax(max(quota, MIN_QUOTA_US), period_us)


def pod_quotas(pod: PodAllocation, period_us: int | None = DEFAULT_PERIOD_US) -> PodQuotas:
    """Return the quotas of a pod's cgroups; without a period its containers are unlimited."""
    # 1. Without quotas (`cpuCFSQuota: false`) nothing is limited.
    if period_us is None:
        return PodQuotas(UNLIMITED, dict.fromkeys([c.name for c in pod.containers], UNLIMITED))
    quota_of = partial(cpu_max, period_us=period_us)
    limit = pod.cpu.limit_millis
    # 2. A container has its own limit, or the pod's where it states none (getCPULimit).
    quotas = _by_stated_limit(pod.containers, limit, quota_of)
    # 3. Without a limit, the pod is unlimited. The limit of an imported pod may be unknown; its
    #    quota is left as it is.
    if not limit:
        known = limit is not None or pod.origin is Origin.DECIDED
        return PodQuotas(UNLIMITED if known else None, quotas)
    # 4. Where every container may be throttled, the pod has its limit.
    if not any(map(_is_unthrottled, pod.containers)):
        return PodQuotas(quota_of(limit), quotas)
    # 5. Else the containers with a quota divide what exclusive CPUs leave of the limit, in each
    #    phase of the pod's life. Containers in the pod's shared pool have no part in that: the
    #    pool has only as many CPUs as are left.
    phases = _phases(pod.containers, limit)
    shares = _divide(phases)
    quotas |= {name: quota_of(share) for name, share in shares.items()}
    # 6. The quota of the pod is lifted where it could throttle exclusive CPUs.
    lifted = pod.quota_disabled or not _never_throttles(limit, phases, shares)
    # 7. A cgroup that is no container of the specification has a limit of its own, but for one that
    #    cannot be identified where containers run in the pod's pool: it has the pool's CPUs.
    others = quota_of(_limit_of_others(pod, phases[0], limit))
    in_pool = any(container.isolation is Isolation.POD for container in pod.containers)
    return PodQuotas(
        pod=UNLIMITED if lifted else quota_of(limit),
        containers=MappingProxyType(quotas),
        unidentified=None if in_pool else others,
        ephemeral=others,
    )


class _Phase(Struct, frozen=True):
    """A phase of a pod's life, in millicores: an init container's turn, or the started pod."""

    #: The CPUs of the containers that are bound by a cpuset: exclusive ones, the pod's pool.
    cpuset_millis: int
    #: The containers bound by their quota; of an init container's turn without the sidecars.
    containers: Sequence[ContainerAllocation]
    #: How many sidecars bound by their quota run beside the init container: the pod's first ones.
    sidecars: int
    #: What it can spare; negative where more is requested than the limit has.
    spare: int


def _phases(containers: Sequence[ContainerAllocation], limit: int) -> tuple[_Phase, ...]:
    """Return the phase of the started pod, then those of its standard init containers."""
    lasting = [c for c in containers if c.kind is not ContainerKind.INIT]
    millis = _cpuset_millis(lasting)
    limited = [container for container in lasting if _is_bound_by_quota(container)]
    spare = limit - millis - sum(map(_request, limited))
    return (_Phase(millis, limited, 0, spare), *_init_phases(containers, limit))


def _init_phases(containers: Iterable[ContainerAllocation], limit: int) -> Iterator[_Phase]:
    sidecars: list[ContainerAllocation] = []
    for container in containers:
        if container.kind is ContainerKind.SIDECAR:
            sidecars.append(container)
        elif container.kind is ContainerKind.INIT:
            running = [*sidecars, container]
            millis = _cpuset_millis(running)
            limited = [each for each in running if _is_bound_by_quota(each)]
            spare = limit - millis - sum(map(_request, limited))
            yield _Phase(
                millis,
                [container] if _is_bound_by_quota(container) else [],
                sum(map(_is_bound_by_quota, sidecars)),
                spare,
            )


def _divide(phases: Sequence[_Phase]) -> dict[str, int]:
    """Return what each container with a quota may use, in millicores.

    A quota is the same in every phase of the container's life.
    """
    started, *starting = phases
    sidecars = _sidecars(started)
    # 1. Divide what the started pod can spare.
    raised = _raise(started.containers, started.spare)
    # 2. If its sidecars then have more than the tightest turn of an init container beside them can
    #    spare, they divide only that, and the other containers divide the rest.
    tightest = min((phase.spare for phase in starting if phase.sidecars), default=started.spare)
    if sum(raised[c.name] for c in sidecars) > tightest:
        apps = [c for c in started.containers if c.kind is not ContainerKind.SIDECAR]
        raised = _raise(sidecars, tightest)
        raised |= _raise(apps, started.spare - sum(raised.values()))
    # 3. An init container gets what the sidecars beside it leave.
    of_sidecars = list(accumulate((raised[c.name] for c in sidecars), initial=0))
    for phase in starting:
        raised |= _raise(phase.containers, phase.spare - of_sidecars[phase.sidecars])
    limited = (container for phase in phases for container in phase.containers)
    return {c.name: _request(c) + raised[c.name] for c in limited}


def _raise(containers: Sequence[ContainerAllocation], spare: int) -> dict[str, int]:
    """Divide `spare` millicores; return what each container gets beyond its request."""
    raised = dict.fromkeys([container.name for container in containers], 0)
    for level in (_floor, _stated_limit, _no_limit):
        rooms = {c.name: level(c, spare) - _request(c) - raised[c.name] for c in containers}
        for name, more in _evenly(rooms, spare).items():
            raised[name] += more
            spare -= more
    return raised


def _floor(container: ContainerAllocation, _spare: int) -> int:
    return min(_FLOOR, container.cpu.limit_millis or _FLOOR)


def _stated_limit(container: ContainerAllocation, _spare: int) -> int:
    return container.cpu.limit_millis or 0


def _no_limit(container: ContainerAllocation, spare: int) -> int:
    """Return more than can be spared: a container that states no limit takes any share of that."""
    return 0 if container.cpu.limit_millis else _request(container) + spare + _FLOOR


def _evenly(rooms: Mapping[str, int], amount: int) -> dict[str, int]:
    """Divide an amount of millicores evenly, to none more than its room.

    Equal rooms get equal shares, so that equal containers get equal quotas; the rest that cannot
    be divided evenly is not given out.
    """
    amount = max(amount, 0)
    # The smallest room is filled first; what it leaves of its share goes to the larger ones.
    ascending = sorted(room for room in rooms.values() if room > 0)
    level = 0
    for place, room in enumerate(ascending):
        level = min(room, amount // (len(ascending) - place))
        amount -= level
        if level < room:
            break
    return {name: min(room, level) for name, room in rooms.items() if room > 0}


def _never_throttles(limit: int, phases: Sequence[_Phase], shares: Mapping[str, int]) -> bool:
    """Return whether a quota of a pod's limit exceeds the use of each phase by enough."""
    of_sidecars = list(accumulate((shares[c.name] for c in _sidecars(phases[0])), initial=0))
    uses = [
        phase.cpuset_millis
        + of_sidecars[phase.sidecars]
        + sum(shares[c.name] for c in phase.containers)
        for phase in phases
    ]
    return all(use + use // _HEADROOM_DIVISOR <= limit for use in uses)


def _limit_of_others(pod: PodAllocation, started: _Phase, limit: int) -> int:
    """Return the limit in millicores, 0 for none, of a cgroup that is no specified container.

    The rest is the pod's limit without the CPUs of cpusets. Where containers leave some of it, or
    state no limit, others have the rest, as each container without a limit would. Else they have
    the kubelet's bound, the pod's quota: the whole limit, or none where the kubelet removes that.
    """
    rest = limit - started.cpuset_millis
    stated = [container.cpu.limit_millis for container in started.containers]
    states_more = None in stated or rest > sum(filter(None, stated))
    if rest > 0 and states_more:
        return rest
    return 0 if pod.quota_disabled else limit


def _by_stated_limit(
    containers: Iterable[ContainerAllocation],
    pod_limit: int | None,
    quota_of: Callable[[int], CpuMax],
) -> dict[str, CpuMax | None]:
    quotas: dict[str, CpuMax | None] = {}
    for container in containers:
        limit = container.cpu.limit_millis or pod_limit or None
        if _is_unthrottled(container):
            quotas[container.name] = UNLIMITED
        else:
            quotas[container.name] = None if limit is None else quota_of(limit)
    return quotas


def _sidecars(phase: _Phase) -> list[ContainerAllocation]:
    return [c for c in phase.containers if c.kind is ContainerKind.SIDECAR]


def _is_unthrottled(container: ContainerAllocation) -> bool:
    return container.isolation is Isolation.CONTAINER and container.quota_disabled


def _is_bound_by_quota(container: ContainerAllocation) -> bool:
    """Return whether a container is bound by its quota, not by a cpuset of the pod's own CPUs."""
    return container.isolation is Isolation.HOST or (
        container.isolation is Isolation.CONTAINER and not container.quota_disabled
    )


def _cpuset_millis(containers: Iterable[ContainerAllocation]) -> int:
    """Return the CPUs, in millicores, of the containers that are bound by a cpuset."""
    bits = 0
    for container in containers:
        if not _is_bound_by_quota(container) and container.cpus is not None:
            bits |= container.cpus.bits
    return bits.bit_count() * _MILLIS_PER_CPU


def _request(container: ContainerAllocation) -> int:
    return max(container.cpu.request_millis or 0, _LEAST)

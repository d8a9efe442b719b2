"""The QoS class and the effective requests of a pod: exclusive CPUs, memory, totals.

Names and rules follow the kubelet's CPU manager (`guaranteedCPUs`, `podGuaranteedCPUs`), memory
manager (`getRequestedResources`, `getPodRequestedResources`) and the scheduler's pod requests.
`pod_level` below is true for a pod with pod-level resources when the gates PodLevelResources and
PodLevelResourceManagers are both on (KEP-5526).
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from agent.pods.model import CPU, HUGEPAGES_PREFIX, MEMORY, ContainerKind, QosClass, Resources
from agent.pods.quantity import ZERO, Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from agent.pods.model import Container, Pod

_Amount = TypeVar("_Amount", Quantity, int)
_COMPUTE: Final = (CPU, MEMORY)


def is_memory_type(resource: str) -> bool:
    """Return whether the memory manager handles this resource (`memory`, `hugepages-*`)."""
    return resource == MEMORY or resource.startswith(HUGEPAGES_PREFIX)


def is_pod_level_resource(resource: str) -> bool:
    """Return whether `spec.resources` may have this resource (KEP-2837)."""
    return resource == CPU or is_memory_type(resource)


def has_pod_level_resources(pod: Pod) -> bool:
    """Return whether `spec.resources` states any supported amount (IsPodLevelResourcesSet)."""
    if pod.resources is None:
        return False
    stated = chain(pod.resources.requests, pod.resources.limits)
    return any(map(is_pod_level_resource, stated))


def with_pod_level_limits(pod: Pod) -> Pod:
    """Return a defaulted pod with the pod-level limits that follow from its containers'.

    As the API server of a version with `VersionRules.pod_limits_follow_containers` does
    (DefaultPodLevelResources). Where `spec.resources` states any amount: 1. requests of cpu and
    memory that it lacks are what the containers request together; 2. limits that it lacks, of what
    all containers limit, are what they limit together, and no less than the request.
    """
    stated = pod.resources
    if stated is None or not has_pod_level_resources(pod):
        return pod
    if all(name in stated.limits and name in stated.requests for name in _COMPUTE):
        return pod  # nothing is missing: limits of huge pages are set with the requests
    containers = [each.resources for each in pod.all_containers()]
    requests = dict(stated.requests)
    for name, amount in aggregate(pod, [each.requests for each in containers]).items():
        if name in _COMPUTE:
            requests.setdefault(name, amount)
    limits = dict(stated.limits)
    for name, amount in aggregate(pod, [each.limits for each in containers]).items():
        if name in requests and all(name in each.limits for each in containers):
            limits.setdefault(name, max(requests[name], amount))
    return replace(pod, resources=Resources(requests, limits))


def exclusive_cpu_requests(
    container: Container, qos: QosClass, *, pod_level: bool, named: bool = False
) -> int:
    """Return how many exclusive CPUs a container requests; 0 means that it shares CPUs.

    Only a Guaranteed pod has such containers, and only for a whole number of CPUs; in a pod with
    pod-level resources the container itself has to be Guaranteed as well (KEP-5526). In a pod of
    any class a container that an annotation names (`named`) is one unless it has a
    `named_container_fault`.
    """
    if named and named_container_fault(container) is None:
        return _whole(container.resources.requests[CPU])
    if qos is not QosClass.GUARANTEED:
        return 0
    if pod_level and not is_container_guaranteed(container):
        return 0
    return _whole(container.resources.requests.get(CPU, ZERO))


def named_container_fault(container: Container) -> str | None:
    """Return why a container of a pod of any class cannot have exclusive CPUs, None if it can."""
    request = container.resources.requests.get(CPU, ZERO)
    limit = container.resources.limits.get(CPU, ZERO)
    if _whole(request) <= 0:
        return f"its cpu request {request} is not a positive whole number"
    if request != limit:
        return (
            f"its cpu limit {limit} is not its request {request}"
            if limit
            else "it has no cpu limit"
        )
    return None


def pod_exclusive_cpu_requests(
    pod: Pod, qos: QosClass, counts: Sequence[int], *, pod_level: bool
) -> int:
    """Return the CPUs that a pod requests as a whole: its budget, or the peak of its containers.

    `counts` are their `exclusive_cpu_requests` in the order of `Pod.all_containers`. The peak is
    the larger of the apps with all sidecars, and each standard init container with the sidecars
    before it. A fractional pod-level budget is 0: the pod runs shared.
    """
    if pod_level and pod.resources is not None:
        if qos is not QosClass.GUARANTEED:
            return 0
        return _whole(pod.resources.requests.get(CPU, ZERO))

    sidecars = starting = 0
    for container, count in zip(pod.init_containers, counts, strict=False):
        if container.kind is ContainerKind.SIDECAR:
            sidecars += count
        else:
            starting = max(starting, sidecars + count)
    return max(starting, sidecars + sum(counts[len(pod.init_containers) :]))


def memory_requests(container: Container, *, pod_level: bool) -> dict[str, int]:
    """Return the bytes that the memory manager pins for a container, by memory type.

    In a pod with pod-level resources a container that is not itself Guaranteed has none. What is
    not a whole number of bytes is rounded up, where the kubelet rejects the pod.
    """
    if pod_level and not is_container_guaranteed(container):
        return {}
    return _memory_bytes(container.resources.requests)


def pod_memory_requests(
    pod: Pod, *, pod_level: bool, amounts: Sequence[Mapping[str, int]] | None = None
) -> dict[str, int]:
    """Return the bytes that a pod requests as a whole, by memory type.

    Its budget where it has one, else the most that its containers have at one time (KEP-693,
    "Effective resource request"; KEP-753 with sidecars). A type that only init containers ask for
    counts as any other; the kubelet leaves it out. Bytes are rounded up as by `memory_requests`;
    `amounts` are these of all containers where they are known already.
    """
    if pod_level and pod.resources is not None:
        return _memory_bytes(pod.resources.requests)
    if amounts is None:
        amounts = [memory_requests(each, pod_level=pod_level) for each in pod.all_containers()]
    return aggregate(pod, amounts)


def pod_requests(
    pod: Pod, *, pod_level_resources: bool, only: Collection[str] | None = None
) -> dict[str, Quantity]:
    """Return the requests of a pod by resource: pod-level where stated, else aggregated.

    The pod's overhead is added (KEP-688). `pod_level_resources` is the gate PodLevelResources;
    `only` the resources that are desired.
    """
    amounts = _pod_amounts(pod, _requests, of_pod=pod_level_resources, only=only)
    if not pod.overhead:
        return amounts
    extra = {name: amount for name, amount in pod.overhead.items() if only is None or name in only}
    return _sum((amounts, extra))


def pod_limits(
    pod: Pod, *, pod_level_resources: bool, only: Collection[str] | None = None
) -> dict[str, Quantity]:
    """Return the limits of a pod by resource: pod-level where stated, else aggregated.

    The pod's overhead is added to what is limited (KEP-688).
    """
    amounts = _pod_amounts(pod, _limits, of_pod=pod_level_resources, only=only)
    if not pod.overhead:
        return amounts
    limited = [name for name, amount in amounts.items() if amount]
    return _sum((amounts, {name: pod.overhead[name] for name in limited if name in pod.overhead}))


def cgroup_limits(pod: Pod, *, pod_level_resources: bool) -> dict[str, Quantity]:
    """Return the limits of the pod's own cgroup (kubelet, ResourceConfigForPod).

    For cpu and memory: the pod-level limit, else the sum over its containers. If any container has
    no limit, the pod has none.
    """
    limits = pod_limits(pod, pod_level_resources=pod_level_resources)
    own = pod.resources if pod_level_resources else None
    stated = {} if own is None else own.limits
    for name in _COMPUTE:
        if not stated.get(name, ZERO) and not all(
            container.resources.limits.get(name, ZERO) for container in pod.all_containers()
        ):
            limits.pop(name, None)
    return limits


def aggregate(pod: Pod, amounts: Sequence[Mapping[str, _Amount]]) -> dict[str, _Amount]:
    """Return the most that the containers of a pod have at one time, by resource (KEP-753).

    That is the larger of apps plus sidecars, and each standard init container plus the sidecars
    before it. `amounts` are those of `Pod.all_containers`.
    """
    if len(amounts) == 1:
        return dict(amounts[0])
    running = _sum(amounts[len(pod.init_containers) :])
    sidecars: dict[str, _Amount] = {}
    starting: dict[str, _Amount] = {}
    for container, amount in zip(pod.init_containers, amounts, strict=False):
        if container.kind is ContainerKind.SIDECAR:
            running = _sum((running, amount))
            sidecars = _sum((sidecars, amount))
            starting = _maximum(starting, sidecars)
        else:
            starting = _maximum(starting, _sum((amount, sidecars)))
    return _maximum(running, starting)


def _requests(resources: Resources) -> Mapping[str, Quantity]:
    return resources.requests


def _limits(resources: Resources) -> Mapping[str, Quantity]:
    return resources.limits


def _pod_amounts(
    pod: Pod,
    side: Callable[[Resources], Mapping[str, Quantity]],
    *,
    of_pod: bool,
    only: Collection[str] | None,
) -> dict[str, Quantity]:
    def desired(resources: Resources) -> Mapping[str, Quantity]:
        amounts = side(resources)
        return (
            amounts if only is None else {name: amounts[name] for name in only if name in amounts}
        )

    stated: dict[str, Quantity] = {}
    if of_pod and pod.resources is not None:
        stated = _supported(desired(pod.resources))
    if only is not None and len(stated) == len(only):
        return stated
    return aggregate(pod, [desired(each.resources) for each in pod.all_containers()]) | stated


def _whole(amount: Quantity) -> int:
    return amount.value if amount.is_whole_in_milli else 0


def _memory_bytes(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    return {name: amount.value for name, amount in amounts.items() if is_memory_type(name)}


def _supported(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {name: amount for name, amount in amounts.items() if is_pod_level_resource(name)}


def _sum(parts: Iterable[Mapping[str, _Amount]]) -> dict[str, _Amount]:
    total: dict[str, _Amount] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total[name] + amount if name in total else amount
    return total


def _maximum(first: Mapping[str, _Amount], second: Mapping[str, _Amount]) -> dict[str, _Amount]:
    largest = dict(first)
    for name, amount in second.items():
        if name not in largest or largest[name] < amount:
            largest[name] = amount
    return largest


def qos_class(pod: Pod, *, pod_level_resources: bool) -> QosClass:
    """Return the class of a pod: `status.qosClass` if the manifest states it, else computed.

    `pod_level_resources` is the gate PodLevelResources: with it, `spec.resources` alone decides
    where it states any amount (KEP-2837, "QoS"; kubernetes pull request 137150). To kubelet v1.36
    an empty one makes the pod BestEffort, whatever its containers request.
    """
    if pod.status_qos is not None:
        return pod.status_qos
    if pod_level_resources and pod.resources is not None and has_pod_level_resources(pod):
        parts = [pod.resources]
        bounded = not pod.resources.limits or _bounds_compute(pod.resources.limits)
    else:
        parts = [container.resources for container in pod.all_containers()]
        bounded = all(map(_bounds_compute, [part.limits for part in parts]))
    return _class_of(parts, every_part_bounded=bounded)


def is_container_guaranteed(container: Container) -> bool:
    """Return whether requests equal limits, neither of them zero, for cpu and for memory.

    KEP-5526: only such a container of a pod with pod-level resources can have exclusive ones.
    """
    requests, limits = container.resources.requests, container.resources.limits
    cpu, memory = requests.get(CPU), requests.get(MEMORY)
    if not cpu or not memory:
        return False
    return cpu == limits.get(CPU) and memory == limits.get(MEMORY)


def _bounds_compute(limits: Mapping[str, Quantity]) -> bool:
    return limits.get(CPU, ZERO).nano > 0 and limits.get(MEMORY, ZERO).nano > 0


def _class_of(parts: Iterable[Resources], *, every_part_bounded: bool) -> QosClass:
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    for part in parts:
        _add_positive(requests, part.requests)
        _add_positive(limits, part.limits)
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    if every_part_bounded and requests == limits:
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE


def _add_positive(total: dict[str, int], amounts: Mapping[str, Quantity]) -> None:
    for name in _COMPUTE:
        nano = amounts.get(name, ZERO).nano
        if nano > 0:
            total[name] = total.get(name, 0) + nano

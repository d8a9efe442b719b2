"""Pods with one thing changed: another amount of a resource, other limits, an annotation less."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.pods.model import CPU, MEMORY, Resources
from agent.pods.quantity import ZERO, Quantity
from agent.pods.requests import aggregate, is_memory_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.pods.model import Container, Pod


def with_amount(pod: Pod, container: str | None, resource: str, amount: int) -> Pod:
    """Return the pod with another amount of one resource of a container (None: of the pod level).

    `amount` is in millicores for `cpu`, else in whole units. It becomes the request and the limit;
    a request that is smaller stays if the amount is below the limit.
    """
    if container is None:
        if pod.resources is None:
            return pod
        return replace(pod, resources=_with_amount(pod.resources, resource, amount))

    def changed(other: Container) -> Container:
        if other.name != container:
            return other
        return replace(other, resources=_with_amount(other.resources, resource, amount))

    return _with_containers(pod, changed)


def _with_amount(resources: Resources, resource: str, amount: int) -> Resources:
    new = quantity_of(resource, amount)
    limit = resources.limits.get(resource)
    above_limit = limit is not None and limit < new

    def changed(amounts: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
        old = amounts.get(resource)
        if old is None or (old <= new and not above_limit):
            return amounts
        return MappingProxyType({**amounts, resource: new})

    return Resources(changed(resources.requests), changed(resources.limits))


def quantity_of(resource: str, amount: int) -> Quantity:
    """Return an amount of a resource, given in millicores for `cpu`, else in whole units."""
    if resource == CPU:
        return Quantity.parse(f"{amount}m")
    return Quantity.of_bytes(amount) if is_memory_type(resource) else Quantity.of(amount)


def with_whole_cores(pod: Pod, cpus_per_core: int) -> Pod:
    """Return the pod with whole cores in place of each whole number of CPUs, rounded up.

    So it is with containers and the pod level that are limited to what they request. The pod level
    has as much more as its containers have at one time, and then whole cores.
    """
    millis = 1000 * cpus_per_core

    def rounded(resources: Resources, more: int = 0) -> Resources:
        request, limit = resources.requests.get(CPU), resources.limits.get(CPU)
        if request is None or request != limit or not (request.is_whole or more):
            return resources
        amount = request.milli_value + more
        return _with_amount(
            resources, CPU, -(-amount // millis) * millis if request.is_whole else amount
        )

    whole = _with_containers(pod, lambda each: replace(each, resources=rounded(each.resources)))
    if pod.resources is None:
        return whole
    more = [
        {CPU: after.milli_value - before.milli_value}
        for before, after in zip(_cpu_requests(pod), _cpu_requests(whole), strict=True)
    ]
    return replace(whole, resources=rounded(pod.resources, aggregate(pod, more)[CPU]))


def _cpu_requests(pod: Pod) -> list[Quantity]:
    return [each.resources.requests.get(CPU, ZERO) for each in pod.all_containers()]


def with_limits_as_requests(pod: Pod) -> Pod:
    """Return the pod with the CPU and memory limits of each container equal to its requests.

    An amount that is only limited or only requested becomes both.
    """

    def even(container: Container) -> Container:
        requests, limits = container.resources.requests, container.resources.limits
        stated = {name: requests.get(name, limits.get(name)) for name in (CPU, MEMORY)}
        amounts = {name: amount for name, amount in stated.items() if amount is not None}
        return replace(
            container,
            resources=Resources(
                MappingProxyType({**requests, **amounts}), MappingProxyType({**limits, **amounts})
            ),
        )

    return _with_containers(pod, even)


def with_resources(pod: Pod, container: str | None, amounts: Mapping[str, int]) -> Pod:
    """Return the pod with other amounts of a container (None: of the pod level), by resource.

    An amount, in the units of `quantity_of`, is that of the limit, and of the request where this
    equals the limit, exceeds the amount, or has no limit. What is not stated stays so.
    """

    def changed(resources: Resources) -> Resources:
        requests, limits = dict(resources.requests), dict(resources.limits)
        for name, amount in amounts.items():
            new = quantity_of(name, amount)
            stated, limit = requests.get(name), limits.get(name)
            if stated is not None and (limit is None or stated == limit or new < stated):
                requests[name] = new
            if limit is not None:
                limits[name] = new
        return Resources(MappingProxyType(requests), MappingProxyType(limits))

    if container is None:
        return pod if pod.resources is None else replace(pod, resources=changed(pod.resources))

    def of(each: Container) -> Container:
        named = each.name == container
        return replace(each, resources=changed(each.resources)) if named else each

    return _with_containers(pod, of)


def amount_of(pod: Pod, container: str | None, resource: str) -> int | None:
    """Return the limit of a container (None: of the pod level), else its request.

    In the units of `quantity_of`; None where neither is stated.
    """
    parts = [each.resources for each in pod.all_containers() if each.name == container]
    for resources in parts if container is not None else filter(None, [pod.resources]):
        amount = resources.limits.get(resource, resources.requests.get(resource))
        if amount is not None:
            return amount.milli_value if resource == CPU else amount.value
    return None


def without_amounts(pod: Pod) -> tuple[object, ...]:
    """Return what a resize leaves as it is: all but the amounts of cpu, memory and huge pages.

    Equal for two pods of which one is a resize of the other.
    """
    containers = [(each.name, each.kind, _others(each.resources)) for each in pod.all_containers()]
    of_pod = None if pod.resources is None else _others(pod.resources)
    return (containers, of_pod, pod.status_qos, pod.overhead)


def _others(resources: Resources) -> tuple[Mapping[str, Quantity | None], ...]:
    """Return requests and limits with None for each amount that a resize may change."""
    return tuple(
        {
            name: None if name == CPU or is_memory_type(name) else amount
            for name, amount in amounts.items()
        }
        for amounts in (resources.requests, resources.limits)
    )


def with_annotation(pod: Pod, annotation: str, value: str) -> Pod:
    """Return the pod with one more annotation."""
    return replace(pod, annotations=MappingProxyType({**pod.annotations, annotation: value}))


def without_annotation(pod: Pod, annotation: str) -> Pod:
    """Return the pod without one of its annotations."""
    annotations = {name: text for name, text in pod.annotations.items() if name != annotation}
    return replace(pod, annotations=MappingProxyType(annotations))


def _with_containers(pod: Pod, changed: Callable[[Container], Container]) -> Pod:
    return replace(
        pod,
        containers=tuple(map(changed, pod.containers)),
        init_containers=tuple(map(changed, pod.init_containers)),
    )

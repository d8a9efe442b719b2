"""Pods with one thing changed: another amount of a resource, other limits, an annotation less."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.pods.model import CPU, MEMORY, Resources
from agent.pods.quantity import Quantity
from agent.pods.requests import is_memory_type

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

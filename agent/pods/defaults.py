"""The defaults that the API server sets in a pod.

Sources: k8s.io/kubernetes `pkg/apis/core/v1/defaults.go` (SetDefaults_Pod and
SetDefaults_ResourceList), and KEP-2837 for pod-level resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.pods.model import CPU, HUGEPAGES_PREFIX, MEMORY, Resources
from agent.pods.requests import aggregate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.pods.model import Container, Pod
    from agent.pods.quantity import Quantity

_OVERCOMMITTABLE: Final = (CPU, MEMORY)


def apply_defaults(pod: Pod, *, pod_level_resources: bool = True) -> Pod:
    """Return the pod with every default set (idempotent).

    Amounts are rounded up to thousandths. A container's request follows from its limit. Pod-level
    requests of cpu and memory follow from what the containers request together; all that is still
    missing follows from the pod-level limits, and those of huge pages from the containers' limits.
    `pod_level_resources` is the gate PodLevelResources.
    """
    defaulted = replace(
        pod,
        containers=tuple(map(_container, pod.containers)),
        init_containers=tuple(map(_container, pod.init_containers)),
    )
    if pod.resources is None:
        return defaulted
    resources = Resources(_rounded(pod.resources.requests), _rounded(pod.resources.limits))
    if pod_level_resources:
        resources = _pod_level(defaulted, resources)
    return replace(defaulted, resources=resources)


def _container(container: Container) -> Container:
    limits = _rounded(container.resources.limits)
    requests = limits | _rounded(container.resources.requests)
    return replace(container, resources=Resources(requests, limits))


def _pod_level(pod: Pod, stated: Resources) -> Resources:
    limits = dict(stated.limits)
    for name, amount in aggregate(pod, lambda container: container.resources.limits).items():
        if name.startswith(HUGEPAGES_PREFIX) and name not in stated.requests:
            limits.setdefault(name, amount)
    if not limits:
        return stated
    requests = dict(stated.requests)
    for name, amount in aggregate(pod, lambda container: container.resources.requests).items():
        if name in _OVERCOMMITTABLE:
            requests.setdefault(name, amount)
    for name, amount in limits.items():
        requests.setdefault(name, amount)
    return Resources(requests, limits)


def _rounded(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {name: amount.rounded_to_milli() for name, amount in amounts.items()}

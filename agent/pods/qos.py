"""The quality-of-service class of a pod and what it means for one container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import CPU, MEMORY, QosClass, Resources
from agent.pods.quantity import ZERO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.pods.model import Container, Pod
    from agent.pods.quantity import Quantity

_COMPUTE: Final = (CPU, MEMORY)


def qos_class(pod: Pod, *, pod_level_resources: bool) -> QosClass:
    """Return the class of a pod: `status.qosClass` if the manifest states it, else computed.

    `pod_level_resources` is the gate PodLevelResources: with it, `spec.resources` alone decides
    where it is present (KEP-2837, "QoS").
    """
    if pod.status_qos is not None:
        return pod.status_qos
    if pod_level_resources and pod.resources is not None:
        limits = pod.resources.limits
        bounded = not limits or _bounds_compute(limits)
        return _class_of((pod.resources,), every_part_bounded=bounded)
    parts = tuple(container.resources for container in pod.all_containers())
    bounded = all(_bounds_compute(part.limits) for part in parts)
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
    return all(limits.get(name, ZERO).nano > 0 for name in _COMPUTE)


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

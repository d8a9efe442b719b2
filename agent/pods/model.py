"""The pod as the managers use it: names, kinds, requests and limits of v1.Pod."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.pods.quantity import Quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
HUGEPAGES_PREFIX: Final = "hugepages-"

_NOTHING: Final[Mapping[str, Quantity]] = MappingProxyType({})


class QosClass(StrEnum):
    """The quality-of-service class of a pod (v1.PodQOSClass)."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(StrEnum):
    """Standard init container, sidecar (restartable init container), or app container."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Resources(Struct, frozen=True):
    """Requests and limits by resource name (v1.ResourceRequirements)."""

    requests: Mapping[str, Quantity] = _NOTHING
    limits: Mapping[str, Quantity] = _NOTHING


class Container(Struct, frozen=True):
    """One container of a pod."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: Resources = Resources()


class Pod(Struct, frozen=True):
    """One pod, defaulted and validated.

    `init_containers` are standard init containers and sidecars in manifest order.
    `resources` is `spec.resources` (pod-level, KEP-2837), None when the manifest has none.
    `status_qos` is `status.qosClass` of the manifest, which wins over the computed class.
    `overhead` is `spec.overhead`: what the runtime needs beside the containers (KEP-688).
    """

    uid: str
    name: str
    namespace: str
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    resources: Resources | None = None
    status_qos: QosClass | None = None
    annotations: Mapping[str, str] = MappingProxyType({})
    overhead: Mapping[str, Quantity] = _NOTHING

    def all_containers(self) -> Iterator[Container]:
        """Yield init containers, then app containers: the order in which they are admitted."""
        yield from self.init_containers
        yield from self.containers

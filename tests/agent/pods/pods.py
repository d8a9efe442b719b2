"""Short ways to say a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.pods.model import Container, ContainerKind, Pod, QosClass, Resources
from agent.pods.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping


def amounts(text: str) -> dict[str, Quantity]:
    """Return the amounts of `cpu=2 memory=1Gi`."""
    pairs = (part.partition("=") for part in text.split())
    return {name: Quantity.parse(amount) for name, _, amount in pairs}


def resources(requests: str = "", limits: str = "") -> Resources:
    return Resources(amounts(requests), amounts(limits))


def guaranteed(text: str) -> Resources:
    return resources(text, text)


def app(name: str, resources: Resources | None = None) -> Container:
    return Container(name, ContainerKind.APP, resources or Resources())


def init(name: str, resources: Resources | None = None) -> Container:
    return Container(name, ContainerKind.INIT, resources or Resources())


def sidecar(name: str, resources: Resources | None = None) -> Container:
    return Container(name, ContainerKind.SIDECAR, resources or Resources())


def pod(
    *containers: Container,
    of_pod: Resources | None = None,
    status_qos: QosClass | None = None,
    uid: str = "u-1",
    name: str = "p",
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    return Pod(
        uid=uid,
        name=name,
        namespace="default",
        containers=tuple(c for c in containers if c.kind is ContainerKind.APP),
        init_containers=tuple(c for c in containers if c.kind is not ContainerKind.APP),
        resources=of_pod,
        status_qos=status_qos,
        annotations=annotations or {},
    )

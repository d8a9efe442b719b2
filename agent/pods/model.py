"""The pod as the managers use it: names, kinds, requests and limits of v1.Pod, and their digest.

The digest recognizes a request that is repeated: it covers what a decision depends on.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from json.encoder import encode_basestring_ascii as quoted
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class GivenDevice(Struct, frozen=True):
    """A device that the kubelet beside the agent gave to a container of one of its plugins.

    An empty `nodes` means that no NUMA locality is known.
    """

    resource: str
    id: str
    nodes: Mask = EMPTY


#: The devices of each container by its name; a container without devices may be missing.
GivenDevices: TypeAlias = "Mapping[str, tuple[GivenDevice, ...]]"
NO_GIVEN_DEVICES: Final[GivenDevices] = MappingProxyType({})


class Pod(Struct, frozen=True):
    """One pod, defaulted and validated.

    `init_containers` are standard init containers and sidecars in manifest order.
    `resources` is `spec.resources` (pod-level, KEP-2837), None when the manifest has none.
    `status_qos` is `status.qosClass` of the manifest, which wins over the computed class.
    `overhead` is `spec.overhead`: what the runtime needs beside the containers (KEP-688).
    `given_devices` are no part of the manifest: what the kubelet gave to the containers before the
    pod is decided on.
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
    given_devices: GivenDevices = NO_GIVEN_DEVICES

    def all_containers(self) -> tuple[Container, ...]:
        """Return init containers, then app containers: the order in which they are admitted."""
        return self.init_containers + self.containers


#: Changes when the digest covers something else, so that digests never compare across.
_FORMAT: Final = 1


def spec_digest(pod: Pod) -> str:
    """Return 64 hex digits that are equal for two pods exactly when they request the same.

    Covered are the containers in order with name, kind, requests and limits, the pod-level
    resources, a stated QoS class and the overhead. Not covered are uid, name, namespace,
    annotations, devices that were given and how an amount was written.
    """
    return hashlib.sha256(spec_text(pod).encode()).hexdigest()


def spec_text(pod: Pod) -> str:
    """Return what is digested, as JSON: `[format, [container, ...], amounts, class]`.

    The amounts of an overhead are a fifth member where a pod has one. A container is
    `[name, kind, amounts]`, amounts are `[requests, limits]`, each of them a list of
    `[resource, amount in units of 10^-9]` by name. It is put together here because a JSON encoder
    takes twice as long, a thirtieth of a decision.
    """
    containers = ",".join([_container_text(container) for container in pod.all_containers()])
    amounts = "null" if pod.resources is None else _amounts_text(pod.resources)
    status = "null" if pod.status_qos is None else quoted(pod.status_qos)
    overhead = f",[{_listed(pod.overhead)}]" if pod.overhead else ""
    return f"[{_FORMAT},[{containers}],{amounts},{status}{overhead}]"


def _container_text(container: Container) -> str:
    return (
        f"[{quoted(container.name)},{quoted(container.kind)},{_amounts_text(container.resources)}]"
    )


def _amounts_text(resources: Resources) -> str:
    return f"[[{_listed(resources.requests)}],[{_listed(resources.limits)}]]"


def _listed(amounts: Mapping[str, Quantity]) -> str:
    return ",".join([f"[{quoted(name)},{amount.nano}]" for name, amount in sorted(amounts.items())])

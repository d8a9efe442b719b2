"""The messages of NRI (`nri.pkg.api.v1alpha1`) and its events: what a plugin reads and writes.

Fields that no answer depends on (mounts, hooks, namespaces, ...) are left out, and skipped when
they arrive. Source: github.com/containerd/nri, pkg/api/api.proto, v0.6.0 to v0.12.2. All other
modules have pods, containers and adjustments as the values below, not as messages.
"""

from __future__ import annotations

import re
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from agent.cluster.nri.protocol import words
from agent.pods.model import LONGEST_NAME
from agent.rpc import MAP, Fields, Messages
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from agent.rpc import Message
    from sysfs.mask import Mask


_PACKAGE: Final = "nri.pkg.api.v1alpha1"
#: The service of a plugin.
PLUGIN: Final = f"{_PACKAGE}.Plugin"
#: The service of a runtime.
RUNTIME: Final = f"{_PACKAGE}.Runtime"

#: The requests of all events about a pod, and about a container, have fields in common, those of
#: the event's own message included.
_OF_POD: Final[Fields] = {"pod": (1, "PodSandbox")}
_OF_CONTAINER: Final[Fields] = {**_OF_POD, "container": (2, "Container")}
_UPDATES: Final[Fields] = {"update": (1, "repeated ContainerUpdate")}

V1ALPHA1: Final = Messages(
    _PACKAGE,
    {
        "Empty": {},
        "OptionalInt64": {"value": (1, "int64")},
        "OptionalUInt64": {"value": (1, "uint64")},
        "LinuxMemory": {"limit": (1, "OptionalInt64")},
        "LinuxCPU": {
            "shares": (1, "OptionalUInt64"),
            "quota": (2, "OptionalInt64"),
            "period": (3, "OptionalUInt64"),
            "cpus": (6, "string"),
            "mems": (7, "string"),
        },
        "LinuxResources": {"memory": (1, "LinuxMemory"), "cpu": (2, "LinuxCPU")},
        "LinuxPodSandbox": {
            "pod_resources": (2, "LinuxResources"),
            "cgroup_parent": (3, "string"),
        },
        "PodSandbox": {
            "id": (1, "string"),
            "name": (2, "string"),
            "uid": (3, "string"),
            "namespace": (4, "string"),
            "annotations": (6, MAP),
            "linux": (8, "LinuxPodSandbox"),
        },
        "LinuxContainer": {"resources": (3, "LinuxResources"), "cgroups_path": (5, "string")},
        "Container": {
            "id": (1, "string"),
            "pod_sandbox_id": (2, "string"),
            "name": (3, "string"),
            "state": (4, "int32"),
            "annotations": (6, MAP),
            "env": (8, "repeated string"),
            "linux": (11, "LinuxContainer"),
            "pid": (12, "uint32"),
        },
        "RegisterPluginRequest": {
            "plugin_name": (1, "string"),
            "plugin_idx": (2, "string"),
            "NRI_version": (3, "string"),
        },
        "ConfigureRequest": {
            "config": (1, "string"),
            "runtime_name": (2, "string"),
            "runtime_version": (3, "string"),
            "registration_timeout": (4, "int64"),
            "request_timeout": (5, "int64"),
            "NRI_version": (6, "string"),
        },
        "ConfigureResponse": {"events": (2, "int32")},
        "SynchronizeRequest": {
            "pods": (1, "repeated PodSandbox"),
            "containers": (2, "repeated Container"),
            "more": (3, "bool"),
        },
        "SynchronizeResponse": {**_UPDATES, "more": (2, "bool")},
        "PodEvent": _OF_POD,
        "UpdatePodSandboxRequest": {**_OF_POD, "linux_resources": (3, "LinuxResources")},
        "ContainerEvent": _OF_CONTAINER,
        "UpdateContainerRequest": {**_OF_CONTAINER, "linux_resources": (3, "LinuxResources")},
        "StateChangeEvent": {
            "event": (1, "int32"),
            "pod": (2, "PodSandbox"),
            "container": (3, "Container"),
        },
        "KeyValue": {"key": (1, "string"), "value": (2, "string")},
        "LinuxContainerAdjustment": {"resources": (2, "LinuxResources")},
        "ContainerAdjustment": {
            "env": (4, "repeated KeyValue"),
            "linux": (6, "LinuxContainerAdjustment"),
        },
        "CreateContainerResponse": {"adjust": (1, "ContainerAdjustment")},
        "LinuxContainerUpdate": {"resources": (1, "LinuxResources")},
        "ContainerUpdate": {
            "container_id": (1, "string"),
            "linux": (2, "LinuxContainerUpdate"),
            "ignore_failure": (3, "bool"),
        },
        "UpdateContainerResponse": _UPDATES,
    },
)

#: The states of a container by their numbers; a number that is not here is unknown.
_STATES: Final = ("unknown", "created", "paused", "running", "stopped")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class NriEvent(IntEnum):
    """The events of pods and containers, by their numbers (enum Event of NRI)."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13

    @property
    def method(self) -> str:
        """The name of the event's own method."""
        return "".join(word.capitalize() for word in self.name.split("_"))


#: The events by the names of their methods.
EVENTS: Final[Mapping[str, NriEvent]] = MappingProxyType(
    {event.method: event for event in NriEvent}
)

#: What is subscribed to with every runtime: what is answered or noted. A container
#: that started is one of which the runtime says so after its start.
_ALWAYS: Final = (
    NriEvent.RUN_POD_SANDBOX,
    NriEvent.STOP_POD_SANDBOX,
    NriEvent.REMOVE_POD_SANDBOX,
    NriEvent.CREATE_CONTAINER,
    NriEvent.POST_START_CONTAINER,
    NriEvent.UPDATE_CONTAINER,
    NriEvent.STOP_CONTAINER,
    NriEvent.REMOVE_CONTAINER,
)
#: Known since NRI 0.10. Only since NRI 0.12 does a runtime say which NRI it has; before that, its
#: own version has to do. An event that a runtime does not know makes it forget the plugin: it logs
#: an error, keeps the connection, and never sends anything again.
_SINCE_0_10: Final = (NriEvent.UPDATE_POD_SANDBOX,)
_FIRST_WITH_0_10: Final = MappingProxyType({"containerd": (2, 2), "cri-o": (1, 34)})
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)")


def subscription(runtime: str, version: str, nri_version: str) -> Collection[NriEvent]:
    """Return the events to subscribe to, from what a runtime says of itself in Configure."""
    known = _knows_0_10(runtime, version, nri_version)
    return (*_ALWAYS, *_SINCE_0_10) if known else _ALWAYS


def smallest_subscription() -> Collection[NriEvent]:
    """Return the events that every runtime knows."""
    return _ALWAYS


def event_mask(events: Collection[NriEvent]) -> int:
    """Return the bits of a ConfigureResponse."""
    return sum(1 << (event - 1) for event in events)


def _knows_0_10(runtime: str, version: str, nri_version: str) -> bool:
    if nri_version:
        return _at_least(nri_version, (0, 10))
    first = _FIRST_WITH_0_10.get(runtime.lower())
    return first is not None and _at_least(version, first)


def _at_least(version: str, first: tuple[int, int]) -> bool:
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) >= first


class RuntimeInfo(Struct, frozen=True):
    """A runtime as it introduces itself.

    `nri_version` is empty before NRI 0.12. `request_timeout_ms` is how long it waits for an answer
    to any request, 0 if it does not say.
    """

    name: str
    version: str
    nri_version: str
    request_timeout_ms: int

    @classmethod
    def of(cls, request: Message) -> Self:
        """Return what a ConfigureRequest says."""
        return cls(
            words(request.runtime_name),
            words(request.runtime_version),
            words(request.NRI_version),
            max(0, request.request_timeout),
        )


class ContainerResources(Struct, frozen=True):
    """Resources of a container; what was not given, or given as 0, is None, or "" of a set.

    Quota and period are in microseconds (a quota of -1 is none), the memory limit in bytes. The
    sets are in the kernel's list format, as the runtime wrote them.
    """

    cpus: str = ""
    mems: str = ""
    quota_us: int | None = None
    period_us: int | None = None
    shares: int | None = None

    @classmethod
    def of(cls, resources: Message) -> Self:
        """Return what a LinuxResources says."""
        cpu = resources.cpu
        return cls(
            cpus=cpu.cpus,
            mems=cpu.mems,
            quota_us=cpu.quota.value or None,
            period_us=cpu.period.value or None,
            shares=cpu.shares.value or None,
        )


class PodSandbox(Struct, frozen=True):
    """The sandbox of a pod.

    `uid` is the pod's, of a static pod the hash of its manifest. Quota, period (microseconds) and
    shares are those that the kubelet computed for the pod, None where it gave none; they are no
    substitute for the pod's requests (a pod whose containers say nothing may have them).
    """

    id: str
    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str] = _NOTHING
    cgroup_parent: str = ""
    cpu_quota: int | None = None
    cpu_period: int | None = None
    cpu_shares: int | None = None

    @classmethod
    def of(cls, pod: Message) -> Self:
        """Return what a PodSandbox message says."""
        sandbox = cls(
            id=pod.id,
            uid=printable(pod.uid, LONGEST_NAME),
            namespace=printable(pod.namespace, LONGEST_NAME),
            name=printable(pod.name, LONGEST_NAME),
            annotations=MappingProxyType(dict(pod.annotations)),
            cgroup_parent=pod.linux.cgroup_parent,
        )
        return sandbox.with_resources(ContainerResources.of(pod.linux.pod_resources))

    def with_resources(self, resources: ContainerResources) -> Self:
        """Return the sandbox with other resources; what they do not give stays."""
        return replace(
            self,
            cpu_quota=self.cpu_quota if resources.quota_us is None else resources.quota_us,
            cpu_period=self.cpu_period if resources.period_us is None else resources.period_us,
            cpu_shares=self.cpu_shares if resources.shares is None else resources.shares,
        )


class RuntimeContainer(Struct, frozen=True):
    """A container.

    `state` is "unknown", "created", "paused", "running" or "stopped"; `pid` is 0 where no process
    runs or the runtime does not say. `cgroups_path` is as in the OCI specification: with the
    systemd driver `slice:prefix:id`.
    """

    id: str
    sandbox_id: str
    name: str
    state: str = "unknown"
    annotations: Mapping[str, str] = _NOTHING
    environment: Mapping[str, str] = _NOTHING
    cgroups_path: str = ""
    resources: ContainerResources = ContainerResources()
    pid: int = 0

    @classmethod
    def of(cls, container: Message) -> Self:
        """Return what a Container message says."""
        number = container.state
        return cls(
            id=container.id,
            sandbox_id=container.pod_sandbox_id,
            name=printable(container.name, LONGEST_NAME),
            state=_STATES[number] if 0 <= number < len(_STATES) else _STATES[0],
            annotations=MappingProxyType(dict(container.annotations)),
            environment=MappingProxyType(dict(_variables(container.env))),
            cgroups_path=container.linux.cgroups_path,
            resources=ContainerResources.of(container.linux.resources),
            pid=container.pid,
        )


class Adjustment(Struct, frozen=True):
    """What is changed of a container; None leaves as it is.

    Quota and period are in microseconds, a quota of -1 is none. The environment can be changed only
    while a container is created; an update leaves it out. Raises `ValueError` for an empty set,
    which NRI could not distinguish from one that stays as it is.
    """

    cpus: Mask | None = None
    mems: Mask | None = None
    quota_us: int | None = None
    period_us: int | None = None
    environment: Mapping[str, str] = _NOTHING

    def __post_init__(self) -> None:
        for name, mask in (("CPUs", self.cpus), ("memory nodes", self.mems)):
            if mask is not None and not mask.bits:
                raise ValueError(f"an adjustment to no {name}; None leaves them as they are")


def adjustment_message(adjustment: Adjustment) -> Message:
    """Return the ContainerAdjustment of a container that is created."""
    message = V1ALPHA1["ContainerAdjustment"]()
    _fill(message.linux.resources.cpu, adjustment)
    for key, value in adjustment.environment.items():
        message.env.add(key=key, value=value)
    return message


def update_message(container: str, adjustment: Adjustment, *, ignore_failure: bool) -> Message:
    """Return the ContainerUpdate of the container with an id.

    Where a failure is not ignored, the runtime's own request fails with it.
    """
    message = V1ALPHA1["ContainerUpdate"](container_id=container, ignore_failure=ignore_failure)
    _fill(message.linux.resources.cpu, adjustment)
    return message


def update_messages(adjustments: Mapping[str, Adjustment]) -> list[Message]:
    """Return the ContainerUpdates of containers by id; the runtime reports which of them failed."""
    return [
        update_message(container, adjustment, ignore_failure=False)
        for container, adjustment in adjustments.items()
    ]


def _fill(cpu: Message, adjustment: Adjustment) -> None:
    if adjustment.cpus is not None:
        cpu.cpus = str(adjustment.cpus)
    if adjustment.mems is not None:
        cpu.mems = str(adjustment.mems)
    if adjustment.quota_us is not None:
        cpu.quota.value = adjustment.quota_us
    if adjustment.period_us is not None:
        cpu.period.value = adjustment.period_us


def _variables(environment: list[str]) -> Iterator[tuple[str, str]]:
    for text in environment:
        key, _, value = text.partition("=")
        yield key, value

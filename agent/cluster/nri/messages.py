"""The messages of NRI (`nri.pkg.api.v1alpha1`), and the values that they become.

In: messages of a runtime, and adjustments. Out: pods, containers and resources as the structs
below, and messages to a runtime. Fields that no answer depends on (mounts, hooks, namespaces, ...)
are left out, and skipped when they arrive. Source: github.com/containerd/nri, pkg/api/api.proto,
v0.6.0 to v0.12.2.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from agent.cluster.nri.ttrpc import words
from agent.managers.numa_policy import NumaMode
from agent.pods.model import LONGEST_NAME
from agent.rpc.messages import MAP, Fields, Messages
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.numa_policy import NumaPolicy
    from agent.rpc.messages import Message
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
        "LinuxMemoryPolicy": {
            "mode": (1, "int32"),
            "nodes": (2, "string"),
            "flags": (3, "repeated int32"),
        },
        "LinuxContainerAdjustment": {
            "resources": (2, "LinuxResources"),
            "memory_policy": (12, "LinuxMemoryPolicy"),
        },
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


class RuntimeInfo(Struct, frozen=True):
    """A runtime as it introduces itself."""

    name: str
    version: str
    #: Empty before NRI 0.12.
    nri_version: str
    #: How long it waits for the answer to a request, 0 if it does not say.
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
    """Resources of a container; None, or "" of a set: not given, or given as 0."""

    #: Sets in the kernel's list format, as the runtime wrote them.
    cpus: str = ""
    mems: str = ""
    #: Microseconds; -1 is no quota.
    quota_us: int | None = None
    period_us: int | None = None
    shares: int | None = None
    #: The limit of memory in bytes.
    memory: int | None = None

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
            memory=max(0, resources.memory.limit.value) or None,
        )


class PodSandbox(Struct, frozen=True):
    """The sandbox of a pod."""

    id: str
    #: The pod's; of a static pod the hash of its manifest.
    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str] = _NOTHING
    cgroup_parent: str = ""
    #: What the kubelet computed for the pod (microseconds, shares), None where it gave nothing. A
    #: pod without requests may have them, too.
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
    """A container."""

    id: str
    sandbox_id: str
    name: str
    #: One of `_STATES`.
    state: str = "unknown"
    annotations: Mapping[str, str] = _NOTHING
    environment: Mapping[str, str] = _NOTHING
    #: As in the OCI specification: with the systemd driver `slice:prefix:id`.
    cgroups_path: str = ""
    resources: ContainerResources = ContainerResources()
    #: 0: no process runs, or the runtime does not say.
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
    """What is changed of a container; None leaves a value as it is.

    Raises `ValueError` for an empty set: to NRI that is a set which stays as it is.
    """

    cpus: Mask | None = None
    mems: Mask | None = None
    #: Microseconds; -1 is no quota.
    quota_us: int | None = None
    period_us: int | None = None
    #: Used only when a container is created; an update leaves both out.
    environment: Mapping[str, str] = _NOTHING
    numa_policy: NumaPolicy | None = None

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
    policy = adjustment.numa_policy
    if policy is not None:
        # Runtimes that do not know it skip it: containerd#11756 is open (2026-09).
        mode, flag = _NUMA_MODES[policy.mode]
        wanted = message.linux.memory_policy
        wanted.mode, wanted.nodes, wanted.flags[:] = mode, str(policy.nodes), [flag]
    return message


#: The numbers of MpolMode and MpolFlag.
_NUMA_MODES: Final = MappingProxyType({NumaMode.INTERLEAVE: (3, 1), NumaMode.PREFERRED: (5, 0)})


def update_message(container: str, adjustment: Adjustment, *, ignore_failure: bool) -> Message:
    """Return the ContainerUpdate of the container with an id.

    If the update fails and `ignore_failure` is False, the runtime's own request fails, too.
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

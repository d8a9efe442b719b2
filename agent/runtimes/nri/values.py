"""Pods and containers as a runtime reports them, and adjustments; from and to NRI's messages."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from agent.runtimes.nri.messages import V1ALPHA1
from agent.runtimes.nri.ttrpc import words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.rpc.messages import Message
    from sysfs.mask import Mask

#: The states of a container by their numbers; a number that is not here is unknown.
_STATES: Final = ("unknown", "created", "paused", "running", "stopped")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


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
    memory_limit: int | None = None

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
            memory_limit=resources.memory.limit.value or None,
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
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
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
            name=container.name,
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

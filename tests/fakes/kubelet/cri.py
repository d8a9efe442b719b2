"""The CRI (`runtime.v1`) as a kubelet calls it: the part of it that runs pods."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from agent.rpc.client import Client
from agent.rpc.messages import MAP, Messages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.rpc.messages import Message

PACKAGE: Final = "runtime.v1"
SERVICE: Final = "runtime.v1.RuntimeService"
#: The kubelet's own limit of a call (--runtime-request-timeout), in seconds; a sandbox has twice as
#: long to start.
SECONDS: Final = 120.0

#: PodSandboxState.SANDBOX_READY
READY: Final = 0
#: ContainerState
CREATED: Final = 0
RUNNING: Final = 1
EXITED: Final = 2

MESSAGES: Final = Messages(
    PACKAGE,
    {
        "Empty": {},
        "PodSandboxMetadata": {
            "name": (1, "string"),
            "uid": (2, "string"),
            "namespace": (3, "string"),
            "attempt": (4, "int32"),
        },
        "NamespaceOption": {"network": (1, "int32"), "pid": (2, "int32"), "ipc": (3, "int32")},
        "SandboxSecurity": {"namespace_options": (1, "NamespaceOption")},
        "Resources": {
            "cpu_period": (1, "int64"),
            "cpu_quota": (2, "int64"),
            "cpu_shares": (3, "int64"),
            "memory_limit_in_bytes": (4, "int64"),
            "oom_score_adj": (5, "int64"),
            "cpuset_cpus": (6, "string"),
            "cpuset_mems": (7, "string"),
            "unified": (9, MAP),
        },
        "LinuxPodSandboxConfig": {
            "cgroup_parent": (1, "string"),
            "security_context": (2, "SandboxSecurity"),
            "overhead": (4, "Resources"),
            "resources": (5, "Resources"),
        },
        "PodSandboxConfig": {
            "metadata": (1, "PodSandboxMetadata"),
            "hostname": (2, "string"),
            "log_directory": (3, "string"),
            "labels": (6, MAP),
            "annotations": (7, MAP),
            "linux": (8, "LinuxPodSandboxConfig"),
        },
        "KeyValue": {"key": (1, "string"), "value": (2, "string")},
        "CDIDevice": {"name": (1, "string")},
        "ContainerMetadata": {"name": (1, "string"), "attempt": (2, "int32")},
        "ImageSpec": {"image": (1, "string")},
        "ContainerSecurity": {"namespace_options": (3, "NamespaceOption")},
        "LinuxContainerConfig": {
            "resources": (1, "Resources"),
            "security_context": (2, "ContainerSecurity"),
        },
        "ContainerConfig": {
            "metadata": (1, "ContainerMetadata"),
            "image": (2, "ImageSpec"),
            "command": (3, "repeated string"),
            "args": (4, "repeated string"),
            "envs": (6, "repeated KeyValue"),
            "labels": (9, MAP),
            "annotations": (10, MAP),
            "log_path": (11, "string"),
            "linux": (15, "LinuxContainerConfig"),
            "CDI_devices": (17, "repeated CDIDevice"),
        },
        "RunPodSandboxRequest": {"config": (1, "PodSandboxConfig")},
        "RunPodSandboxResponse": {"pod_sandbox_id": (1, "string")},
        "PodSandboxRequest": {"pod_sandbox_id": (1, "string")},
        "CreateContainerRequest": {
            "pod_sandbox_id": (1, "string"),
            "config": (2, "ContainerConfig"),
            "sandbox_config": (3, "PodSandboxConfig"),
        },
        "CreateContainerResponse": {"container_id": (1, "string")},
        "ContainerRequest": {"container_id": (1, "string")},
        "StopContainerRequest": {"container_id": (1, "string"), "timeout": (2, "int64")},
        "UpdateContainerResourcesRequest": {
            "container_id": (1, "string"),
            "linux": (2, "Resources"),
        },
        "PodSandboxFilter": {"label_selector": (3, MAP)},
        "ListPodSandboxRequest": {"filter": (1, "PodSandboxFilter")},
        "PodSandbox": {
            "id": (1, "string"),
            "metadata": (2, "PodSandboxMetadata"),
            "state": (3, "int32"),
            "created_at": (4, "int64"),
            "labels": (6, MAP),
        },
        "ListPodSandboxResponse": {"items": (1, "repeated PodSandbox")},
        "ContainerFilter": {"label_selector": (4, MAP)},
        "ListContainersRequest": {"filter": (1, "ContainerFilter")},
        "Container": {
            "id": (1, "string"),
            "pod_sandbox_id": (2, "string"),
            "metadata": (3, "ContainerMetadata"),
            "state": (6, "int32"),
            "created_at": (7, "int64"),
            "labels": (8, MAP),
        },
        "ListContainersResponse": {"containers": (1, "repeated Container")},
        "ContainerStatus": {
            "id": (1, "string"),
            "state": (3, "int32"),
            "exit_code": (7, "int32"),
            "reason": (10, "string"),
        },
        "ContainerStatusResponse": {"status": (1, "ContainerStatus")},
    },
)

#: call -> (request, response)
CALLS: Final = {
    "RunPodSandbox": ("RunPodSandboxRequest", "RunPodSandboxResponse"),
    "StopPodSandbox": ("PodSandboxRequest", "Empty"),
    "RemovePodSandbox": ("PodSandboxRequest", "Empty"),
    "CreateContainer": ("CreateContainerRequest", "CreateContainerResponse"),
    "StartContainer": ("ContainerRequest", "Empty"),
    "StopContainer": ("StopContainerRequest", "Empty"),
    "RemoveContainer": ("ContainerRequest", "Empty"),
    "ContainerStatus": ("ContainerRequest", "ContainerStatusResponse"),
    "UpdateContainerResources": ("UpdateContainerResourcesRequest", "Empty"),
    "ListPodSandbox": ("ListPodSandboxRequest", "ListPodSandboxResponse"),
    "ListContainers": ("ListContainersRequest", "ListContainersResponse"),
}


#: The calls that the runtime starts processes for: all but those that read.
_COSTLY: Final = CALLS.keys() - {"ContainerStatus", "ListPodSandbox", "ListContainers"}


class Runtime(Protocol):
    """A container runtime as the pod workers call it."""

    async def call(self, name: str, /, **fields: object) -> Message:
        """Return the response of a call; raises `CallError` with the runtime's message."""
        ...


class CriClient:
    """A runtime behind its CRI socket, which has `at_once` costly calls at a time."""

    def __init__(self, socket: Path, seconds: float = SECONDS, at_once: int = 1000) -> None:
        self._client = Client(socket, SERVICE)
        self._seconds = seconds
        self._turns = asyncio.Semaphore(at_once)

    async def call(self, name: str, /, **fields: object) -> Message:
        """Return the response of a call; raises `CallError` with the runtime's message."""
        request, response = (MESSAGES[each] for each in CALLS[name])
        seconds = 2 * self._seconds if name == "RunPodSandbox" else self._seconds
        async with self._turns if name in _COSTLY else contextlib.nullcontext():
            return await self._client.call(name, request(**fields), response, seconds)

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True, slots=True)
class Observed:
    """What the runtime has of one pod: its newest sandbox, and its containers by name.

    Of each container that is the newest one; `old` are the ids of all others and `sandboxes` those
    of all sandboxes.
    """

    sandbox: str
    ready: bool
    containers: Mapping[str, Message]
    old: tuple[str, ...]
    sandboxes: tuple[str, ...]


async def observe(runtime: Runtime, uid: str) -> Observed:
    """Return what the runtime has of the pod; raises `CallError`."""
    chosen = {"label_selector": {"io.kubernetes.pod.uid": uid}}
    found = (await runtime.call("ListPodSandbox", filter=chosen)).items
    sandboxes = sorted(found, key=lambda each: each.created_at)
    newest = sandboxes[-1] if sandboxes else None
    listed = (await runtime.call("ListContainers", filter=chosen)).containers
    containers: dict[str, Message] = {}
    old: list[str] = []
    for each in sorted(listed, key=lambda each: each.created_at):
        name = each.labels["io.kubernetes.container.name"]
        if newest is None or each.pod_sandbox_id != newest.id:
            old.append(each.id)
            continue
        if name in containers:
            old.append(containers[name].id)
        containers[name] = each
    return Observed(
        sandbox=newest.id if newest else "",
        ready=newest is not None and newest.state == READY,
        containers=containers,
        old=tuple(old),
        sandboxes=tuple(each.id for each in sandboxes),
    )


async def states(runtime: Runtime) -> dict[str, frozenset[tuple[str, int]]]:
    """Return id and state of all sandboxes and containers by the uid of their pod."""
    found: dict[str, set[tuple[str, int]]] = {}
    sandboxes = (await runtime.call("ListPodSandbox", filter={})).items
    containers = (await runtime.call("ListContainers", filter={})).containers
    for each in (*sandboxes, *containers):
        uid = each.labels.get("io.kubernetes.pod.uid", "")
        found.setdefault(uid, set()).add((each.id, each.state))
    return {uid: frozenset(pairs) for uid, pairs in found.items()}

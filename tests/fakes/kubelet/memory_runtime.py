"""A container runtime in memory: CRI's answers, containers that end when a test says so."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.rpc import CallError
from tests.fakes.kubelet import cri

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.rpc import Message
    from tests.fakes.systemd import FakeSystemd


@dataclass(slots=True)
class MemoryContainer:
    """One container; `updates` are the resources of each UpdateContainerResources."""

    id: str
    sandbox: str
    config: Mapping[str, Any]
    number: int
    state: int = cri.CREATED
    exit_code: int = 0
    updates: list[Mapping[str, Any]] = field(default_factory=list)
    #: What plugins added.
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The container's name."""
        name: str = self.config["metadata"]["name"]
        return name


@dataclass(slots=True)
class MemorySandbox:
    """One sandbox."""

    id: str
    config: Mapping[str, Any]
    number: int
    ready: bool = True


class MemoryRuntime:
    """`cri.Runtime` in memory. `errors` are messages by call: that call fails while there is one.

    `ends` are names of containers that exit with 0 as soon as they are started. With a `systemd`
    each sandbox and each running container has a process in a delegated scope of its pod's slice.
    """

    def __init__(
        self, ends: frozenset[str] = frozenset(), systemd: FakeSystemd | None = None
    ) -> None:
        self._systemd = systemd
        self.sandboxes: dict[str, MemorySandbox] = {}
        self.containers: dict[str, MemoryContainer] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.errors: dict[str, str] = {}
        self.ends = ends
        self._numbers = itertools.count(1)

    async def call(self, name: str, /, **fields: Any) -> Message:  # noqa: ANN401  # of any message
        """Return the response of a call; raises `CallError`."""
        request, response = (cri.MESSAGES[each] for each in cri.CALLS[name])
        request(**fields)  # a field that CRI does not have is an error here, too
        if not name.startswith(("List", "ContainerStatus")):
            self.calls.append((name, fields))
        if name in self.errors:
            raise CallError("UNKNOWN", self.errors[name])
        answer = getattr(self, f"_{name}")(**fields)
        return response(**(answer or {}))

    def of(self, name: str) -> MemoryContainer:
        """Return the newest container of a name."""
        found = [each for each in self.containers.values() if each.name == name]
        return found[-1]

    def end(self, name: str, exit_code: int = 0) -> None:
        """Have a container exit by itself."""
        container = self.of(name)
        container.state, container.exit_code = cri.EXITED, exit_code
        self._kill(container.id, container.number)

    def _spawn(self, sandbox: str, name: str, number: int) -> None:
        """Start a process, whose id is the number, in a scope named after sandbox or container."""
        if self._systemd is not None:
            parent: str = self.sandboxes[sandbox].config["linux"]["cgroup_parent"]
            above = parent.rpartition("/")[2]
            self._systemd.start_scope(scope_of(name), above, number, delegate=True)

    def _kill(self, name: str, number: int) -> None:
        if self._systemd is not None and scope_of(name) in self._systemd.units:
            self._systemd.kernel.exit(number)
            self._systemd.stop(scope_of(name))

    def _RunPodSandbox(self, config: Mapping[str, Any]) -> dict[str, object]:  # noqa: N802  # CRI's
        number = next(self._numbers)
        made = MemorySandbox(f"{number:064x}", config, number)
        self.sandboxes[made.id] = made
        self._spawn(made.id, made.id, number)
        return {"pod_sandbox_id": made.id}

    def _CreateContainer(  # noqa: N802  # CRI's
        self, pod_sandbox_id: str, config: Mapping[str, Any], sandbox_config: Mapping[str, Any]
    ) -> dict[str, object]:
        assert self.sandboxes[pod_sandbox_id].config == sandbox_config
        number = next(self._numbers)
        made = MemoryContainer(f"{number:064x}", pod_sandbox_id, config, number)
        self.containers[made.id] = made
        return {"container_id": made.id}

    def _StartContainer(self, container_id: str) -> None:  # noqa: N802  # CRI's
        container = self.containers[container_id]
        container.state = cri.RUNNING
        self._spawn(container.sandbox, container.id, container.number)
        if container.name in self.ends:
            self.end(container.name)

    def _StopContainer(self, container_id: str, timeout: int) -> None:  # noqa: N802, ARG002  # CRI's
        container = self.containers[container_id]
        container.state = cri.EXITED
        self._kill(container.id, container.number)

    def _StopPodSandbox(self, pod_sandbox_id: str) -> None:  # noqa: N802  # CRI's
        sandbox = self.sandboxes[pod_sandbox_id]
        sandbox.ready = False
        for container in self.containers.values():
            if container.sandbox == pod_sandbox_id and container.state == cri.RUNNING:
                self._StopContainer(container.id, 0)
        self._kill(sandbox.id, sandbox.number)

    def _RemoveContainer(self, container_id: str) -> None:  # noqa: N802  # CRI's
        del self.containers[container_id]

    def _RemovePodSandbox(self, pod_sandbox_id: str) -> None:  # noqa: N802  # CRI's
        del self.sandboxes[pod_sandbox_id]
        for name, container in list(self.containers.items()):
            if container.sandbox == pod_sandbox_id:
                del self.containers[name]

    def _UpdateContainerResources(  # noqa: N802  # CRI's
        self, container_id: str, linux: Mapping[str, Any]
    ) -> None:
        self.containers[container_id].updates.append(linux)

    def _ContainerStatus(self, container_id: str) -> dict[str, object]:  # noqa: N802  # CRI's
        found = self.containers[container_id]
        status = {"id": found.id, "state": found.state, "exit_code": found.exit_code}
        return {"status": status}

    def _ListPodSandbox(self, filter: Mapping[str, Any]) -> dict[str, object]:  # noqa: N802, A002  # CRI's
        items = [
            {
                "id": each.id,
                "state": int(not each.ready),
                "created_at": each.number,
                "labels": each.config["labels"],
            }
            for each in self.sandboxes.values()
            if _matches(each.config, filter)
        ]
        return {"items": items}

    def _ListContainers(self, filter: Mapping[str, Any]) -> dict[str, object]:  # noqa: N802, A002  # CRI's
        listed = [
            {
                "id": each.id,
                "pod_sandbox_id": each.sandbox,
                "metadata": each.config["metadata"],
                "state": each.state,
                "created_at": each.number,
                "labels": each.config["labels"],
            }
            for each in self.containers.values()
            if _matches(each.config, filter)
        ]
        return {"containers": listed}


def scope_of(name: str) -> str:
    """Return the unit of a sandbox or container by its id."""
    return f"cri-containerd-{name}.scope"


def _matches(config: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    labels = config["labels"].items()
    return all(pair in labels for pair in asked.get("label_selector", {}).items())

"""A container runtime in memory: CRI's answers, after NRI plugins were asked as containerd does.

Each sandbox and running container has a process in a delegated scope of the emulated systemd, with
the sets and the quota that the kubelet and the plugins gave it. A plugin that does not answer in
time is disconnected, and the container starts as the kubelet asked.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agent.cluster.nri.events import NriEvent
from agent.rpc.calls import CallError
from cgroupfs.tree import join
from tests.agent.bundles import bundle
from tests.agent.bundles import cri as cri_annotations
from tests.fakes.kubelet import cri
from tests.fakes.nri_runtime import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.rpc.messages import Message
    from tests.fakes.systemd import FakeSystemd

#: How long a plugin may take, in seconds (containerd's default).
REQUEST_SECONDS: Final = 2.0
#: Numbers of NRI's ContainerState by those of CRI's.
_STATES: Final = {cri.CREATED: 1, cri.RUNNING: 3, cri.EXITED: 4}
_OPTIONAL: Final = {"cpu_quota": "quota", "cpu_period": "period", "cpu_shares": "shares"}
_SETS: Final = {"cpus": "cpuset.cpus", "mems": "cpuset.mems"}


@dataclass(slots=True)
class MemorySandbox:
    id: str
    config: Mapping[str, Any]
    number: int
    ready: bool = True

    @property
    def parent(self) -> str:
        parent: str = self.config["linux"]["cgroup_parent"]
        return parent


@dataclass(slots=True)
class MemoryContainer:
    """One container; `updates` are the resources of each UpdateContainerResources."""

    id: str
    sandbox: MemorySandbox
    config: Mapping[str, Any]
    number: int
    #: Its LinuxCPU as NRI shows it, adjusted.
    cpu: dict[str, Any]
    state: int = cri.CREATED
    exit_code: int = 0
    updates: list[Mapping[str, Any]] = field(default_factory=list)
    #: What plugins added.
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        name: str = self.config["metadata"]["name"]
        return name


class MemoryRuntime:
    """`cri.Runtime` in memory with an NRI socket; `start` before plugins connect.

    `ends` are names of containers that exit with 0 as soon as they are started. `seconds` is how
    long plugins may take. `events` are those sent, each with the pod and the container. Bundles are
    written below `root`, the host's file system.
    """

    def __init__(
        self, socket: Path, systemd: FakeSystemd, root: Path, ends: frozenset[str] = frozenset()
    ) -> None:
        self._systemd = systemd
        self._root = root
        self.sandboxes: dict[str, MemorySandbox] = {}
        self.containers: dict[str, MemoryContainer] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.ends = ends
        self._numbers = itertools.count(1)
        self.nri = FakeRuntime(socket)
        self.seconds = REQUEST_SECONDS
        self.events: list[tuple[str, str, str]] = []
        #: How many plugins have connected, and what they asked for then is applied.
        self.repaired = 0
        self._repairing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve NRI; a plugin that connects is sent all pods and containers."""
        await self.nri.start()
        self._repairing = asyncio.create_task(self._repair(len(self.nri.plugins)))

    async def stop(self) -> None:
        """Close NRI; containers go on running."""
        if self._repairing is not None:
            self._repairing.cancel()
        await self.nri.stop()

    def of(self, name: str) -> MemoryContainer:
        return [each for each in self.containers.values() if each.name == name][-1]

    def cgroup_of(self, name: str) -> str:
        container = self.of(name)
        return join(container.sandbox.parent.lstrip("/"), scope_of(container.id))

    def end(self, name: str, exit_code: int = 0) -> None:
        container = self.of(name)
        container.exit_code = exit_code
        self._exit(container)

    async def call(self, name: str, /, **fields: Any) -> Message:  # noqa: ANN401  # of any message
        """Return the response of a call, after the plugins were asked; raises `CallError`."""
        request, response = (cri.MESSAGES[each] for each in cri.CALLS[name])
        request(**fields)  # a field that CRI does not have is an error here, too
        if not name.startswith(("List", "ContainerStatus")):
            self.calls.append((name, fields))
        try:
            answer = await getattr(self, f"_{name}")(**fields)
        finally:  # the next plugin is sent the pods and containers of now
            self.nri.pods = [_pod(each) for each in self.sandboxes.values()]
            self.nri.containers = [_container(each) for each in self.containers.values()]
        return response(**(answer or {}))

    async def _RunPodSandbox(self, config: Mapping[str, Any]) -> dict[str, object]:  # noqa: N802  # CRI's
        number = next(self._numbers)
        made = MemorySandbox(f"{number:064x}", config, number)
        self.sandboxes[made.id] = made
        self._spawn(made, made.id, number)
        self._write_bundle(made, made.id, None)
        await self._ask(NriEvent.RUN_POD_SANDBOX, made)
        return {"pod_sandbox_id": made.id}

    async def _CreateContainer(  # noqa: N802  # CRI's
        self, pod_sandbox_id: str, config: Mapping[str, Any], sandbox_config: Mapping[str, Any]
    ) -> dict[str, object]:
        sandbox = self.sandboxes[pod_sandbox_id]
        assert sandbox.config == sandbox_config
        number = next(self._numbers)
        cpu = _cpu(config["linux"]["resources"])
        made = MemoryContainer(f"{number:064x}", sandbox, config, number, cpu)
        reply = await self._ask(NriEvent.CREATE_CONTAINER, sandbox, made)
        self.containers[made.id] = made
        self._write_bundle(sandbox, made.id, made.name)
        if reply is not None:
            adjusted = reply.as_message("CreateContainerResponse").adjust
            _apply(made.cpu, adjusted.linux.resources)
            made.environment.update({each.key: each.value for each in adjusted.env})
        return {"container_id": made.id}

    async def _StartContainer(self, container_id: str) -> None:  # noqa: N802  # CRI's
        container = self.containers[container_id]
        container.state = cri.RUNNING
        self._spawn(container.sandbox, container.id, container.number)
        if container.name in self.ends:
            self._exit(container)
        self._write(container)
        await self._ask(NriEvent.POST_START_CONTAINER, container.sandbox, container)
        if container.state == cri.EXITED:
            await self._ask(NriEvent.STOP_CONTAINER, container.sandbox, container)

    async def _StopContainer(self, container_id: str, timeout: int) -> None:  # noqa: N802, ARG002, ASYNC109  # CRI's
        container = self.containers[container_id]
        self._exit(container)
        await self._ask(NriEvent.STOP_CONTAINER, container.sandbox, container)

    async def _StopPodSandbox(self, pod_sandbox_id: str) -> None:  # noqa: N802  # CRI's
        sandbox = self.sandboxes[pod_sandbox_id]
        sandbox.ready = False
        for container in self.containers.values():
            if container.sandbox is sandbox and container.state == cri.RUNNING:
                self._exit(container)
        self._kill(sandbox.id, sandbox.number)
        await self._ask(NriEvent.STOP_POD_SANDBOX, sandbox)

    async def _RemoveContainer(self, container_id: str) -> None:  # noqa: N802  # CRI's
        del self.containers[container_id]

    async def _RemovePodSandbox(self, pod_sandbox_id: str) -> None:  # noqa: N802  # CRI's
        sandbox = self.sandboxes[pod_sandbox_id]
        await self._ask(NriEvent.REMOVE_POD_SANDBOX, sandbox)
        del self.sandboxes[pod_sandbox_id]
        for name, container in list(self.containers.items()):
            if container.sandbox is sandbox:
                del self.containers[name]

    async def _UpdateContainerResources(  # noqa: N802  # CRI's
        self, container_id: str, linux: Mapping[str, Any]
    ) -> None:
        container = self.containers[container_id]
        container.updates.append(linux)
        reply = await self._ask(NriEvent.UPDATE_CONTAINER, container.sandbox, container, linux)
        container.cpu |= _cpu(linux)
        if reply is not None:
            for update in reply.as_message("UpdateContainerResponse").update:
                _apply(self.containers[update.container_id].cpu, update.linux.resources)
        self._write(container)

    async def _ContainerStatus(self, container_id: str) -> dict[str, object]:  # noqa: N802  # CRI's
        found = self.containers[container_id]
        status = {"id": found.id, "state": found.state, "exit_code": found.exit_code}
        return {"status": status}

    async def _ListPodSandbox(self, filter: Mapping[str, Any]) -> dict[str, object]:  # noqa: N802, A002  # CRI's
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

    async def _ListContainers(self, filter: Mapping[str, Any]) -> dict[str, object]:  # noqa: N802, A002  # CRI's
        listed = [
            {
                "id": each.id,
                "pod_sandbox_id": each.sandbox.id,
                "metadata": each.config["metadata"],
                "state": each.state,
                "created_at": each.number,
                "labels": each.config["labels"],
            }
            for each in self.containers.values()
            if _matches(each.config, filter)
        ]
        return {"containers": listed}

    async def _repair(self, number: int) -> None:
        """Apply what each plugin asks for in its answer to Synchronize."""
        while True:
            plugin = await self.nri.connection(number)
            ended = (plugin.synchronized.wait(), plugin.closed.wait())
            tasks = [asyncio.create_task(each) for each in ended]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            for update in plugin.repairs:
                container = self.containers[update.container_id]
                _apply(container.cpu, update.linux.resources)
                self._write(container)
            self.repaired = number = number + 1

    async def _ask(
        self,
        event: NriEvent,
        sandbox: MemorySandbox,
        container: MemoryContainer | None = None,
        asked: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # a reply, or None without a plugin
        named = container.name if container else ""
        self.events.append((event.method, sandbox.config["metadata"]["name"], named))
        shown = None if container is None else _container(container)
        resources = None if asked is None else {"cpu": _cpu(asked), **_memory(asked)}
        for plugin in self.nri.plugins:
            if plugin.closed.is_set() or not plugin.synchronized.is_set():
                continue
            try:
                async with asyncio.timeout(self.seconds):
                    reply = await plugin.event(event, _pod(sandbox), shown, resources)
            except TimeoutError:
                plugin.writer.transport.abort()
                continue
            except ConnectionError:
                continue
            if reply.code:
                words = "failed to get NRI adjustment for container: rpc error"
                raise CallError("UNKNOWN", f"{words}: {reply.message}")
            return reply
        return None

    def _spawn(self, sandbox: MemorySandbox, name: str, number: int) -> None:
        """Start a process, whose id is the number, in a scope named after sandbox or container."""
        above = sandbox.parent.rpartition("/")[2]
        self._systemd.start_scope(scope_of(name), above, number, delegate=True)

    def _exit(self, container: MemoryContainer) -> None:
        container.state = cri.EXITED
        self._kill(container.id, container.number)

    def _kill(self, name: str, number: int) -> None:
        if scope_of(name) in self._systemd.units:
            self._systemd.kernel.exit(number)
            self._systemd.stop(scope_of(name))

    def _write_bundle(self, sandbox: MemorySandbox, name: str, container: str | None) -> None:
        metadata = sandbox.config["metadata"]
        annotations = cri_annotations(container, metadata["uid"], metadata["name"])
        bundle(self._root, annotations, id_=name)

    def _write(self, container: MemoryContainer) -> None:
        """Write sets and quota into the cgroup of a running container, as runc does."""
        unit = self._systemd.units.get(scope_of(container.id))
        if unit is None:
            return
        for name, file in _SETS.items():
            if container.cpu.get(name):
                self._systemd.kernel.write(unit.path, file, container.cpu[name])
        quota = container.cpu.get("quota", {}).get("value", -1)
        period = container.cpu.get("period", {}).get("value", 100_000)
        text = f"{quota if quota > 0 else 'max'} {period}"
        self._systemd.kernel.write(unit.path, "cpu.max", text)


def scope_of(name: str) -> str:
    return f"cri-containerd-{name}.scope"


def _matches(config: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    labels = config["labels"].items()
    return all(pair in labels for pair in asked.get("label_selector", {}).items())


def _pod(sandbox: MemorySandbox) -> dict[str, Any]:
    metadata, linux = sandbox.config["metadata"], sandbox.config["linux"]
    return {
        "id": sandbox.id,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "namespace": metadata["namespace"],
        "annotations": sandbox.config["annotations"],
        "linux": {
            "cgroup_parent": linux["cgroup_parent"],
            "pod_resources": {"cpu": _cpu(linux["resources"])},
        },
    }


def _container(container: MemoryContainer) -> dict[str, Any]:
    config = container.config
    unit = container.sandbox.parent.rpartition("/")[2]
    return {
        "id": container.id,
        "pod_sandbox_id": container.sandbox.id,
        "name": container.name,
        "state": _STATES[container.state],
        "annotations": config["annotations"],
        "env": [f"{each['key']}={each['value']}" for each in config["envs"]],
        "linux": {
            "resources": {"cpu": container.cpu},
            "cgroups_path": f"{unit}:cri-containerd:{container.id}",
        },
        "pid": container.number if container.state == cri.RUNNING else 0,
    }


def _cpu(linux: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"value": linux[given]} for given, name in _OPTIONAL.items() if linux.get(given)}


def _memory(linux: Mapping[str, Any]) -> dict[str, Any]:
    limit = linux.get("memory_limit_in_bytes")
    return {"memory": {"limit": {"value": limit}}} if limit else {}


def _apply(cpu: dict[str, Any], resources: Message) -> None:
    asked = resources.cpu
    for name in _SETS:
        if getattr(asked, name):
            cpu[name] = getattr(asked, name)
    for name in _OPTIONAL.values():
        if asked.HasField(name):
            cpu[name] = {"value": getattr(asked, name).value}

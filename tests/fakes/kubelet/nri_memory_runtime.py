"""A container runtime in memory that asks NRI plugins, as containerd does.

Each sandbox and container has a process in a scope of the emulated systemd, with the sets and the
quota that the kubelet and the plugins gave it. A plugin that does not answer in time is
disconnected, and the container starts as the kubelet asked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from agent.cluster.nri.messages import NriEvent
from agent.rpc import CallError
from cgroupfs.tree import join
from tests.agent.bundles import bundle
from tests.agent.bundles import cri as cri_annotations
from tests.fakes.kubelet import cri
from tests.fakes.kubelet.memory_runtime import MemoryRuntime, scope_of
from tests.fakes.nri_runtime import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.rpc import Message
    from tests.fakes.kubelet.memory_runtime import MemoryContainer, MemorySandbox
    from tests.fakes.systemd import FakeSystemd

#: How long a plugin may take, in seconds (containerd's default).
REQUEST_SECONDS: Final = 2.0
#: Numbers of NRI's ContainerState by those of CRI's.
_STATES: Final = {cri.CREATED: 1, cri.RUNNING: 3, cri.EXITED: 4}
_OPTIONAL: Final = {"cpu_quota": "quota", "cpu_period": "period", "cpu_shares": "shares"}
_SETS: Final = {"cpus": "cpuset.cpus", "mems": "cpuset.mems"}


class NriMemoryRuntime(MemoryRuntime):
    """A runtime in memory with an NRI socket; `start` before plugins connect.

    `seconds` is how long plugins may take. `events` are those sent, each with the pod and the
    container. Bundles are written below `root`, the host's file system.
    """

    def __init__(
        self, socket: Path, systemd: FakeSystemd, root: Path, ends: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(ends, systemd)
        self._root = root
        self._units = systemd
        self.nri = FakeRuntime(socket)
        self.seconds = REQUEST_SECONDS
        self.events: list[tuple[str, str, str]] = []
        #: Resources of each running container as NRI shows them, adjusted.
        self._adjusted: dict[str, dict[str, Any]] = {}
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
                self._update(update.container_id, update.linux.resources)
            self.repaired = number = number + 1

    def _show(self) -> None:
        """Have the next plugin sent the pods and containers of now."""
        self.nri.pods = [self._pod(each) for each in self.sandboxes.values()]
        self.nri.containers = [self._container(each) for each in self.containers.values()]

    async def call(self, name: str, /, **fields: Any) -> Message:  # noqa: ANN401  # of any message
        """Return the response of a call, after the plugins were asked; raises `CallError`."""
        try:
            return await self._called(name, **fields)
        finally:
            self._show()

    async def _called(self, name: str, /, **fields: Any) -> Message:  # noqa: ANN401  # of any message
        if name == "RemovePodSandbox":
            removed = self.sandboxes[fields["pod_sandbox_id"]]
            await self._ask(NriEvent.REMOVE_POD_SANDBOX, removed)
        answer = await super().call(name, **fields)
        if name == "RunPodSandbox":
            sandbox = self.sandboxes[answer.pod_sandbox_id]
            self._write_bundle(sandbox, sandbox.id, None)
            await self._ask(NriEvent.RUN_POD_SANDBOX, sandbox)
        elif name == "CreateContainer":
            await self._create(self.containers[answer.container_id])
        elif name == "StartContainer":
            await self._started(self.containers[fields["container_id"]])
        elif name == "UpdateContainerResources":
            await self._resize(self.containers[fields["container_id"]], fields["linux"])
        elif name == "StopContainer":
            await self._ended(self.containers[fields["container_id"]])
        elif name == "StopPodSandbox":
            sandbox = self.sandboxes[fields["pod_sandbox_id"]]
            await self._ask(NriEvent.STOP_POD_SANDBOX, sandbox)
        return answer

    async def _create(self, container: MemoryContainer) -> None:
        resources = dict(container.config["linux"]["resources"])
        try:
            reply = await self._ask(
                NriEvent.CREATE_CONTAINER, self.sandboxes[container.sandbox], container
            )
        except CallError:
            del self.containers[container.id]
            raise
        self._write_bundle(self.sandboxes[container.sandbox], container.id, container.name)
        self._adjusted[container.id] = _cpu(resources)
        if reply is not None:
            adjusted = reply.as_message("CreateContainerResponse").adjust
            _apply(self._adjusted[container.id], adjusted.linux.resources)
            container.environment.update({each.key: each.value for each in adjusted.env})

    def _write_bundle(self, sandbox: MemorySandbox, name: str, container: str | None) -> None:
        metadata = sandbox.config["metadata"]
        annotations = cri_annotations(container, metadata["uid"], metadata["name"])
        bundle(self._root, annotations, id_=name)

    async def _started(self, container: MemoryContainer) -> None:
        self._write(container)
        sandbox = self.sandboxes[container.sandbox]
        await self._ask(NriEvent.POST_START_CONTAINER, sandbox, container)
        if container.state == cri.EXITED:
            await self._ask(NriEvent.STOP_CONTAINER, sandbox, container)

    async def _ended(self, container: MemoryContainer) -> None:
        await self._ask(NriEvent.STOP_CONTAINER, self.sandboxes[container.sandbox], container)

    async def _resize(self, container: MemoryContainer, linux: Mapping[str, Any]) -> None:
        sandbox = self.sandboxes[container.sandbox]
        reply = await self._ask(NriEvent.UPDATE_CONTAINER, sandbox, container, linux)
        self._adjusted[container.id] |= _cpu(linux)
        if reply is not None:
            for update in reply.as_message("UpdateContainerResponse").update:
                _apply(self._adjusted[update.container_id], update.linux.resources)
        self._write(container)

    def _update(self, container_id: str, resources: Message) -> None:
        container = self.containers[container_id]
        _apply(self._adjusted[container_id], resources)
        self._write(container)

    def _write(self, container: MemoryContainer) -> None:
        """Write sets and quota into the cgroup of a running container, as runc does."""
        unit = self._units.units.get(scope_of(container.id))
        if unit is None:
            return
        cpu = self._adjusted[container.id]
        for name, file in _SETS.items():
            if cpu.get(name):
                self._units.kernel.write(unit.path, file, cpu[name])
        quota = cpu.get("quota", {}).get("value", -1)
        text = f"{quota if quota > 0 else 'max'} {cpu.get('period', {}).get('value', 100_000)}"
        self._units.kernel.write(unit.path, "cpu.max", text)

    async def _ask(
        self,
        event: NriEvent,
        sandbox: MemorySandbox,
        container: MemoryContainer | None = None,
        asked: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # a reply, or None without a plugin
        named = container.name if container else ""
        self.events.append((event.method, sandbox.config["metadata"]["name"], named))
        shown = None if container is None else self._container(container)
        for plugin in self.nri.plugins:
            if plugin.closed.is_set() or not plugin.synchronized.is_set():
                continue
            try:
                resources = None if asked is None else {"cpu": _cpu(asked)}
                async with asyncio.timeout(self.seconds):
                    reply = await plugin.event(event, self._pod(sandbox), shown, resources)
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

    def _pod(self, sandbox: MemorySandbox) -> dict[str, Any]:
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

    def _container(self, container: MemoryContainer) -> dict[str, Any]:
        config = container.config
        parent = self.sandboxes[container.sandbox].config["linux"]["cgroup_parent"]
        cpu = self._adjusted.get(container.id) or _cpu(config["linux"]["resources"])
        path = f"{parent.rpartition('/')[2]}:cri-containerd:{container.id}"
        return {
            "id": container.id,
            "pod_sandbox_id": container.sandbox,
            "name": container.name,
            "state": _STATES[container.state],
            "annotations": config["annotations"],
            "env": [f"{each['key']}={each['value']}" for each in config["envs"]],
            "linux": {"resources": {"cpu": cpu}, "cgroups_path": path},
            "pid": container.number if container.state == cri.RUNNING else 0,
        }

    def cgroup_of(self, name: str) -> str:
        """Return the cgroup of the newest container of a name."""
        container = self.of(name)
        parent: str = self.sandboxes[container.sandbox].config["linux"]["cgroup_parent"]
        return join(parent.lstrip("/"), scope_of(container.id))


def _cpu(linux: Mapping[str, Any]) -> dict[str, Any]:
    """Return NRI's LinuxCPU of CRI's resources."""
    return {name: {"value": linux[given]} for given, name in _OPTIONAL.items() if linux.get(given)}


def _apply(cpu: dict[str, Any], resources: Message) -> None:
    """Change a LinuxCPU as a plugin asked."""
    asked = resources.cpu
    for name in _SETS:
        if getattr(asked, name):
            cpu[name] = getattr(asked, name)
    for name in _OPTIONAL.values():
        if asked.HasField(name):
            cpu[name] = {"value": getattr(asked, name).value}

"""One pod's worker: brings what the runtime runs to what the pod asks for, step by step.

The order is the kubelet's: the pod's cgroup, its sandbox, the init containers one after the other
(a sidecar is started and goes on), then the apps. A step that fails is tried again later, from the
beginning: nothing is remembered between two syncs but the runtime's own list.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent.rpc.calls import CallError
from systemd.units import SystemdError
from tests.fakes.kubelet import cri
from tests.fakes.kubelet.cgroups import parent_of
from tests.fakes.kubelet.pods import ContainerStatus
from tests.fakes.kubelet.resources import (
    PERIOD_US,
    Shape,
    is_sidecar,
    oom_score,
    shape_of_container,
    shape_of_pod,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fakes.kubelet.cgroups import PodCgroups
    from tests.fakes.kubelet.cri import Observed, Runtime
    from tests.fakes.kubelet.device_shares import DeviceShares
    from tests.fakes.kubelet.pods import KubeletPod, Pods
    from tests.fakes.kubelet.timeline import Timeline

#: NamespaceMode.NODE: the host's network, so that no network plugin is needed.
_HOST_NETWORK: Final = 2
_POD_LABELS: Final = "io.kubernetes.pod"
_CONTAINER_LABELS: Final = "io.kubernetes.container"


@dataclass(frozen=True, slots=True)
class Habits:
    """Periods in seconds: after an error, between two looks at the runtime, before the removal."""

    retry: float = 10.0
    look: float = 1.0
    #: How long stopped containers and sandboxes stay with the runtime.
    linger: float = 5.0
    #: Grace of StopContainer, in whole seconds.
    grace: int = 0


@dataclass(slots=True)
class Node:
    """What all workers of a kubelet share."""

    pods: Pods
    runtime: Runtime
    cgroups: PodCgroups
    devices: DeviceShares
    timeline: Timeline
    habits: Habits
    #: systemd is asked one thing at a time.
    bus: asyncio.Lock


class PodWorker:
    """The worker of one pod that was admitted; `run` ends when the pod is gone."""

    def __init__(self, node: Node, pod: KubeletPod) -> None:
        self._node = node
        self._pod = pod
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._shapes: dict[str, Shape] = {}
        self._size = shape_of_pod(pod.spec)

    def wake(self) -> None:
        """Sync soon: what the runtime has of the pod has changed."""
        self._wake.set()

    def change(self) -> None:
        """Sync now, even after an error: the pod itself has changed."""
        self._changed.set()
        self._wake.set()

    async def run(self) -> None:
        while not self._pod.ending:
            self._wake.clear()
            self._changed.clear()
            try:
                await self._sync()
                await self._wake.wait()
            except (CallError, SystemdError) as error:
                self._node.timeline.add("error", self._pod.name, message=str(error))
                await self._until_retry()
        await self._end()

    async def _until_retry(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._node.habits.retry):
                await self._changed.wait()

    async def _sync(self) -> None:
        await self._in_bus("cgroup", self._node.cgroups.ensure)
        observed = await cri.observe(self._node.runtime, self._pod.uid)
        if observed.ready:
            await self._resize(observed)
        await self._show(observed)
        if not observed.ready:
            await self._run_sandbox(len(observed.sandboxes))
            observed = await cri.observe(self._node.runtime, self._pod.uid)
        if await self._initialized(observed):
            for container in self._pod.spec["containers"]:
                await self._keep_running(observed, container)
        for container in self._pod.spec.get("ephemeralContainers", ()):
            if container["name"] not in observed.containers:
                await self._start(observed, container, 0)
        await self._show(await cri.observe(self._node.runtime, self._pod.uid))

    async def _initialized(self, observed: Observed) -> bool:
        """Start what may start of the init containers; return whether the apps may."""
        for container in self._pod.spec.get("initContainers", ()):
            found = observed.containers.get(container["name"])
            if is_sidecar(container):
                await self._keep_running(observed, container)
            elif found is None:
                await self._start(observed, container, 0)
                return False
            elif found.state != cri.EXITED:
                return False
            elif code := await self._exit_code(found.id):
                raise CallError("UNKNOWN", f"init container {container['name']} exited with {code}")
        return True

    async def _keep_running(self, observed: Observed, container: Mapping[str, Any]) -> None:
        found = observed.containers.get(container["name"])
        if found is None:
            await self._start(observed, container, 0)
        elif found.state == cri.EXITED and self._restarts(container):
            await self._start(observed, container, found.metadata.attempt + 1)

    def _restarts(self, container: Mapping[str, Any]) -> bool:
        policy = self._pod.spec.get("restartPolicy", "Always")
        return is_sidecar(container) or policy == "Always"

    async def _exit_code(self, container: str) -> int:
        status = (await self._node.runtime.call("ContainerStatus", container_id=container)).status
        code: int = status.exit_code
        return code

    async def _run_sandbox(self, attempt: int) -> None:
        await self._timed("RunPodSandbox", "", config=self._sandbox_config(attempt))

    async def _start(self, observed: Observed, container: Mapping[str, Any], attempt: int) -> None:
        name = container["name"]
        status = self._pod.statuses.setdefault(name, ContainerStatus())
        try:
            created = await self._timed(
                "CreateContainer",
                name,
                pod_sandbox_id=observed.sandbox,
                config=self._container_config(container, attempt),
                sandbox_config=self._sandbox_config(len(observed.sandboxes) - 1),
            )
        except CallError as error:
            status.reason, status.message = "CreateContainerError", error.message
            self._node.pods.announce(self._pod)
            raise
        self._shapes[name] = shape_of_container(self._pod.spec, container)
        await self._timed("StartContainer", name, container_id=created.container_id)

    async def _timed(self, call: str, container: str, /, **fields: object) -> Any:  # noqa: ANN401  # a message
        began = time.monotonic()
        outcome: dict[str, object] = {}
        try:
            return await self._node.runtime.call(call, **fields)
        except CallError as error:
            outcome = {"error": error.message}
            raise
        finally:
            seconds = round(time.monotonic() - began, 4)
            self._node.timeline.add(call, self._pod.name, container, seconds=seconds, **outcome)

    def _labels(self) -> dict[str, str]:
        pod = self._pod
        own: dict[str, str] = pod.manifest["metadata"].get("labels", {})
        named = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        return {**own, **{f"{_POD_LABELS}.{name}": text for name, text in named.items()}}

    def _sandbox_config(self, attempt: int) -> dict[str, object]:
        pod = self._pod
        named = {"name": pod.name, "uid": pod.uid, "namespace": pod.namespace}
        return {
            "metadata": {**named, "attempt": attempt},
            "log_directory": f"/var/log/pods/{pod.namespace}_{pod.name}_{pod.uid}",
            "labels": self._labels(),
            "annotations": pod.manifest["metadata"].get("annotations", {}),
            "linux": {
                "cgroup_parent": parent_of(pod.uid, pod.spec),
                "security_context": {"namespace_options": {"network": _HOST_NETWORK}},
                "overhead": {},
                "resources": _linux(shape_of_pod(pod.spec)),
            },
        }

    def _container_config(self, container: Mapping[str, Any], attempt: int) -> dict[str, object]:
        pod, name = self._pod, container["name"]
        delivered = self._node.devices.delivered(pod.uid, name)
        variables = {each["name"]: each.get("value", "") for each in container.get("env", ())}
        variables |= delivered.environment
        linux = _linux(shape_of_container(pod.spec, container))
        labels = {f"{_CONTAINER_LABELS}.name": name}
        return {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": container["image"]},
            "command": container.get("command", ()),
            "args": container.get("args", ()),
            "envs": [{"key": key, "value": value} for key, value in variables.items()],
            "labels": {
                **{label: text for label, text in self._labels().items() if label[:3] == "io."},
                **labels,
            },
            "annotations": {
                **delivered.annotations,
                f"{_CONTAINER_LABELS}.restartCount": str(attempt),
            },
            "log_path": f"{name}/{attempt}.log",
            "linux": {
                "resources": {**linux, "oom_score_adj": oom_score(pod.spec)},
                "security_context": {"namespace_options": {"network": _HOST_NETWORK}},
            },
            "CDI_devices": [{"name": device} for device in delivered.cdi_devices],
        }

    async def _resize(self, observed: Observed) -> None:
        """Bring a changed specification to systemd and the runtime; neither gets a cpuset."""
        size = shape_of_pod(self._pod.spec)
        if size != self._size:
            await self._in_bus("resize", self._node.cgroups.resize)
            self._size = size
        for container in self._pod.containers():
            name = container["name"]
            shape = shape_of_container(self._pod.spec, container)
            found = observed.containers.get(name)
            if found is None or found.state != cri.RUNNING:
                continue
            if self._shapes.setdefault(name, shape) != shape:
                linux = _linux(shape)
                await self._timed(
                    "UpdateContainerResources", name, container_id=found.id, linux=linux
                )
                self._shapes[name] = shape

    async def _show(self, observed: Observed) -> None:
        """Bring the pod's status to what the runtime has, and announce a change."""
        before = self._pod.document()["status"]
        for name, found in observed.containers.items():
            status = self._pod.statuses.setdefault(name, ContainerStatus())
            if found.state == cri.EXITED and (status.id, status.state) != (found.id, "terminated"):
                status.exit_code = await self._exit_code(found.id)
            states = {cri.RUNNING: "running", cri.EXITED: "terminated"}
            status.id, status.restarts = found.id, found.metadata.attempt
            status.state = states.get(found.state, "waiting")
        apps = [self._pod.statuses[each["name"]].state for each in self._pod.spec["containers"]]
        if "running" in apps and "waiting" not in apps:
            self._pod.phase = "Running"
        elif all(state == "terminated" for state in apps):
            self._pod.phase = "Running" if self._restarts({}) else "Succeeded"
        if self._pod.document()["status"] != before:
            self._node.pods.announce(self._pod)

    async def _end(self) -> None:
        """Stop all, remove the cgroup, report the pod as deleted; the runtime's rest goes later."""
        node, pod = self._node, self._pod
        while (observed := await self._stopped()) is None:
            self._changed.clear()
            await self._until_retry()
        await self._in_bus("remove cgroup", node.cgroups.remove)
        node.devices.release(pod.uid)
        node.pods.remove(pod)
        node.timeline.add("deleted", pod.name)
        await asyncio.sleep(node.habits.linger)
        await self._collect(observed)

    async def _stopped(self) -> Observed | None:
        """Stop all of the pod; return what the runtime has of it, or None after an error."""
        node = self._node
        try:
            observed = await cri.observe(node.runtime, self._pod.uid)
            for name, found in observed.containers.items():
                if found.state != cri.EXITED:
                    grace = node.habits.grace
                    await self._timed("StopContainer", name, container_id=found.id, timeout=grace)
            for sandbox in observed.sandboxes:
                await self._timed("StopPodSandbox", "", pod_sandbox_id=sandbox)
        except CallError as error:
            node.timeline.add("error", self._pod.name, message=str(error))
            return None
        return observed

    async def _collect(self, observed: Observed) -> None:
        try:
            for found in (*(each.id for each in observed.containers.values()), *observed.old):
                await self._timed("RemoveContainer", "", container_id=found)
            for sandbox in observed.sandboxes:
                await self._timed("RemovePodSandbox", "", pod_sandbox_id=sandbox)
        except CallError as error:
            self._node.timeline.add("error", self._pod.name, message=str(error))

    async def _in_bus(self, step: str, change: Any) -> None:  # noqa: ANN401  # of the pod's cgroup
        pod = self._pod
        async with self._node.bus:
            changed = await asyncio.to_thread(change, pod.uid, pod.spec)
        if changed:
            self._node.timeline.add(step, pod.name)


def _linux(shape: Shape) -> dict[str, object]:
    """Return CRI's LinuxContainerResources: never a cpuset."""
    quota = {"cpu_quota": shape.quota_us, "cpu_period": PERIOD_US} if shape.quota_us else {}
    memory = {"memory_limit_in_bytes": shape.memory} if shape.memory else {}
    return {"cpu_shares": shape.shares, **quota, **memory}

"""A kubelet in a process: all that an agent beside the real one meets, without an API server.

Its pods are files of a directory, one JSON manifest (with a uid) each: a new file is a new pod, a
removed one a deleted pod, a changed one a resize in place. Admissions are serial: a pod is listed,
its devices are allocated, then watchers hear of it and its worker starts. What it does goes to
`timeline.jsonl`, what it knows to `state.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agent.rpc.calls import CallError
from systemd.units import SystemdError
from tests.fakes.device_manager import FakeDeviceManager
from tests.fakes.kubelet import cri, device_shares
from tests.fakes.kubelet.device_shares import DeviceShares
from tests.fakes.kubelet.pod_resources import PodResourcesOfPods
from tests.fakes.kubelet.pods import ENDED, KubeletPod, Pods
from tests.fakes.kubelet.timeline import Timeline
from tests.fakes.kubelet.worker import Habits, Node, PodWorker
from tests.fakes.pods_api import FakePodsApi

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.fakes.kubelet.cgroups import PodCgroups
    from tests.fakes.kubelet.cri import Runtime
    from tests.fakes.kubelet.endpoint import PodsEndpoint

#: Below the directory of the test, beside the kubelet's own.
MANIFESTS: Final = "pods"
STATE: Final = "state.json"
TIMELINE: Final = "timeline.jsonl"


@dataclass(frozen=True, slots=True)
class Options:
    """How this kubelet behaves.

    `blind` are the seconds after a start in which it has no pods yet, although the Pods API says
    that its list is complete. `poll` is the period of reading the manifests. Without
    `get_pod_resources` podresources has no `Get`, as before v1.27.
    """

    blind: float = 0.0
    poll: float = 0.2
    pods_api: bool = True
    habits: Habits = field(default_factory=Habits)
    get_pod_resources: bool = True


class FakeKubelet:
    """A kubelet; `run` serves until it is cancelled.

    `directory` is the kubelet's (`/var/lib/kubelet`), `control` has the manifests and what it
    writes for observers. `runtime` and `cgroups` are real ones in a guest and fakes in tests.
    """

    def __init__(
        self,
        directory: Path,
        control: Path,
        runtime: Runtime,
        cgroups: PodCgroups,
        options: Options | None = None,
    ) -> None:
        self._directory = directory
        self._control = control
        self._options = options or Options()
        self.manager = FakeDeviceManager(directory / device_shares.DIRECTORY)
        self.devices = DeviceShares(self.manager)
        self.api = FakePodsApi(directory)
        self.pods = Pods(self.api)
        self.timeline = Timeline(control / TIMELINE)
        self._pod_resources = PodResourcesOfPods(
            directory, self.pods, self.devices.given, with_get=self._options.get_pod_resources
        )
        self.endpoint: PodsEndpoint | None = None
        self._cgroups = cgroups
        self._node = Node(
            pods=self.pods,
            runtime=runtime,
            cgroups=cgroups,
            devices=self.devices,
            timeline=self.timeline,
            habits=self._options.habits,
            bus=asyncio.Lock(),
        )
        #: Set by a test, the seconds without pods are over.
        self.sources_ready = asyncio.Event()
        #: The manifests as they were last read, with inode and time of the change.
        self._files: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        #: Whether the manifests were read once, and the uids whose end has begun.
        self._has_sources = False
        self._ended: set[str] = set()
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until this is cancelled; pods go on running."""
        (self._control / MANIFESTS).mkdir(parents=True, exist_ok=True)
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        await asyncio.to_thread(self._cgroups.start)
        await self.manager.start()
        self.devices.start()
        if self._options.pods_api:
            await self.api.start()
        await self._pod_resources.start()
        if self.endpoint is not None:
            await self.endpoint.start()
        self._write_state()
        self.timeline.add("started")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_manifests())
                group.create_task(self._follow_changes())
                group.create_task(self._follow_runtime())
        finally:
            await self._stop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.stop()
        await self._pod_resources.stop()
        await self.manager.stop()
        if self.endpoint is not None:
            await self.endpoint.stop()

    async def _follow_manifests(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.blind):
                await self.sources_ready.wait()
        while True:
            new = self._read()
            for pod in new:
                await self._add(pod)
            self._has_sources = True
            if new:
                await self._weigh()
            await asyncio.sleep(self._options.poll)

    def _read(self) -> list[KubeletPod]:
        """Return the pods that are new; wake the workers of those that changed or are gone."""
        files = {}
        for file in sorted((self._control / MANIFESTS).glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                status = file.stat()
                stamp = (status.st_ino, status.st_mtime_ns)
                before = self._files.get(file)
                if before is None or before[0] != stamp:
                    before = (stamp, json.loads(file.read_text()))
                files[file] = before
        self._files = files
        found = {manifest["metadata"]["uid"]: manifest for _, manifest in files.values()}
        for pod in self.pods:
            manifest = found.pop(pod.uid, None)
            if manifest is None and not pod.ending:
                self._end(pod)
            elif manifest is not None and manifest != pod.manifest and not pod.ending:
                self._resize(pod, manifest)
        return [KubeletPod(manifest) for manifest in found.values()]

    async def _add(self, pod: KubeletPod) -> None:
        """Admit one pod; the next one waits as long as a plugin takes."""
        self.pods.add(pod)
        self.timeline.add("listed", pod.name)
        try:
            await self.devices.admit(pod)
        except CallError as error:
            self._reject(pod, error)
            return
        pod.admitted = True
        self.timeline.add("admitted", pod.name)
        self.pods.announce(pod)
        self._start_worker(pod)

    def _reject(self, pod: KubeletPod, error: CallError) -> None:
        said = error.message
        if error.code != "UNKNOWN":  # not the kubelet's own words
            said = f"rpc error: code = {_go_name(error.code)} desc = {said}"
        pod.phase, pod.reason = "Failed", "UnexpectedAdmissionError"
        rejected = "Pod was rejected: Allocate failed due to"
        pod.message = f"{rejected} {said}, which is unexpected"
        self.devices.release(pod.uid)
        self.timeline.add("rejected", pod.name, message=pod.message)
        self.pods.announce(pod)

    def _start_worker(self, pod: KubeletPod) -> None:
        worker = self._workers[pod.uid] = PodWorker(self._node, pod)
        task = asyncio.create_task(worker.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, pod: KubeletPod) -> None:
        pod.ending = True
        self._ended.add(pod.uid)
        self.timeline.add("deleting", pod.name)
        if pod.phase in ENDED and pod.uid not in self._workers:
            self.pods.remove(pod)
            return
        self.pods.announce(pod)
        self._workers.pop(pod.uid).change()

    def _resize(self, pod: KubeletPod, manifest: dict[str, object]) -> None:
        pod.manifest = manifest
        self.pods.announce(pod)
        if worker := self._workers.get(pod.uid):
            worker.change()

    async def _follow_runtime(self) -> None:
        """Wake the workers of pods whose sandboxes or containers changed, as PLEG does."""
        before: dict[str, frozenset[tuple[str, int]]] = {}
        while True:
            with contextlib.suppress(CallError):  # the runtime is away
                now = await cri.states(self._node.runtime)
                for uid in before.keys() | now.keys():
                    if before.get(uid) != now.get(uid) and uid in self._workers:
                        self._workers[uid].wake()
                before = now
                if self._has_sources:
                    await self._end_orphans(now.keys())
            await asyncio.sleep(self._options.habits.look)

    async def _end_orphans(self, uids: Iterable[str]) -> None:
        """End what runs of pods that were deleted while no kubelet ran; it is removed later."""
        for uid in set(uids) - {pod.uid for pod in self.pods} - self._ended:
            self._ended.add(uid)
            observed = await cri.observe(self._node.runtime, uid)
            for sandbox in observed.sandboxes:
                await self._node.runtime.call("StopPodSandbox", pod_sandbox_id=sandbox)
            async with self._node.bus:
                await asyncio.to_thread(self._cgroups.remove_orphan, uid)
            for sandbox in observed.sandboxes:
                await self._node.runtime.call("RemovePodSandbox", pod_sandbox_id=sandbox)
            self.timeline.add("orphan", uid)

    async def _follow_changes(self) -> None:
        while True:
            await self.pods.changed.wait()
            await asyncio.sleep(self._options.poll)  # what comes together is written together
            self.pods.changed.clear()
            self._write_state()

    async def _weigh(self) -> None:
        async with self._node.bus:
            specs = [pod.spec for pod in self.pods if pod.admitted]
            with contextlib.suppress(SystemdError):  # the next change weighs again
                await asyncio.to_thread(self._cgroups.weigh, specs)

    def _write_state(self) -> None:
        state = {pod.uid: pod.document()["status"] for pod in self.pods}
        new = self._control / f".{STATE}"
        new.write_text(json.dumps(state, indent=1))
        new.replace(self._control / STATE)


def _go_name(code: str) -> str:
    """Return the name of a status as Go prints it: FAILED_PRECONDITION is FailedPrecondition."""
    return "".join(word.capitalize() for word in code.split("_"))

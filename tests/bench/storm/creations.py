"""Pods that come to a node at once: how long the runtime waits for CreateContainer.

The agent is a process of its own (`tests.bench.storm.node`). The kubelet's Pods API and the runtime
are fakes in this one. The runtime asks one thing at a time, as containerd does in every version:
1.7.24 (NRI 0.6.1), 2.1.9 (0.8.0) and 2.3.4 (0.12.0) hold the lock of `local` around each event
(internal/nri/nri.go) and NRI's `Adaptation` its own (pkg/adaptation/adaptation.go). Nothing takes
any time but the agent and the fakes: no image is pulled, no network is set up, no process starts.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from agent.cluster.kubelet.pods_api import EventType
from agent.cluster.nri.events import NriEvent
from sysfs.mask import EMPTY, Mask
from tests.bench.agents import on_tmpfs
from tests.bench.measure import of_samples
from tests.bench.storm import node
from tests.fakes.kubelet.cgroups import parent_of
from tests.fakes.kubelet.core_v1 import encoded
from tests.fakes.nri_runtime import FakeRuntime
from tests.fakes.nri_runtime import running as serving
from tests.fakes.pods_api import FakePodsApi

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bench.measure import Figure
    from tests.fakes.nri_runtime import PluginConnection

_PODS: Final = 110
_CONTENT: Final = {f"example.com/annotation-{number}": "v" * 40 for number in range(8)}
_CONTAINER: Final = {
    "image": "registry.invalid/web:1",
    "env": [{"name": f"VARIABLE_{place}", "value": "v" * 20} for place in range(12)],
    "volumeMounts": [{"name": f"volume-{place}", "mountPath": "/x"} for place in range(3)],
}
#: A third of the pods has CPUs of its own, of the 126 that are not reserved.
_KINDS: Final = ("exclusive", "burstable", "besteffort")
_CPUS: Final = 3
#: How long a kubelet waits before it tries again (10 s), which would only take time here.
_RETRY_SECONDS: Final = 0.05
_START_SECONDS: Final = 20.0


@dataclass
class Storm:
    """Nanoseconds of each creation by the kind of its pod, and the sets of exclusive containers.

    `answered` are the seconds of each answer as the agent measures them.
    """

    created: dict[str, list[int]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})
    sets: dict[str, Mask] = field(default_factory=dict)
    answered: list[float] = field(default_factory=list)


class NriVersion(Struct, frozen=True):
    """A runtime by its version and that of its NRI; `own_methods` as in `FakeRuntime`."""

    runtime: str
    nri: str
    own_methods: bool


#: By the name of the row. NRI says its version since 0.12.
VERSIONS: Final = {
    "nri0.6": NriVersion("1.7.24", "", own_methods=False),
    "nri0.8": NriVersion("2.1.9", "", own_methods=False),
    "nri0.12": NriVersion("2.3.4", "v0.12.0", own_methods=True),
}


def creations() -> Iterator[Figure]:
    """Create the containers of 110 pods that come at once, as the agent and the runtime see it."""
    for name, version in VERSIONS.items():
        seen = asyncio.run(_storm(version))
        row = f"nri/create-{_PODS}/{name}"
        yield of_samples(f"{row}-agent", [round(1e9 * each) for each in seen.answered])
        yield of_samples(
            f"{row}-runtime", [each for kind in seen.created.values() for each in kind]
        )
        yield of_samples(f"{row}-runtime-exclusive", seen.created["exclusive"])


class _Cgroups:
    """Asks the agent's process for what the kubelet and the runtime do to cgroups."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()
        self._processes = count(1000)

    async def make(self, pod: dict[str, Any], name: str = "", cpus: str = "") -> None:
        """Make a pod's slice, or the scope of a container with a process and its CPUs."""
        asked = {"uid": pod["metadata"]["uid"], "spec": pod["spec"]}
        if name:
            asked |= {"name": name, "process": next(self._processes), "cpus": cpus}
        async with self._turn:
            self._writer.write(json.dumps(asked).encode() + b"\n")
            await self._reader.readline()


async def _storm(version: NriVersion) -> Storm:
    """Have the pods come at once; return once all their containers run."""
    with on_tmpfs() as where:
        (where / node.KUBELET / "pods-api").mkdir(parents=True)
        runtime = FakeRuntime(
            where / node.RUNTIME,
            version=version.runtime,
            nri_version=version.nri,
            own_methods=version.own_methods,
        )
        api = FakePodsApi(where / node.KUBELET)
        await api.start()
        async with serving(runtime):
            agent = await asyncio.to_thread(_started, where)
            try:
                seen = await _come(where, runtime, api)
            finally:
                agent.terminate()
                await asyncio.to_thread(agent.wait)
                await api.stop()
        seen.answered = json.loads((where / node.ANSWERED).read_bytes())
    return seen


def _started(where: Path) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(where / "notify.sock"))
        notify.settimeout(_START_SECONDS)
        command = [sys.executable, "-m", "tests.bench.storm.node", str(where)]
        environment = {**os.environ, "NOTIFY_SOCKET": str(where / "notify.sock")}
        with (where / "log").open("wb") as log:
            agent = subprocess.Popen(command, env=environment, stderr=log)  # this Python
        try:
            while b"READY=1" not in notify.recv(4096):
                pass
        except TimeoutError:
            agent.kill()
            agent.wait()
            raise RuntimeError((where / "log").read_text()) from None
    return agent


async def _come(where: Path, runtime: FakeRuntime, api: FakePodsApi) -> Storm:
    plugin = await runtime.plugin()
    while not api.watched:  # noqa: ASYNC110  # the fake has no event for it
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_unix_connection(where / node.ASKED)
    await asyncio.sleep(2.0)
    seen, cgroups, one = Storm(), _Cgroups(reader, writer), asyncio.Lock()
    manifests = [_manifest(number) for number in range(_PODS)]
    for each in manifests:
        api.add(each["metadata"]["uid"], encoded(each))
    workers = [_Worker(each, plugin, api, cgroups, one, seen) for each in manifests]
    await asyncio.gather(*(each.run() for each in workers))
    taken = EMPTY
    for name, cpus in seen.sets.items():
        if len(cpus) != _CPUS or cpus & taken:
            raise RuntimeError(f"{name} has CPUs {cpus}, others have {taken}")
        taken |= cpus
    writer.close()
    return seen


def _manifest(number: int) -> dict[str, Any]:
    """Return a pod with what an ordinary pod of a cluster has; every fourth with an init one."""
    kind = _KINDS[number % len(_KINDS)]
    limits = {"cpu": str(_CPUS), "memory": "256Mi"}
    resources: dict[str, Any] = {
        "exclusive": {"limits": limits, "requests": limits},
        "burstable": {"requests": {"cpu": "20m", "memory": "16Mi"}},
        "besteffort": {},
    }[kind]

    def containers(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, **_CONTAINER, "resources": resources} for name in names]

    spec: dict[str, Any] = {
        "containers": containers("app") if kind != "burstable" else containers("app", "proxy"),
        "volumes": [{"name": f"volume-{place}"} for place in range(3)],
        "restartPolicy": "Always",
        "serviceAccountName": "default",
        "nodeName": "node",
    }
    if number % 4 == 0:
        spec["initContainers"] = containers("init")
    metadata = {
        "name": f"pod-{number}",
        "namespace": "default",
        "uid": f"00000000-0000-4000-8000-{number:012d}",
        "annotations": _CONTENT,
        "labels": {"app": "web", "kind": kind},
        "managedFields": [{"manager": "kubectl", "operation": "Update", "apiVersion": "v1"}],
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


@dataclass
class _Worker:
    """A kubelet's worker of one pod: slice, sandbox, init containers, containers."""

    pod: dict[str, Any]
    plugin: PluginConnection
    api: FakePodsApi
    cgroups: _Cgroups
    one: asyncio.Lock
    seen: Storm

    @property
    def _uid(self) -> str:
        uid: str = self.pod["metadata"]["uid"]
        return uid

    @property
    def _kind(self) -> str:
        kind: str = self.pod["metadata"]["labels"]["kind"]
        return kind

    @property
    def _sandbox(self) -> dict[str, Any]:
        metadata = self.pod["metadata"]
        named = {key: metadata[key] for key in ("name", "uid", "namespace", "annotations")}
        parent = parent_of(self._uid, self.pod["spec"])
        return {"id": f"{self._uid}-sandbox", **named, "linux": {"cgroup_parent": parent}}

    async def run(self) -> None:
        """Bring the pod to run."""
        spec = self.pod["spec"]
        await self.cgroups.make(self.pod)
        await self.cgroups.make(self.pod, f"{self._uid}-sandbox")
        await self._event(NriEvent.RUN_POD_SANDBOX)
        self._announce("Pending")
        for each in spec.get("initContainers", ()):
            shown = await self._start(each)
            await self._event(NriEvent.STOP_CONTAINER, shown)
        for each in spec["containers"]:
            await self._start(each)
        self._announce("Running")

    def _announce(self, phase: str) -> None:
        """Have the Pods API send the pod's new status."""
        status = {"phase": phase, "qosClass": self._kind}
        data = encoded({**self.pod, "status": status})
        self.api.pods[self._uid] = data
        self.api.send(EventType.MODIFIED, data)

    async def _start(self, container: dict[str, Any]) -> dict[str, Any]:
        name = f"{self._uid}-{container['name']}"
        shown = {
            "id": name,
            "pod_sandbox_id": self._sandbox["id"],
            "name": container["name"],
            "state": 1,
            "annotations": _CONTENT,
            "env": [f"{each['name']}={each['value']}" for each in container["env"]],
            "linux": {"cgroups_path": f"pod.slice:cri-containerd:{name}"},
        }
        while (cpus := await self._created(shown)) is None:  # noqa: ASYNC110  # as a kubelet does
            await asyncio.sleep(_RETRY_SECONDS)
        await self.cgroups.make(self.pod, name, cpus)
        await self._event(NriEvent.POST_START_CONTAINER, shown)
        return shown

    async def _created(self, shown: dict[str, Any]) -> str | None:
        """Return the CPUs that the agent gives a container, "" for none, None to try again."""
        async with self.one:
            began = perf_counter_ns()
            reply = await self.plugin.event(NriEvent.CREATE_CONTAINER, self._sandbox, shown)
            taken = perf_counter_ns() - began
        self.seen.created[self._kind].append(taken)
        if reply.code:
            return None
        adjusted = reply.as_message("CreateContainerResponse").adjust
        cpus: str = adjusted.linux.resources.cpu.cpus
        if self._kind == "exclusive" and shown["name"] == "app":
            self.seen.sets[shown["id"]] = Mask.parse(cpus)
        return cpus

    async def _event(self, event: NriEvent, shown: dict[str, Any] | None = None) -> None:
        async with self.one:
            await self.plugin.event(event, self._sandbox, shown)

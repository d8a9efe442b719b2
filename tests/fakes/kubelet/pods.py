"""The pods that the kubelet knows, and who watches them.

As in the real kubelet's pod manager a pod is known, and so listed, before its admission; watchers
hear of it with its first status. What the kubelet knew is lost when it ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agent.cluster.kubelet.pods_api import EventType
from tests.fakes.kubelet.core_v1 import encoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.fakes.pods_api import FakePodsApi

#: Events that a watcher may leave unread; the kubelet ends the watch of one with more.
LONGEST_QUEUE: Final = 100
#: Phases of pods that end by themselves or were rejected.
ENDED: Final = ("Failed", "Succeeded")


@dataclass(slots=True)
class ContainerStatus:
    """One container as the kubelet reports it; `state` is waiting, running or terminated."""

    id: str = ""
    state: str = "waiting"
    reason: str = "PodInitializing"
    message: str = ""
    exit_code: int = 0
    restarts: int = 0

    def document(self, name: str) -> dict[str, object]:
        states: Mapping[str, dict[str, object]] = {
            "waiting": {"reason": self.reason, "message": self.message},
            "running": {},
            "terminated": {"exitCode": self.exit_code, "reason": self.reason},
        }
        return {
            "name": name,
            "containerID": f"containerd://{self.id}" if self.id else "",
            "restartCount": self.restarts,
            "ready": self.state == "running",
            "state": {self.state: states[self.state]},
        }


@dataclass(slots=True)
class KubeletPod:
    """One pod: its manifest as the API server has it (with a uid), and its status."""

    manifest: dict[str, Any]
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    statuses: dict[str, ContainerStatus] = field(default_factory=dict)
    #: Whether it is being deleted.
    ending: bool = False
    #: Whether its admission is over, and with success.
    admitted: bool = False

    def __post_init__(self) -> None:
        for container in self.containers():
            self.statuses.setdefault(container["name"], ContainerStatus())

    @property
    def uid(self) -> str:
        uid: str = self.manifest["metadata"]["uid"]
        return uid

    @property
    def name(self) -> str:
        name: str = self.manifest["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        namespace: str = self.manifest["metadata"].get("namespace", "default")
        return namespace

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.manifest["spec"]
        return spec

    def containers(self) -> Iterator[dict[str, Any]]:
        """Yield all containers, the init containers and sidecars first."""
        yield from self.spec.get("initContainers", ())
        yield from self.spec["containers"]

    def document(self) -> dict[str, Any]:
        first = {container["name"] for container in self.spec.get("initContainers", ())}
        spec = {name: part for name, part in self.spec.items() if name != "ephemeralContainers"}
        shown = {name: status.document(name) for name, status in self.statuses.items()}
        status: dict[str, object] = {
            "phase": self.phase,
            "reason": self.reason,
            "message": self.message,
            "initContainerStatuses": [shown[name] for name in shown if name in first],
            "containerStatuses": [shown[name] for name in shown if name not in first],
        }
        metadata = dict(self.manifest["metadata"])
        metadata.setdefault("namespace", "default")
        if self.ending:
            metadata["deletionTimestamp"] = "2026-11-22T12:00:00Z"
        return {**self.manifest, "metadata": metadata, "spec": spec, "status": status}


class Pods:
    """The kubelet's pod manager with the statuses of its pods, shown by the Pods API."""

    def __init__(self, api: FakePodsApi) -> None:
        self._pods: dict[str, KubeletPod] = {}
        self._api = api
        api.longest_queue = LONGEST_QUEUE
        #: Set at each change, for those who write it down.
        self.changed = asyncio.Event()

    def __iter__(self) -> Iterator[KubeletPod]:
        return iter(tuple(self._pods.values()))

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> KubeletPod | None:
        return self._pods.get(uid)

    def add(self, pod: KubeletPod) -> None:
        """Know a pod from now on: it is listed, watchers hear nothing yet."""
        self._pods[pod.uid] = pod
        self._api.unannounced.add(pod.uid)
        self._api.pods[pod.uid] = encoded(pod.document())
        self.changed.set()

    def announce(self, pod: KubeletPod) -> None:
        """Send watchers the pod's present status."""
        known = pod.uid not in self._api.unannounced
        self._api.unannounced.discard(pod.uid)
        data = self._api.pods[pod.uid] = encoded(pod.document())
        self._api.send(EventType.MODIFIED if known else EventType.ADDED, data)
        self.changed.set()

    def remove(self, pod: KubeletPod) -> None:
        if self._pods.pop(pod.uid, None) is not None:
            self._api.delete(pod.uid)
            self.changed.set()

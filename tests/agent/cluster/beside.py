"""An agent beside a kubelet and a runtime of which the tests say what they do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import pytest
from msgspec.structs import replace

from agent.cluster import pod_decisions
from agent.cluster.kubelet.pods import PodsUnavailableError
from agent.cluster.kubelet.pods_api import read_message, read_messages
from agent.cluster.kubelet.source import KubeletPods
from agent.cluster.kubelet.ways import KubeletWays
from agent.cluster.nri.handler import ContainerRejectedError
from agent.cluster.nri.messages import (
    Adjustment,
    ContainerResources,
    PodSandbox,
    RuntimeContainer,
)
from agent.cluster.plugs import PLUGS
from agent.cluster.runtime_events import RuntimeEvents
from agent.config.cluster import BesideKubeletConfig, OnReject
from agent.config.model import CgroupDriver
from agent.server.intake import PodIntake
from agent.server.plugs import Fakes
from agent.server.source_admissions import SourceAdmissions
from agent.server.wiring import Wiring
from agent.sources.source import SourceEntry, SourceReading
from cgroupfs.names import Tier
from sysfs.mask import Mask
from systemd.units import allowed_cpus, cpu_weight
from tests.agent.server.sites import Site, make_site, site_config
from tests.agent.server.support import UID, FakeClock, RecordingManager, make_world
from tests.fakes.pods_api import container as asking
from tests.fakes.pods_api import pod_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping
    from pathlib import Path

    from agent.cluster.kubelet.pods import ReportedPod, ReportedPods
    from agent.cluster.kubelet.pods_api import PodsApi
    from agent.pods.model import Pod
    from agent.server.controller import Controller

OTHER: Final = "88888888-2222-3333-4444-555555555555"


@dataclass
class Pods:
    """A source whose specifications are `known`, or become so when they are asked for."""

    known: dict[str, Pod] = field(default_factory=dict)
    on_request: dict[str, Pod] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    #: While this is not set no question for a pod is answered; `asked` are those that wait.
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    error: Exception | None = None
    may_have_ended: set[str] = field(default_factory=set)
    #: Those that are among them once the kubelet lists its pods.
    unlisted: set[str] = field(default_factory=set)
    name: str = "kubelet"
    removal: str = "delete the pod"

    def key(self, uid: str) -> str:
        return f"pods/{uid}"

    def covers(self, key: str) -> bool:
        return key.startswith("pods/")

    def resume(self, keys: Collection[str]) -> None:
        self.calls.append(("resumed", *keys))

    def specification(self, uid: str) -> Pod | None:
        return self.known.get(uid)

    @property
    def ending(self) -> frozenset[str]:
        return frozenset(self.may_have_ended)

    def resized(self, pod: Pod) -> None:
        self.known[pod.uid] = pod

    def synchronized(self, sandboxes: Mapping[str, Mapping[str, str]]) -> None:
        for uid, found in sandboxes.items():
            self.calls.extend(("listed", uid, *each) for each in found.items())

    def sandbox_started(self, uid: str, sandbox: str, name: str) -> None:
        self.calls.append(("started", uid, sandbox, name))

    def sandbox_removed(self, uid: str, sandbox: str) -> None:
        self.calls.append(("removed", uid, sandbox))

    async def ask_for(self, uid: str, seconds: float) -> Pod | None:
        assert seconds <= pod_decisions.ASK_SECONDS
        self.asked.append(uid)
        await self.answering.wait()
        if uid in self.on_request:
            self.known[uid] = self.on_request[uid]
        return self.known.get(uid)

    async def list_now(self, seconds: float) -> Collection[Pod] | None:
        assert seconds <= pod_decisions.ASK_SECONDS
        self.may_have_ended |= self.unlisted
        return [*self.known.values()]

    def read(self) -> SourceReading:
        if self.error is not None:
            raise self.error
        entries = [SourceEntry(self.key(uid), pod) for uid, pod in self.known.items()]
        return SourceReading(tuple(entries))

    async def changes(self) -> AsyncIterator[object]:
        return
        yield


class Api:
    """A Pods API that has `pods`; while it is not `ready` it knows of single ones alone."""

    way = "Pods API"

    def __init__(self, *, ready: bool, **pods: str) -> None:
        self.ready = ready
        made = ((name, OTHER if name == "big" else UID) for name in pods)
        self.pods_of = {
            uid: pod_message(uid, name, containers=(asking("db", f"cpu={pods[name]} memory=1Gi"),))
            for name, uid in made
        }

    async def pods(self, _seconds: float) -> ReportedPods:
        if not self.ready:
            raise PodsUnavailableError(self.way, "not synchronized", code="FAILED_PRECONDITION")
        return read_messages(self.pods_of.values())

    async def pod(self, uid: str, _seconds: float) -> ReportedPod | None:
        return read_message(self.pods_of[uid]) if uid in self.pods_of else None


def kubelet_pods(api: Api) -> KubeletPods:
    """Return the source over an API, on a host where the cgroup of the pod `big` stands."""
    ways = KubeletWays(cast("PodsApi", api), None)
    return KubeletPods(
        ways, FakeClock(), lambda _: {OTHER}, pod_level=True, awaits=lambda _: False, same_boot=True
    )


def make_node(tmp_path: Path) -> Site:
    config = site_config(make_world(tmp_path).config, CgroupDriver.SYSTEMD)
    beside = BesideKubeletConfig(enabled=True, nri_socket=None)
    made = make_site(replace(config, agent=replace(config.agent, kubelet=beside)))
    assert made.systemd is not None
    made.systemd.start_transient("kubepods.slice", [allowed_cpus(Mask.parse("0-15"))])
    for name in ("burstable", "besteffort"):
        made.systemd.start_transient(f"kubepods-{name}.slice", [cpu_weight(17)])
    return made


@dataclass
class Beside:
    controller: Controller
    events: RuntimeEvents
    pods: Pods
    intake: PodIntake
    on_reject: OnReject
    never: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[object]] = field(default_factory=list)


@asynccontextmanager
async def beside(
    site: Site, on_reject: OnReject = OnReject.FAIL, source: KubeletPods | None = None
) -> AsyncIterator[Beside]:
    """Run an agent beside a kubelet, whose pods are those of a `source` where one is given."""
    fakes = Fakes(tree=site.kernel, systemd=site.systemd, live=False, files=site.disk)
    plugs = replace(PLUGS, sources=(), providers=())
    wiring = Wiring(site.config, RecordingManager(), FakeClock(), plugs, fakes)
    controller = wiring.controller
    with wiring:
        serving = asyncio.create_task(controller.queue.serve())
        pods = Pods() if source is None else cast("Pods", source)
        if source is None:
            pods.answering.set()
        controller.state.observed.sources.register(pods)
        intake = PodIntake(pods, SourceAdmissions(controller))
        events = RuntimeEvents(controller, cast("KubeletPods", pods), intake, on_reject)
        try:
            yield Beside(controller, events, pods, intake, on_reject)
        finally:
            controller.queue.stop()
            await serving
            controller.worker.close()


def make_slice(site: Site, uid: str, tier: Tier = Tier.GUARANTEED) -> str:
    """Make a pod's cgroup as the kubelet does; return its path."""
    assert site.systemd is not None
    path = site.cgroup(uid, tier)
    site.systemd.start_transient(path.rpartition("/")[2], [cpu_weight(60)])
    return path


def sandbox(uid: str = UID) -> PodSandbox:
    return PodSandbox(id=f"sandbox-{uid[:4]}", uid=uid, namespace="default", name="shop")


def container(name: str, uid: str = UID) -> RuntimeContainer:
    return RuntimeContainer(id=f"{name}-1", sandbox_id=sandbox(uid).id, name=name)


def shown(site: Site, path: str, *files: str) -> list[str]:
    return [(text or "").strip() for text in site.kernel.read_many(path, files)]


async def created(
    agent: Beside, name: str, uid: str = UID, seconds: float = 60.0
) -> Adjustment | None:
    return await agent.events.container_created(sandbox(uid), container(name, uid), seconds)


async def updated(
    agent: Beside, name: str, asked: ContainerResources, uid: str = UID, seconds: float = 60.0
) -> Adjustment | None:
    events = agent.events
    return await events.container_updated(sandbox(uid), container(name, uid), asked, seconds)


async def nothing_given(agent: Beside, why: str, seconds: float = 60.0) -> None:
    """Check that a container is rejected for a reason, or shares, whichever is configured."""
    if agent.on_reject is OnReject.SHARE:
        assert await created(agent, "db", seconds=seconds) is None
        return
    with pytest.raises(ContainerRejectedError, match=why):
        await created(agent, "db", seconds=seconds)

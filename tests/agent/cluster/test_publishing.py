"""A running agent and its cluster: the topology follows the ledger, and no pod waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from msgspec.structs import replace

from agent.api.documents.rejections import INVALID_MANIFEST, FailedPodDocument
from agent.cluster.fingerprint import pod_fingerprint
from agent.cluster.kubelet.devices import KubeletDevices
from agent.cluster.kubelet.source import KubeletPods
from agent.cluster.publishing import CLUSTER_SOURCE, PERIOD_SECONDS, SETTLE_SECONDS
from agent.cluster.runtime_events import RuntimeEvents
from agent.config.cluster import KubernetesConfig, OnReject
from agent.managers.allocation import Source
from agent.managers.device.kubelet import KubeletListing
from agent.managers.policy import PluginDevice
from agent.pods.model import GivenDevice
from agent.server.errors import StartError
from agent.server.intake import PodIntake
from agent.server.source_admissions import SourceAdmissions
from sysfs.mask import Mask
from tests.agent.cluster.beside import Pods, container, sandbox
from tests.agent.server.sites import pod_of
from tests.agent.server.support import OTHER_UID, UID, manifest, next_event, running, until
from tests.agent.server.test_lean import modules_after
from tests.agent.server.test_plugs import ToySource, metric, plug_in
from tests.fakes.api_server import TOKEN, Failure, Fault, api_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.agent.server.support import Running, World
    from tests.fakes.api_server import FakeApiServer

pytestmark = pytest.mark.usefixtures("cluster")
KEY: Final = "slot 1"
NODE: Final = "worker-1"
ATTEMPTS: Final = "numawarden_node_topology_publications_total"
LAST: Final = "numawarden_node_topology_last_success_timestamp_seconds"


@pytest.fixture
def fake(certificate: Path) -> Iterator[FakeApiServer]:
    with api_server(certificate) as fake:
        yield fake


@pytest.fixture
def cluster(world: World, fake: FakeApiServer, certificate: Path, tmp_path: Path) -> ToySource:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    kubernetes = KubernetesConfig(
        publish_topology=True,
        events=True,
        node_name=NODE,
        server=fake.url,
        token_file=token,
        ca_file=certificate,
    )
    agent = replace(world.config.agent, kubernetes=kubernetes)
    world.config = replace(world.config, agent=agent)
    source = ToySource(CLUSTER_SOURCE)
    plug_in(world, source)
    return source


async def settled(agent: Running, condition: Callable[[], object]) -> None:
    """Let what changed settle and be published until a condition holds."""
    await agent.world.clock.passing(SETTLE_SECONDS, until(condition))


def published(fake: FakeApiServer) -> dict[str, Any]:
    """Return the published CPUs that are available, by zone, and the fingerprint."""
    found = fake.topologies.get(NODE, {"zones": (), "attributes": ()})
    return {
        **{zone["name"]: zone["resources"][0]["available"] for zone in found["zones"]},
        **{each["name"]: each["value"] for each in found["attributes"] if "Finger" in each["name"]},
    }


def expected(node_0: str, node_1: str, *pods: tuple[str, str]) -> dict[str, str]:
    return {
        "node-0": node_0,
        "node-1": node_1,
        "nodeTopologyPodsFingerprint": pod_fingerprint(pods),
        "nodeTopologyPodsFingerprintMethod": "all",
    }


def conditions(agent: Running) -> str:
    return "\n".join(agent.controller.state.condition_lines())


async def test_the_topology_follows_the_pods_of_the_cluster(
    world: World, fake: FakeApiServer, cluster: ToySource
) -> None:
    async with running(world) as agent:
        await settled(agent, lambda: published(fake) == expected("7", "8"))
        cluster.put(KEY, manifest())
        await settled(agent, lambda: published(fake) == expected("5", "8", ("shop", "web")))
        cluster.empty(KEY)
        await settled(agent, lambda: published(fake) == expected("7", "8"))
        await until(lambda: metric(agent, f'{ATTEMPTS}{{result="done"}}') == "3.0")
        assert float(metric(agent, LAST)) == pytest.approx(world.clock.time(), abs=10)
        # A pod of no cluster takes CPUs and is not in the fingerprint.
        await agent.ask(agent.client.admit, manifest())
        await settled(agent, lambda: published(fake) == expected("5", "8"))


async def test_devices_that_the_kubelet_lists_later_are_published_without_an_event(
    world: World, fake: FakeApiServer, tmp_path: Path
) -> None:
    nic = GivenDevice("example.com/nic", "n0", Mask.of(1))

    def resources() -> list[str]:
        _, zone = fake.topologies[NODE]["zones"]
        return [each["name"] for each in zone["resources"]]

    async with running(world) as agent:
        await settled(agent, lambda: published(fake) == expected("7", "8"))
        assert "example.com/nic" not in resources()
        devices = KubeletDevices(tmp_path, agent.controller.worker.run)
        devices.listed = KubeletListing(allocatable=(nic,))
        agent.controller.state.parts.kubelet_devices = devices
        await world.clock.passing(PERIOD_SECONDS, until(lambda: "example.com/nic" in resources()))


async def test_what_cannot_be_published_is_a_condition(world: World, fake: FakeApiServer) -> None:
    fake.faults.append(Failure(404, text="404 page not found\n"))
    async with running(world) as agent:
        await settled(agent, lambda: "install the CustomResourceDefinition" in conditions(agent))
        assert metric(agent, f'{ATTEMPTS}{{result="not_served"}}') == "1.0"
        assert metric(agent, LAST) == "0.0"
        gone = until(lambda: "CustomResourceDefinition" not in conditions(agent))
        await world.clock.passing(PERIOD_SECONDS, gone)
        assert published(fake) == expected("7", "8")


async def test_a_rejected_pod_gets_an_event_if_it_is_of_the_cluster(
    world: World, fake: FakeApiServer, cluster: ToySource
) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest("other", OTHER_UID, cpu="100"))
        cluster.put(KEY, manifest(cpu="100"))
        await settled(agent, lambda: len(fake.events) == 1)
        (event,) = fake.events.values()
        assert event["involvedObject"]["uid"] == UID
        status = agent.controller.state.observed.records.rejections[UID].status
        assert (event["reason"], event["message"]) == (status.reason, status.message)
        done = 'numawarden_pod_events_total{result="done"}'
        await until(lambda: metric(agent, done) == "1.0")


async def test_a_pod_that_runs_without_an_allocation_is_in_the_fingerprint_and_gets_an_event(
    world: World, fake: FakeApiServer, cluster: ToySource
) -> None:
    async with running(world) as agent:
        await settled(agent, lambda: published(fake) == expected("7", "8"))
        cluster.put(KEY, manifest().replace(b"  - name: c0", b"  - nom: c0"))
        await settled(agent, lambda: published(fake) == expected("7", "8", ("shop", "web")))
        await settled(agent, lambda: fake.events)
        assert [each["reason"] for each in fake.events.values()] == ["RunsShared"]


async def test_a_pod_that_runs_shared_gets_an_event(world: World, fake: FakeApiServer) -> None:
    async with running(world) as agent:
        pods, controller = Pods({UID: pod_of("shop", UID, "db=64")}), agent.controller
        pods.answering.set()
        intake = PodIntake(pods, SourceAdmissions(controller))
        events = RuntimeEvents(controller, cast("KubeletPods", pods), intake, OnReject.SHARE)
        await events.container_created(sandbox(), container("db"), 60.0)
        await settled(agent, lambda: fake.events)
        [event] = fake.events.values()
        assert (event["reason"], event["involvedObject"]["uid"]) == ("RunsShared", UID)
        assert "runs in the shared pool, without CPUs" in event["message"]
        assert "OutOfcpu" in event["message"]


async def test_no_pod_and_no_stop_waits_for_an_api_server_that_hangs(
    world: World, fake: FakeApiServer, cluster: ToySource
) -> None:
    fake.always = Fault.HANG
    async with running(world) as agent:
        await settled(agent, lambda: len(fake.requests) == 1)
        with agent.controller.events.watch() as watcher:
            cluster.put(KEY, manifest())
            assert (await next_event(watcher, "PodAdmitted")).uid == UID
        await agent.stop()
    assert len(fake.requests) == 1


async def test_what_cannot_be_shown_is_a_condition(world: World, fake: FakeApiServer) -> None:
    devices = {"example.com/gpu": (PluginDevice("a", Mask.of(0)), PluginDevice("b"))}
    world.config = replace(world.config, agent=replace(world.config.agent, devices=devices))
    async with running(world) as agent:
        await settled(agent, lambda: bool(published(fake)))
        assert "1 of 2 devices of example.com/gpu are not published" in conditions(agent)


def test_the_pods_of_the_cluster_are_those_of_the_kubelets_source() -> None:
    assert KubeletPods.name == CLUSTER_SOURCE


async def test_without_a_server_the_agent_does_not_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    kubernetes = replace(world.config.agent.kubernetes, server="")
    world.config = replace(world.config, agent=replace(world.config.agent, kubernetes=kubernetes))

    with pytest.raises(StartError, match=r"agent\.kubernetes\.server: not set"):
        async with running(world):
            raise AssertionError("it started")


def test_nothing_of_it_is_imported_where_nothing_is_published() -> None:
    found = modules_after("from agent.cli.agent import import_agent", "import_agent()")
    assert "agent.cluster.publishing" not in found


async def test_a_pod_gets_its_event_once_its_name_is_known(
    world: World, fake: FakeApiServer
) -> None:
    nameless = FailedPodDocument(UID, "", "", INVALID_MANIFEST, "unknown", 1.0, KEY)
    source = Source(CLUSTER_SOURCE, KEY)
    async with running(world) as agent:
        notify = agent.controller.rejections._notify
        notify(nameless, source)
        notify(replace(nameless, name="web", namespace="shop"), source)
        await settled(agent, lambda: fake.events)
        assert [each["involvedObject"]["name"] for each in fake.events.values()] == ["web"]
        assert not [path for path in fake.paths("POST") if "namespaces//" in path]

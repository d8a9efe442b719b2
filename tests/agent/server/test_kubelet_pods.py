"""Pods of a kubelet, from its Pods API to their cgroups, over restarts, until they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.cluster.kubelet.tracked import ALONE_SECONDS
from agent.managers.allocation import Source
from agent.server.lifecycle import SOURCE_PERIOD
from tests.agent.server.support import UID, in_loop, next_event, running, until
from tests.fakes.pods_api import FakePodsApi, pod_message

if TYPE_CHECKING:
    from tests.agent.server.support import Running, World

POD: Final = f"kubepods/pod{UID}"


@pytest.fixture
def kubelet(world: World) -> FakePodsApi:
    """Return a kubelet beside the agent, which does not serve its API yet."""
    directory = world.directory / "kubelet"
    directory.mkdir()
    agent = world.config.agent
    beside = replace(agent.kubelet, enabled=True, directory=directory, nri_socket=None)
    world.config = replace(world.config, agent=replace(agent, kubelet=beside))
    for name in ("kubepods", "kubepods/burstable", "kubepods/besteffort"):
        world.kernel.mkdir(name)
    return FakePodsApi(directory)


def run_pod(world: World, uid: str = UID) -> None:
    """Make the cgroups of a pod and of its container, as a kubelet does, with a process."""
    for name in (f"kubepods/pod{uid}", f"kubepods/pod{uid}/c0"):
        world.kernel.mkdir(name)
    world.kernel.spawn(f"kubepods/pod{uid}/c0", 4711)


def end_pod(world: World, uid: str = UID) -> None:
    """Let a pod's process end and remove its cgroups, as a kubelet does."""
    world.kernel.exit(4711)
    for name in (f"kubepods/pod{uid}/c0", f"kubepods/pod{uid}"):
        world.kernel.rmdir(name)


async def states(agent: Running) -> dict[str, str]:
    status = await asyncio.to_thread(agent.client.status)
    return {entry.file: entry.state for entry in status.manifests if entry.source == "kubelet"}


async def settled(agent: Running, entries: dict[str, str]) -> None:
    """Wait until what has become of all entries was reported, which follows the last event."""
    while await states(agent) != entries:  # noqa: ASYNC110  # no event says so
        await asyncio.sleep(0)


def pods_of(agent: Running) -> set[str]:
    return set(agent.controller.state.ledger.allocations)


@in_loop
async def test_a_pod_goes_from_the_pods_api_to_its_cgroup_over_a_restart_to_its_end(
    world: World, kubelet: FakePodsApi
) -> None:
    await kubelet.start()
    async with running(world) as agent:
        with agent.controller.events.watch() as watcher:
            kubelet.add(UID, pod_message(UID))
            assert (await next_event(watcher, "PodAdmitted")).uid == UID
        await settled(agent, {f"pods/{UID}": "admitted"})
        allocation = agent.controller.state.ledger.allocations[UID]
        assert allocation.source == Source("kubelet", f"pods/{UID}")
        run_pod(world)
        await agent.ask(agent.client.reconcile)
        assert world.cpus_of(f"{POD}/c0") == str(allocation.exclusive_cpus) == "1,9"
    # The kubelet is away, and lists nothing at first when it is back.
    await kubelet.stop()
    pods, kubelet.pods = kubelet.pods, {}
    async with running(world) as agent:
        assert pods_of(agent) == {UID}
        world.clock.advance(10 * ALONE_SECONDS)
        await kubelet.start()
        await world.clock.passing(SOURCE_PERIOD, until(lambda: kubelet.watched))
        await agent.ask(agent.client.reconcile)
        assert pods_of(agent) == {UID}
        kubelet.add(UID, pods[UID])
        await settled(agent, {f"pods/{UID}": "admitted"})
        assert agent.controller.state.ledger.allocations[UID] == allocation
        with agent.controller.events.watch() as watcher:
            kubelet.delete(UID)
            end_pod(world)
            event = next_event(watcher, "PodRemoved")
            assert (await world.clock.passing(SOURCE_PERIOD, event)).uid == UID
        await settled(agent, {})
    await kubelet.stop()


@in_loop
async def test_without_a_kubelet_that_answers_the_status_says_what_to_do(
    world: World, kubelet: FakePodsApi
) -> None:
    assert not kubelet.socket.exists()
    async with running(world) as agent:
        lines = tuple[str, ...]()
        while not any("enable the kubelet's feature gate PodsAPI" in line for line in lines):
            world.clock.advance(SOURCE_PERIOD)
            lines = (await asyncio.to_thread(agent.client.status)).condition_lines()


@in_loop
async def test_a_pod_of_the_kubelet_is_not_removed_over_the_api_which_says_how_it_ends(
    world: World, kubelet: FakePodsApi
) -> None:
    kubelet.pods[UID] = pod_message(UID)
    await kubelet.start()
    async with running(world) as agent:
        await settled(agent, {f"pods/{UID}": "admitted"})
        with pytest.raises(Exception, match="delete that pod from the cluster"):
            await asyncio.to_thread(agent.client.remove, UID)
    await kubelet.stop()


@pytest.mark.parametrize(
    ("enabled", "endpoint", "imported"),
    [
        (False, "https://127.0.0.1:10250/pods", []),
        (True, "", ["agent.cluster.kubelet.pods_api"]),
        (
            True,
            "https://127.0.0.1:10250/pods",
            ["agent.cluster.kubelet.pods_api", "agent.cluster.kubelet.pods_endpoint"],
        ),
    ],
)
def test_only_what_is_configured_is_imported(
    enabled: bool,  # noqa: FBT001  # a column of the table
    endpoint: str,
    imported: list[str],
) -> None:
    code = f"""
import sys
from agent.cli.agent import import_agent
import_agent()
from agent.config.model import AgentConfig, BesideKubeletConfig, Config
from agent.cluster.plugs import kubelet_pods
from agent.server.wiring import SourceInputs
beside = BesideKubeletConfig(enabled={enabled}, pods_endpoint={endpoint!r})
made = kubelet_pods(SourceInputs(Config(agent=AgentConfig(kubelet=beside)), None, set, True))
assert (made is not None) is {enabled}
kubelet = "agent.cluster.kubelet"
looked_for = f"{{kubelet}}.pods_api", f"{{kubelet}}.pods_endpoint", "grpc"
print(*(name for name in looked_for if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*imported, *(["grpc"] if enabled else [])]

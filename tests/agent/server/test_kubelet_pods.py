"""Pods of a kubelet, from its Pods API to their cgroups, over restarts, until they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.server.lifecycle import SOURCE_PERIOD
from tests.agent.server.support import UID, in_loop, running
from tests.fakes.pods_api import FakePodsApi, pod_message

if TYPE_CHECKING:
    from tests.agent.server.support import Running, World


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


async def states(agent: Running) -> dict[str, str]:
    status = await asyncio.to_thread(agent.client.status)
    return {entry.file: entry.state for entry in status.manifests if entry.source == "kubelet"}


async def settled(agent: Running, entries: dict[str, str]) -> None:
    """Wait until what has become of all entries was reported, which follows the last event."""
    while await states(agent) != entries:  # noqa: ASYNC110  # no event says so
        await asyncio.sleep(0)


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

"""Device plugins on real sockets in the running agent: restarts of either, in either order."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.config.agent import DevicePluginsConfig
from sysfs.mask import Mask
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    RecordingManager,
    in_loop,
    manifest,
    running,
    until,
)
from tests.fakes.device_plugin import FakePlugin, device, never

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from agent.api.documents.admissions import AdmissionDocument
    from tests.agent.server.support import Running, World

GPU: Final = "example.com/gpu"


@pytest.fixture
def directory(world: World) -> Iterator[Path]:
    """Have device plugins served in a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="plugins") as path:
        plugins = DevicePluginsConfig(enabled=True, directory=Path(path))
        world.config = replace(
            world.config, agent=replace(world.config.agent, device_plugins=plugins)
        )
        yield Path(path)


@asynccontextmanager
async def registered(agent: Running, directory: Path, *names: str) -> AsyncIterator[FakePlugin]:
    """Run a plugin of GPUs on node 1; the agent has taken its list."""
    plugin = FakePlugin(directory, GPU, preferring=True, pre_start=True)
    await plugin.start()
    await until((directory / "kubelet.sock").exists)
    plugin.send(*(device(name, 1) for name in names))
    await plugin.register()
    await taken(agent, dict.fromkeys(names, True))
    try:
        yield plugin
    finally:
        await plugin.stop()


async def taken(agent: Running, health: dict[str, bool]) -> None:
    """Wait until the plugin's devices are as given, and take them over."""
    providers = agent.controller.state.parts.providers

    def offered() -> dict[str, bool]:
        return {each.id: each.healthy for each in providers.offer().devices.get(GPU, ())}

    await until(lambda: offered() == health)
    await agent.service._take_offer()


async def admit(agent: Running, count: int, uid: str = UID) -> AdmissionDocument:
    return await asyncio.to_thread(agent.client.admit, manifest(uid=uid, gpu=count))


def devices(agent: Running, uid: str = UID) -> tuple[str, ...]:
    return agent.controller.state.ledger.allocations[uid].containers[0].devices[GPU]


# Shows in differences.md: pre-start
@in_loop
async def test_a_pod_gets_what_the_plugin_prefers_and_delivers_with_cpus_near_it(
    world: World, directory: Path
) -> None:
    served: list[bool] = []

    class Manager(RecordingManager):
        def ready(self, status: str) -> None:
            served.append((directory / "kubelet.sock").exists())
            super().ready(status)

    async with (
        running(world, Manager()) as agent,
        registered(agent, directory, "a", "b", "c") as plugin,
    ):
        assert served == [True], "it is ready only once plugins can register"
        answer = await admit(agent, 2)
        assert answer.pod is not None
        container = answer.pod.containers[0]
        assert container.devices[GPU] == devices(agent)
        assert container.cpus == "4,12"
        assert container.delivery is not None
        methods = [method for method, _ in plugin.calls]
        assert methods[-3:] == ["GetPreferredAllocation", "Allocate", "PreStartContainer"]
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert f'numawarden_device_plugin_connected{{resource="{GPU}"}} 1.0' in text
        assert f'kubelet_device_plugin_registration_total{{resource_name="{GPU}"}} 1.0' in text


@pytest.mark.parametrize("method", ["GetPreferredAllocation", "Allocate", "PreStartContainer"])
@in_loop
async def test_a_plugin_that_registers_again_amid_a_call_stops_nothing(
    world: World, directory: Path, method: str
) -> None:
    async with running(world) as agent, registered(agent, directory, "a", "b", "c") as plugin:
        asked = asyncio.Event()

        async def ask(_request: bytes) -> bytes:
            asked.set()
            return await never(_request)

        usual = plugin.answers.pop(method, None)
        plugin.answers[method] = ask
        admitting = asyncio.create_task(admit(agent, 2))
        await asked.wait()
        if usual is None:
            del plugin.answers[method]
        else:
            plugin.answers[method] = usual
        await plugin.register()
        answer = await admitting
        # Without its preference the pod is admitted; without preparation it is not ready.
        assert answer.admitted == (method != "Allocate")
        if answer.rejection is not None:
            assert "UNAVAILABLE" in answer.rejection.message
        elif method == "PreStartContainer":
            assert answer.pod is not None
            assert "UNAVAILABLE" in answer.pod.enforcement.differences[0]
        await agent.controller.reconcile()
        assert agent.controller.state.parts.progress.failure() is None


@in_loop
async def test_a_restart_of_the_agent_keeps_allocations_until_the_plugin_returns(
    world: World, directory: Path
) -> None:
    async with running(world) as agent, registered(agent, directory, "a", "b"):
        assert (await admit(agent, 1)).admitted
        kept, delivery = devices(agent), agent.controller.state.ledger.allocations[UID]
    async with running(world) as agent:
        assert agent.controller.state.ledger.allocations[UID] == delivery
        assert agent.controller.state.invalid == ()
        assert list(agent.controller.state.parts.providers.conditions()) == []
        (known,) = agent.controller.state.parts.providers.offer().devices[GPU]
        assert (known.id, known.nodes, known.healthy) == (*kept, Mask.of(1), False)
        rejected = await admit(agent, 1, OTHER_UID)
        assert not rejected.admitted
        async with registered(agent, directory, "a", "b"):
            assert agent.controller.state.invalid == ()
            assert devices(agent) == kept
            assert (await admit(agent, 1, OTHER_UID)).admitted
            assert {*devices(agent), *devices(agent, OTHER_UID)} == {"a", "b"}

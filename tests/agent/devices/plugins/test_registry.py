"""Plugins that register through the kubelet's plugin watcher: sockets in `plugins_registry`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest

from agent.devices.plugin_limits import MOST_RESOURCES
from agent.devices.plugin_registry import LONGEST_PAUSE, PERIOD
from agent.managers.policy import PluginDevice
from agent.rpc.sockets import LONGEST_SOCKET
from agent.server.watches import directory_names
from tests.agent.devices.plugins.support import GPU, served
from tests.agent.server.support import in_loop
from tests.fakes.device_plugin import FakePlugin, device

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from tests.agent.devices.plugins.support import Served

NO_INFO: Final[Mapping[str, object]] = MappingProxyType({})


@asynccontextmanager
async def watching(directory: Path, **more: object) -> AsyncIterator[tuple[Served, Path]]:
    """Serve a directory of plugins, and yield the directory of the watcher beside it."""
    (directory / "device-plugins").mkdir(0o700)
    registry = directory / "plugins_registry"
    registry.mkdir(0o700)
    async with served(directory / "device-plugins", **more) as running:
        yield running, registry


async def advanced(running: Served, holds: Callable[[], object]) -> None:
    """Let pauses pass until something holds."""
    while not holds():
        running.clock.advance(LONGEST_PAUSE)
        await asyncio.sleep(0)


@asynccontextmanager
async def started(
    registry: Path,
    name: str = "a",
    endpoint: str = "gpu.sock",
    info: Mapping[str, object] = NO_INFO,
) -> AsyncIterator[FakePlugin]:
    """Serve a plugin of one device until the block ends; it waits to be found."""
    plugin = FakePlugin(registry, endpoint=endpoint)
    plugin.info.update(info)
    plugin.send(device(name, 1))
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.stop()


@in_loop
async def test_a_plugin_is_registered_by_its_socket_and_lost_with_it(directory: Path) -> None:
    async with watching(directory) as (running, registry):
        async with started(registry) as plugin:
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"a": True})
            await running.until_seen(lambda: plugin.statuses)
            assert plugin.statuses == [(True, "")]
            assert (await running.plugins.allocate(GPU, ("a",))).environment == {"DEVICES": "a"}
        async with started(registry, "b"):
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"b": True})
            (registry / "gpu.sock").unlink()
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"b": False})
            assert "was removed" in running.plugins._resources.why_lost(GPU)


@in_loop
async def test_a_new_socket_is_noticed_without_the_periodic_reading(directory: Path) -> None:
    async with (
        watching(directory, watch=directory_names) as (running, registry),
        started(registry),
    ):
        await running.until(lambda: running.health() == {"a": True})


@in_loop
async def test_a_plugin_of_a_directory_below_has_the_endpoint_it_names(directory: Path) -> None:
    async with watching(directory) as (running, registry):
        (registry / "vendor").mkdir()
        info = {"endpoint": str(directory / "devices.sock")}
        async with (
            started(directory, "x", "devices.sock"),
            started(registry / "vendor", endpoint="reg.sock", info=info),
        ):
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"x": True})


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"supported_versions": ["v1"]}, "manager version, v1beta1, is not among plugin supported"),
        ({"name": "gpu"}, 'the ResourceName "gpu" is invalid'),
        ({"endpoint": "gpu.sock"}, "is not an absolute path"),
        ({"endpoint": "/" + "a" * 120}, "has more than the 107 bytes"),
    ],
)
@in_loop
async def test_what_cannot_be_registered_is_answered_and_a_condition_and_tried_again(
    directory: Path, info: dict[str, object], words: str
) -> None:
    async with (
        watching(directory) as (running, registry),
        started(registry, info=info) as plugin,
    ):
        await running.wait_out(PERIOD)
        await running.until_seen(lambda: len(plugin.statuses) > 1)
        assert {registered for registered, _ in plugin.statuses} == {False}
        assert all(words in error for _, error in plugin.statuses)
        await running.until(running.plugins.conditions)
        [line] = running.plugins.conditions()
        assert line.startswith(f"the plugin at {registry / 'gpu.sock'} is not registered: ")
        assert words in line
        plugin.info.update(name=GPU, endpoint="", supported_versions=["v1", "v1beta1"])
        await advanced(running, lambda: plugin.statuses[-1][0])
        await running.until(lambda: running.health() == {"a": True})
        await running.until(lambda: not running.plugins.conditions())


# Shows in differences.md: plugin-types
@in_loop
async def test_plugins_of_other_types_are_a_kubelets_and_take_no_place(directory: Path) -> None:
    info = {"type": "CSIPlugin", "name": "csi.x.com"}
    async with watching(directory) as (running, registry), AsyncExitStack() as stack:
        others = [
            await stack.enter_async_context(started(registry, endpoint=f"csi{n}.sock", info=info))
            for n in range(MOST_RESOURCES)
        ]
        async with started(registry):
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"a": True})
            assert not any(other.statuses for other in others)
            assert running.plugins.conditions() == ()


# Shows in differences.md: plugin-types
@in_loop
async def test_plugins_of_a_directory_open_to_others_are_not_registered(directory: Path) -> None:
    info = {"name": "example.com/other"}
    async with watching(directory) as (running, registry):
        below = registry / "anyone"
        below.mkdir()
        below.chmod(0o777)
        async with started(registry), started(below, endpoint="x.sock", info=info):
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"a": True})
            [line] = running.plugins.conditions()
            assert line.startswith(f"no plugin of {below} is registered: {below} can be written by")
            assert running.health("example.com/other") is None
            registry.chmod(0o777)
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"a": False})
            assert f"{registry} can be written by others" in running.plugins.conditions()[0]


@in_loop
async def test_plugins_beyond_the_most_are_a_condition_with_what_to_do(directory: Path) -> None:
    known = {f"example.com/r{n}": (PluginDevice("a"),) for n in range(MOST_RESOURCES)}
    async with (
        watching(directory, known=known) as (running, registry),
        started(registry) as plugin,
    ):
        await running.wait_out(PERIOD)
        await running.until(running.plugins.conditions)
        [line] = running.plugins.conditions()
        assert line.startswith(f"the plugin at {registry / 'gpu.sock'} is not registered: 64 ")
        assert "stop a plugin that is not needed" in line
        assert "plugin registration failed with err: 64 " in plugin.statuses[0][1]


@in_loop
async def test_a_socket_whose_path_is_too_long_is_a_condition_with_what_to_do(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(directory) as (running, registry):
        monkeypatch.chdir(registry)
        name = "g" * (LONGEST_SOCKET + 1 - len(f"{registry}/"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
            await running.wait_out(PERIOD)
            await running.until(running.plugins.conditions)
        [line] = running.plugins.conditions()
        assert line.startswith(f"the plugin at {registry / name} is not registered: the path")
        assert "set a shorter agent.devicePlugins.registryDirectory" in line


@in_loop
async def test_directories_beyond_the_most_are_a_condition_with_what_to_do(directory: Path) -> None:
    async with watching(directory) as (running, registry):
        for number in range(64):
            (registry / f"d{number:02}").mkdir()
        async with started(registry / "d63", endpoint="x.sock"):
            await running.wait_out(PERIOD)
            await running.until(running.plugins.conditions)
            [line] = running.plugins.conditions()
            assert line.startswith(f"no plugin of {registry / 'd63'} and later directories is")
            assert "remove some" in line
            assert running.health() is None

"""Plugins of two implementations of gRPC, in two languages, are served alike."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pytest

from agent.devices.provider import DeviceError
from agent.managers.allocation import Delivery, DeviceNode, Mount
from agent.managers.policy import PluginDevice
from agent.rpc import V1BETA1, CallError
from sysfs.mask import Mask
from tests.agent.devices.plugins.support import GPU, served
from tests.agent.server.support import in_loop
from tests.fakes.device_plugin import FakePlugin, device, encoded
from tests.fakes.node_plugin import NodePlugin, is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

Devices: TypeAlias = "Iterable[tuple[str, int, bool]]"


class RegisteringPlugin(Protocol):
    """A plugin that registers when it starts."""

    @property
    def calls(self) -> list[tuple[str, tuple[str, ...]]]:
        """The methods that were called, with their ids."""

    async def start(self) -> None:
        """Serve and register."""

    def send(self, devices: Devices) -> None:
        """Send a list of devices: id, NUMA node, whether it is healthy."""

    async def stop(self) -> None:
        """End."""


class GrpcioPlugin:
    """The plugin with grpcio; it does what the one in JavaScript does."""

    def __init__(self, directory: Path, resource: str, endpoint: str) -> None:
        self._plugin = FakePlugin(directory, resource, endpoint, preferring=True, pre_start=True)
        self._plugin.answers["Allocate"] = self._allocate

    @property
    def calls(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(method, _ids(request)) for method, request in self._plugin.calls]

    async def start(self) -> None:
        await self._plugin.start()
        await self._plugin.register()

    def send(self, devices: Devices) -> None:
        healths = {True: "Healthy", False: "Unhealthy"}
        self._plugin.send(
            *[device(name, node, health=healths[healthy]) for name, node, healthy in devices]
        )

    async def stop(self) -> None:
        await self._plugin.stop()

    @staticmethod
    async def _allocate(raw: bytes) -> bytes:
        [asked] = V1BETA1["AllocateRequest"].FromString(raw).container_requests
        ids = list(asked.devices_ids)
        if "broken" in ids:
            raise CallError("INTERNAL", "the device is broken")
        answer = {
            "envs": {"DEVICES": ",".join(ids)},
            "mounts": [
                {
                    "container_path": "/opt/driver",
                    "host_path": "/usr/lib/driver",
                    "read_only": True,
                }
            ],
            "devices": [
                {"container_path": f"/dev/{name}", "host_path": f"/dev/{name}", "permissions": "rw"}
                for name in ids
            ],
            "annotations": {"example.com/devices": ",".join(ids)},
            "cdi_devices": [{"name": f"example.com/gpu={name}"} for name in ids],
        }
        return encoded("AllocateResponse", container_responses=[answer])


def _ids(request: object) -> tuple[str, ...]:
    """Return the ids of any request."""
    [asked] = getattr(request, "container_requests", None) or [request]
    for name in ("devices_ids", "available_deviceIDs"):
        if hasattr(asked, name):
            return tuple(getattr(asked, name))
    return ()


@pytest.fixture(params=[GrpcioPlugin, NodePlugin])
def implementation(
    request: pytest.FixtureRequest,
) -> Callable[[Path, str, str], RegisteringPlugin]:
    if request.param is NodePlugin and not is_installed():
        missing = "the plugin in JavaScript is not installed; run: make plugin"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    found: Callable[[Path, str, str], RegisteringPlugin] = request.param
    return found


def test_a_plugin_registers_lists_prefers_delivers_and_comes_back(
    directory: Path, implementation: Callable[[Path, str, str], RegisteringPlugin]
) -> None:
    @in_loop
    async def check() -> None:
        async with served(directory) as running:
            plugins = running.plugins
            plugin = implementation(directory, GPU, "gpu.sock")
            await plugin.start()
            plugin.send([("a", 0, True), ("b", 1, True), ("c", 1, False)])
            await running.until(lambda: running.health() == {"a": True, "b": True, "c": False})
            assert plugins.offer().devices[GPU] == (
                PluginDevice("a", Mask.of(0)),
                PluginDevice("b", Mask.of(1)),
                PluginDevice("c", Mask.of(1), healthy=False),
            )
            assert plugins.offer().preferring == {GPU}
            assert await plugins.preferred(GPU, frozenset("ab"), frozenset(), 1) == ("b",)
            assert await plugins.preferred(GPU, frozenset("ab"), frozenset("a"), 1) == ("a",)
            assert await plugins.allocate(GPU, ("b", "a")) == Delivery(
                environment={"DEVICES": "b,a"},
                mounts=(Mount("/opt/driver", "/usr/lib/driver", read_only=True),),
                device_nodes=(
                    DeviceNode("/dev/b", "/dev/b", "rw"),
                    DeviceNode("/dev/a", "/dev/a", "rw"),
                ),
                annotations={"example.com/devices": "b,a"},
                cdi_devices=("example.com/gpu=b", "example.com/gpu=a"),
            )
            with pytest.raises(DeviceError, match="INTERNAL: the device is broken"):
                await plugins.allocate(GPU, ("broken",))
            await plugins.start_container(GPU, ("a",))
            await running.until_seen(lambda: len(plugin.calls) == 7)
            assert plugin.calls == [
                ("GetDevicePluginOptions", ()),
                ("ListAndWatch", ()),
                ("GetPreferredAllocation", ("a", "b")),
                ("GetPreferredAllocation", ("a", "b")),
                ("Allocate", ("b", "a")),
                ("Allocate", ("broken",)),
                ("PreStartContainer", ("a",)),
            ]
            await plugin.stop()
            await running.until(lambda: running.health() == dict.fromkeys("abc", False))
            plugin = implementation(directory, GPU, "gpu.sock")
            await plugin.start()
            plugin.send([("b", 1, True)])
            await running.until(lambda: running.health() == {"b": True})
            assert plugins.conditions() == ()
            await plugin.stop()

    check()

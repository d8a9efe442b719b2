"""A plugin of another implementation of gRPC, in another language, is served alike."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent.devices.provider import DeviceError
from agent.managers.delivery import Delivery, DeviceNode, Mount
from agent.managers.policy import PluginDevice
from sysfs.mask import Mask
from tests.agent.devices.plugins.support import GPU, served
from tests.agent.server.support import in_loop
from tests.fakes.node_plugin import NodePlugin, is_installed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(
    not (is_installed() or os.environ.get("CI")),
    reason="the plugin in JavaScript is not installed; run: make plugin",
)
@in_loop
async def test_a_plugin_registers_lists_prefers_delivers_and_comes_back(directory: Path) -> None:
    async with served(directory) as running:
        plugins = running.plugins
        plugin = NodePlugin(directory, GPU, "gpu.sock")
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
        plugin = NodePlugin(directory, GPU, "gpu.sock")
        await plugin.start()
        plugin.send([("b", 1, True)])
        await running.until(lambda: running.health() == {"b": True})
        assert plugins.conditions() == ()
        await plugin.stop()

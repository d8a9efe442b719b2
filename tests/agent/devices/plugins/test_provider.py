"""Plugins come, list devices, go and come back; what is offered follows."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.devices import plugins as provider
from agent.devices.lists import NewestList
from agent.devices.plugin_limits import (
    CALLS,
    GRACE,
    LONGEST_LIST,
    MOST_RESOURCES,
    REGISTRATIONS,
    Deadlines,
)
from agent.devices.provider import DeviceError
from agent.managers.policy import PluginDevice
from agent.rpc.calls import CallError
from sysfs.mask import Mask
from tests.agent.devices.plugins.support import GPU, PATIENT, connected, served
from tests.agent.server.support import in_loop
from tests.fakes.device_plugin import (
    FakePlugin,
    always,
    device,
    device_list,
    encoded,
    failing,
    never,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.agent.devices.plugins.support import Served
    from tests.fakes.device_plugin import Answer

NIC = "example.com/nic"
KNOWN = {GPU: (PluginDevice("a"), PluginDevice("b")), NIC: (PluginDevice("x"),)}
REGISTER = encoded("RegisterRequest", version="v1beta1", resource_name=GPU, endpoint="gpu.sock")


def _has(running: Served, **health: bool) -> bool:
    return running.health() == health


@in_loop
async def test_the_options_of_the_request_are_ignored(directory: Path) -> None:
    async with served(directory) as running, connected(running) as plugin:
        await plugin.register(options={"get_preferred_allocation_available": True})
        assert running.plugins.offer().preferring == frozenset()


@in_loop
async def test_a_resource_without_plugin_is_unhealthy_and_later_dropped(directory: Path) -> None:
    async with served(directory) as running:
        async with connected(running, device("a", 1)):
            pass
        await running.until(lambda: _has(running, a=False))
        [left] = running.plugins.offer().devices[GPU]
        assert (left.nodes, left.away) == (Mask.of(1), True)
        assert running.plugins.conditions() == ()
        words = f"device plugin of {GPU}: not connected: its plugin is gone: "
        with pytest.raises(DeviceError, match=words):
            await running.plugins.allocate(GPU, ("a",))
        assert running.plugins.connected() == {GPU: False}
        await running.wait_out(GRACE - 1)
        assert running.health() == {"a": False}
        await running.wait_out(3)
        await running.until(lambda: running.health() is None)
        assert running.plugins.conditions() == ()


@in_loop
async def test_the_end_of_the_stream_alone_makes_devices_unhealthy(directory: Path) -> None:
    async with served(directory) as running, connected(running, device("a")) as plugin:
        plugin.end_streams()
        await running.until(lambda: _has(running, a=False))
        assert "ended the stream" in running.plugins._resources.why_lost(GPU)
        await plugin.register()
        await running.until(lambda: _has(running, a=True))


# Shows in differences.md: plugin-devices-kept
@in_loop
async def test_known_devices_are_unhealthy_until_registered_or_dropped(directory: Path) -> None:
    async with served(directory, known=KNOWN) as running:
        assert running.health() == {"a": False, "b": False}
        assert "since the agent started" in running.plugins._resources.why_lost(GPU)
        assert running.plugins.conditions() == ()
        async with connected(running, device("b", 1)):
            assert running.plugins.conditions() == ()
            assert running.health(NIC) == {"x": False}
            await running.wait_out(GRACE + 1)
            await running.until(lambda: running.health(NIC) is None)
            assert running.health() == {"b": True}


@in_loop
async def test_the_later_of_two_plugins_of_a_resource_replaces_the_first(directory: Path) -> None:
    async with (
        served(directory) as running,
        connected(running, device("a")) as first,
        connected(running, device("b"), endpoint="other.sock") as second,
    ):
        [line] = running.plugins.conditions()
        assert "gpu.sock was connected when other.sock registered the same resource" in line
        await first.stop()
        first.send(device("x"))
        second.send(device("b"), device("c"))
        await running.until(lambda: _has(running, b=True, c=True))
        assert (await running.plugins.allocate(GPU, ("b",))).environment == {"DEVICES": "b"}
        await running.wait_out(GRACE + 1)
        await running.until(lambda: not running.plugins.conditions())


@in_loop
async def test_a_resource_of_the_configuration_is_not_a_plugins(directory: Path) -> None:
    async with served(directory, configured=(GPU, NIC), known=KNOWN) as running:
        assert running.plugins.offer().devices == {}
        assert running.plugins.conditions() == ()
        plugin = FakePlugin(directory)
        await plugin.start()
        with pytest.raises(CallError, match="is a resource of the agent's configuration"):
            await plugin.register()
        assert plugin.calls == []
        assert running.health() is None
        await plugin.stop()


# Shows in differences.md: plugin-bounds
@in_loop
async def test_resources_are_limited_and_those_that_were_dropped_make_room(directory: Path) -> None:
    known = {f"example.com/r{n}": (PluginDevice("a"),) for n in range(MOST_RESOURCES)}
    async with served(directory, known=known) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        with pytest.raises(CallError, match="RESOURCE_EXHAUSTED: 64 resources are registered"):
            await plugin.register()
        await FakePlugin(directory, "example.com/r3").register()
        await running.wait_out(GRACE + 1)
        await running.until(lambda: len(running.plugins.offer().devices) == 1)
        await plugin.register()
        await plugin.stop()


@in_loop
async def test_a_plugin_that_cannot_be_reached_is_not_registered(directory: Path) -> None:
    async with served(directory) as running:
        registering = asyncio.create_task(FakePlugin(directory).register())
        await running.until_seen(lambda: running.tally.counts[REGISTRATIONS.name, GPU])
        running.clock.advance(PATIENT.options)
        with pytest.raises(CallError, match="UNKNOWN: failed to dial device plugin: UNAVAILABLE"):
            await registering
        assert running.health() is None


@in_loop
async def test_a_plugin_that_serves_its_socket_late_is_dialled_until_then(directory: Path) -> None:
    async with served(directory) as running:
        late = FakePlugin(directory)
        late.send(device("a"))
        registering = asyncio.create_task(late.register())
        await running.until_seen(lambda: running.tally.counts[REGISTRATIONS.name, GPU])
        running.clock.advance(PATIENT.options - 1)
        async with connected(running, device("x"), resource=NIC, endpoint="nic.sock"):
            assert not registering.done()
        await late.start()
        await registering
        await running.until(lambda: _has(running, a=True))
        assert running.tally.counts[CALLS.name, GPU, "GetDevicePluginOptions", "ok"] == 1
        assert running.tally.counts[CALLS.name, GPU, "GetDevicePluginOptions", "failed"] == 0
        await late.stop()


@pytest.mark.parametrize(
    ("answer", "deadlines", "words"),
    [
        (failing("INTERNAL", "no\x1b[2J\ndriver"), PATIENT, r"INTERNAL: no\\x1b\[2J\\ndriver"),
        (always(b"\xff"), PATIENT, "cannot be decoded as DevicePluginOptions"),
        (never, Deadlines(options=0.05), r"was not answered within 0\.05 s"),
    ],
)
@in_loop
async def test_a_plugin_without_options_is_not_registered(
    directory: Path, answer: Answer, deadlines: Deadlines, words: str
) -> None:
    async with served(directory, deadlines=deadlines) as running:
        plugin = FakePlugin(directory)
        plugin.answers["GetDevicePluginOptions"] = answer
        await plugin.start()
        with pytest.raises(CallError, match=f"failed to get device plugin options: .*{words}"):
            await plugin.register()
        assert running.health() is None
        await plugin.stop()


# Shows in differences.md: plugin-lists
@in_loop
async def test_a_list_of_no_use_makes_all_unhealthy_until_a_sound_one(directory: Path) -> None:
    async with (
        served(directory) as running,
        connected(running, device("a"), device("b")) as plugin,
    ):
        for hostile in ((device("c"), device("c")), (device("\n"),)):
            plugin.send(*hostile)
            await running.until(lambda: _has(running, a=False, b=False))
            assert running.plugins.conditions()[0].startswith(f"device plugin of {GPU}: ")
            plugin.send(device("a"), device("b"))
            await running.until(lambda: _has(running, a=True, b=True))
        plugin.send_raw(b"\x00" * (LONGEST_LIST + 1))
        await running.until(lambda: _has(running, a=False, b=False))
        assert "bytes, 4194304 are allowed" in running.plugins.conditions()[0]
        plugin.send(device("b", health="Unhealthy"), device("c"))
        await running.until(lambda: _has(running, b=False, c=True))
        plugin.send()
        await running.until(lambda: _has(running))


@in_loop
async def test_a_message_beyond_grpcs_limit_ends_the_connection_alone(directory: Path) -> None:
    async with served(directory) as running, connected(running, device("a")) as plugin:
        plugin.send_raw(b"\x00" * (17 << 20))
        await running.until(lambda: _has(running, a=False))
        assert "RESOURCE_EXHAUSTED" in running.plugins.conditions()[0]
        plugin.send(device("a"))
        await plugin.register()
        await running.until(lambda: _has(running, a=True))


@in_loop
async def test_a_defect_in_reading_a_list_costs_one_plugin_and_is_noted(directory: Path) -> None:
    def defective(raw: bytes) -> tuple[PluginDevice, ...]:
        raise LookupError(raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provider, "read_devices", defective)
        async with served(directory) as running, connected(running) as plugin:
            await running.until(lambda: "internal error" in "".join(running.plugins.conditions()))
            patch.undo()
            plugin.send(device("a"))
            await plugin.register()
            await running.until(lambda: _has(running, a=True))


@in_loop
async def test_registrations_are_counted_by_resource(directory: Path) -> None:
    async with served(directory) as running, connected(running) as plugin:
        await plugin.register()
        with pytest.raises(CallError):
            await plugin.register(resource_name="no resource")
        assert running.tally.counts == {
            ("kubelet_device_plugin_registration_total", GPU): 2,
            ("numawarden_device_plugin_calls_total", GPU, "GetDevicePluginOptions", "ok"): 2,
        }


class _Ending:
    """The client of a plugin that sends lists, and ends with a status when `ended` is set."""

    def __init__(self, *lists: bytes, status: str = "UNAVAILABLE") -> None:
        self.lists = lists
        self.status = status
        self.ended = asyncio.Event()
        self.closed = False

    async def call(self, *_: object) -> bytes:
        return b""

    async def stream(self, *_: object) -> AsyncGenerator[bytes, None]:
        for raw in self.lists:
            yield raw
        await self.ended.wait()
        raise CallError(self.status, "")

    async def close(self) -> None:
        self.closed = True


@in_loop
async def test_of_registrations_at_the_same_moment_all_but_one_close(directory: Path) -> None:
    """The first is replaced before its stream of lists was even opened."""
    clients = [_Ending() for _ in range(4)]
    waiting = iter(clients)
    async with served(directory, dial=lambda _: next(waiting)) as running:
        await asyncio.gather(*(running.plugins.register(REGISTER) for _ in clients))
        await running.until_seen(lambda: sum(client.closed for client in clients) == 3)
        assert running.plugins.connected() == {GPU: True}
        assert running.health() == {}
        assert "has not sent a list of devices yet" in running.plugins.conditions()[0]
        assert not clients[-1].closed
    assert all(client.closed for client in clients)


@pytest.mark.parametrize(
    ("status", "away"), [("UNAVAILABLE", True), ("UNKNOWN", True), ("RESOURCE_EXHAUSTED", False)]
)
@in_loop
async def test_a_plugin_is_away_however_its_stream_ends_but_by_a_list_that_is_too_long(
    directory: Path, status: str, *, away: bool
) -> None:
    client = _Ending(device_list(device("a")), status=status)
    async with served(directory, dial=lambda _: client) as running:
        await running.plugins.register(REGISTER)
        await running.until_seen(partial(_has, running, a=True))
        client.ended.set()
        await running.until_seen(partial(_has, running, a=False))
        assert running.plugins.offer().devices[GPU][0].away is away
        assert bool(running.plugins.conditions()) is not away


@in_loop
async def test_a_plugin_that_ends_again_without_a_list_has_one_grace(directory: Path) -> None:
    clients = [_Ending(device_list(device("a"))), *(_Ending() for _ in range(3))]
    waiting = iter(clients)
    async with served(directory, dial=lambda _: next(waiting)) as running:
        for client in clients:
            await running.plugins.register(REGISTER)
            await running.until_seen(partial(_has, running, a=client is clients[0]))
            assert running.plugins.conditions() == ()
            client.ended.set()
            await running.until_seen(lambda: running.plugins.connected() == {GPU: False})
            running.clock.advance(GRACE / len(clients) - 1)
        running.clock.advance(len(clients))
        running.plugins.update()
        await running.until_seen(running.plugins.conditions)
        [line] = running.plugins.conditions()
        assert line.endswith("its 1 devices are unhealthy")
        assert not running.plugins.offer().devices[GPU][0].away


@in_loop
async def test_lists_share_their_turn(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = list[NewestList]()
    follow = NewestList.follow

    async def watched(newest: NewestList, lists: AsyncGenerator[bytes, None]) -> None:
        followed.append(newest)
        await follow(newest, lists)

    monkeypatch.setattr(NewestList, "follow", watched)
    async with served(directory) as running:
        for resource in (GPU, NIC):
            async with connected(running, device("a", 0), resource=resource):
                pass
    first, second = followed
    assert first._turn is second._turn

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
from agent.rpc import CallError
from sysfs.mask import Mask
from tests.agent.devices.plugins.support import GPU, PATIENT, names_in, served
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
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from agent.clock import Clock
    from agent.devices.plugins import Plugin
    from tests.agent.devices.plugins.support import Served

KNOWN = {GPU: (PluginDevice("a", Mask.of(0)), PluginDevice("b", Mask.of(1)))}


def _has(running: Served, names: str) -> bool:
    """Return whether a resource has healthy devices of these names, a letter each."""
    return running.health() == dict.fromkeys(names, True)


@in_loop
async def test_the_devices_of_a_registered_plugin_are_offered(directory: Path) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("a", 0), device("b", 1, health="Unhealthy"))
        await plugin.register()
        await running.until(running.health)
        assert running.plugins.offer().devices == {
            GPU: (PluginDevice("a", Mask.of(0)), PluginDevice("b", Mask.of(1), healthy=False))
        }
        assert running.plugins.conditions() == ()
        assert running.plugins.connected() == {GPU: True}
        await plugin.stop()


@in_loop
async def test_a_plugin_is_asked_for_its_options_before_its_registration_is_answered(
    directory: Path,
) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory, preferring=True)
        await plugin.start()
        await plugin.register()
        assert plugin.methods()[0] == "GetDevicePluginOptions"
        await running.until_seen(lambda: len(plugin.calls) == 2)
        assert plugin.methods() == ["GetDevicePluginOptions", "ListAndWatch"]
        assert running.plugins.offer().preferring == {GPU}
        await plugin.stop()


@in_loop
async def test_the_options_of_the_request_are_ignored(directory: Path) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        await plugin.register(options={"get_preferred_allocation_available": True})
        assert running.plugins.offer().preferring == frozenset()
        await plugin.stop()


@in_loop
async def test_every_list_replaces_the_one_before(directory: Path) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("a"), device("b"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True, "b": True})
        plugin.send(device("b", health="Unhealthy"), device("c"))
        await running.until(lambda: running.health() == {"b": False, "c": True})
        plugin.send()
        await running.until(lambda: running.health() == {})
        await plugin.stop()


@in_loop
async def test_without_its_plugin_a_resource_is_unhealthy_for_the_grace_period_and_then_dropped(
    directory: Path,
) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("a", 1))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        await plugin.stop()
        await running.until(lambda: running.health() == {"a": False})
        assert running.plugins.offer().devices[GPU][0].nodes == Mask.of(1)
        assert running.plugins.offer().devices[GPU][0].away
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
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("a"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        plugin.end_streams()
        await running.until(lambda: running.health() == {"a": False})
        assert "ended the stream" in running.plugins._resources.why_lost(GPU)
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        await plugin.stop()


@in_loop
async def test_a_plugin_that_comes_back_has_the_devices_of_its_new_list(directory: Path) -> None:
    async with served(directory) as running:
        for names in ("ab", "b", "bc"):
            plugin = FakePlugin(directory)
            await plugin.start()
            plugin.send(*map(device, names))
            await plugin.register()
            await running.until(partial(_has, running, names))
            await plugin.stop()
            await running.until(lambda: False in (running.health() or {}).values())


# Shows in differences.md: plugin-devices-kept
@in_loop
async def test_known_devices_are_unhealthy_until_their_plugin_registers(directory: Path) -> None:
    async with served(directory, known=KNOWN) as running:
        assert running.health() == {"a": False, "b": False}
        assert "since the agent started" in running.plugins._resources.why_lost(GPU)
        assert running.plugins.conditions() == ()
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("b", 1))
        await plugin.register()
        await running.until(lambda: running.health() == {"b": True})
        assert running.plugins.conditions() == ()
        await plugin.stop()


@in_loop
async def test_known_devices_are_dropped_if_no_plugin_registers(directory: Path) -> None:
    async with served(directory, known=KNOWN) as running:
        await running.wait_out(GRACE + 1)
        await running.until(lambda: running.health() is None)


@in_loop
async def test_an_agent_that_starts_again_removes_the_sockets_and_takes_the_plugin_up_again(
    directory: Path,
) -> None:
    plugin = FakePlugin(directory)
    async with served(directory) as running:
        await plugin.start()
        plugin.send(device("a"), device("b"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True, "b": True})
        known = running.plugins.offer().devices
    async with served(directory, known=known) as running:
        assert running.health() == {"a": False, "b": False}
        assert not (directory / plugin.endpoint).exists()
        await plugin.stop()
        await plugin.start()
        plugin.send(device("a"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        await plugin.stop()


@in_loop
async def test_the_later_of_two_plugins_of_a_resource_replaces_the_earlier(
    directory: Path,
) -> None:
    async with served(directory) as running:
        first, second = FakePlugin(directory), FakePlugin(directory, endpoint="other.sock")
        for plugin, name in ((first, "a"), (second, "b")):
            await plugin.start()
            plugin.send(device(name))
            await plugin.register()
            await running.until(partial(_has, running, name))
        [line] = running.plugins.conditions()
        assert "gpu.sock was connected when other.sock registered the same resource" in line
        await first.stop()
        first.send(device("x"))
        second.send(device("b"), device("c"))
        await running.until(lambda: running.health() == {"b": True, "c": True})
        assert (await running.plugins.allocate(GPU, ("b",))).environment == {"DEVICES": "b"}
        await running.wait_out(GRACE + 1)
        await running.until(lambda: not running.plugins.conditions())
        await second.stop()


@in_loop
async def test_a_resource_of_the_configuration_is_not_a_plugins(directory: Path) -> None:
    async with served(directory, configured=(GPU,)) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        with pytest.raises(CallError, match="is a resource of the agent's configuration"):
            await plugin.register()
        assert plugin.calls == []
        assert running.health() is None
        await plugin.stop()


@in_loop
async def test_a_former_resource_of_a_plugin_that_is_configured_now_is_not_offered(
    directory: Path,
) -> None:
    async with served(directory, configured=(GPU,), known=KNOWN) as running:
        assert running.health() is None
        assert running.plugins.conditions() == ()


# Shows in differences.md: plugin-bounds
@in_loop
async def test_resources_are_limited_in_number_and_those_that_were_dropped_make_room(
    directory: Path,
) -> None:
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
async def test_a_plugin_that_serves_its_socket_after_it_registered_is_dialled_until_then(
    directory: Path,
) -> None:
    async with served(directory) as running:
        late, other = FakePlugin(directory), FakePlugin(directory, "example.com/nic", "nic.sock")
        registering = asyncio.create_task(late.register())
        await running.until_seen(lambda: running.tally.counts[REGISTRATIONS.name, GPU])
        running.clock.advance(PATIENT.options - 1)
        await other.start()
        other.send(device("x"))
        await other.register()
        assert not registering.done()
        await late.start()
        late.send(device("a"))
        await registering
        await running.until(lambda: running.health() == {"a": True})
        assert running.tally.counts[CALLS.name, GPU, "GetDevicePluginOptions", "ok"] == 1
        assert running.tally.counts[CALLS.name, GPU, "GetDevicePluginOptions", "failed"] == 0
        for plugin in (late, other):
            await plugin.stop()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (failing("INTERNAL", "no\x1b[2J\ndriver"), r"INTERNAL: no\\x1b\[2J\\ndriver"),
        (always(b"\xff"), "cannot be decoded as DevicePluginOptions"),
    ],
)
def test_a_plugin_without_options_is_not_registered(
    directory: Path, answer: object, words: str
) -> None:
    @in_loop
    async def check() -> None:
        async with served(directory):
            plugin = FakePlugin(directory)
            plugin.answers["GetDevicePluginOptions"] = answer  # type: ignore[assignment]
            await plugin.start()
            with pytest.raises(CallError, match=f"failed to get device plugin options: .*{words}"):
                await plugin.register()
            await plugin.stop()

    check()


@in_loop
async def test_a_plugin_that_hangs_when_it_registers_keeps_no_other_from_registering(
    directory: Path,
) -> None:
    async with served(directory) as running:
        hanging = FakePlugin(directory, "example.com/hanging", "hanging.sock")
        hanging.answers["GetDevicePluginOptions"] = never
        await hanging.start()
        waiting = asyncio.create_task(hanging.register())
        await running.until_seen(lambda: hanging.calls)
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("a"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        assert not waiting.done()
        waiting.cancel()
        await plugin.stop()
        await hanging.stop()


@in_loop
async def test_a_plugin_that_does_not_answer_in_time_is_not_registered(directory: Path) -> None:
    async with served(directory, deadlines=Deadlines(options=0.05)) as running:
        plugin = FakePlugin(directory)
        plugin.answers["GetDevicePluginOptions"] = never
        await plugin.start()
        with pytest.raises(CallError, match=r"was not answered within 0\.05 s"):
            await plugin.register()
        assert running.health() is None
        await plugin.stop()


# Shows in differences.md: plugin-lists
@in_loop
async def test_a_list_that_cannot_be_used_makes_all_devices_unhealthy_until_a_sound_one(
    directory: Path,
) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("a"), device("b"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True, "b": True})
        for hostile in ((device("c"), device("c")), (device("\n"),)):
            plugin.send(*hostile)
            await running.until(lambda: running.health() == {"a": False, "b": False})
            assert running.plugins.conditions()[0].startswith(f"device plugin of {GPU}: ")
            plugin.send(device("a"), device("b"))
            await running.until(lambda: running.health() == {"a": True, "b": True})
        plugin.send_raw(b"\x00" * (LONGEST_LIST + 1))
        await running.until(lambda: running.health() == {"a": False, "b": False})
        assert "bytes, 4194304 are allowed" in running.plugins.conditions()[0]
        await plugin.stop()


@in_loop
async def test_a_message_beyond_the_limit_of_grpc_ends_the_connection_and_nothing_else(
    directory: Path,
) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        plugin.send(device("a"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        plugin.send_raw(b"\x00" * (17 << 20))
        await running.until(lambda: running.health() == {"a": False})
        assert "RESOURCE_EXHAUSTED" in running.plugins.conditions()[0]
        plugin.send(device("a"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        await plugin.stop()


@in_loop
async def test_a_plugin_that_stops_right_after_it_registered_is_lost(directory: Path) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        await plugin.register()
        await plugin.stop()
        await running.until(lambda: "unhealthy" in "".join(running.plugins.conditions()))
        assert running.health() == {}


@in_loop
async def test_of_thousands_of_lists_the_last_one_counts(directory: Path) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        await plugin.register()
        await running.until_seen(lambda: plugin.streams)
        for n in range(3000):
            plugin.send(device(str(n)))
        await running.until(lambda: running.health() == {"2999": True})
        await plugin.stop()


@in_loop
async def test_a_defect_in_reading_a_list_costs_one_plugin_and_is_a_condition(
    directory: Path,
) -> None:
    def defective(raw: bytes) -> tuple[PluginDevice, ...]:
        raise LookupError(raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provider, "read_devices", defective)
        async with served(directory) as running:
            plugin = FakePlugin(directory)
            await plugin.start()
            await plugin.register()
            await running.until(lambda: "internal error" in "".join(running.plugins.conditions()))
            patch.undo()
            plugin.send(device("a"))
            await plugin.register()
            await running.until(lambda: running.health() == {"a": True})
            await plugin.stop()


@in_loop
async def test_registrations_are_counted_by_resource(directory: Path) -> None:
    async with served(directory) as running:
        plugin = FakePlugin(directory)
        await plugin.start()
        await plugin.register()
        await plugin.register()
        with pytest.raises(CallError):
            await plugin.register(resource_name="no resource")
        registrations = "kubelet_device_plugin_registration_total"
        calls = "numawarden_device_plugin_calls_total"
        assert running.tally.counts == {
            (registrations, GPU): 2,
            (calls, GPU, "GetDevicePluginOptions", "ok"): 2,
        }
        await plugin.stop()


@in_loop
async def test_the_end_closes_the_connections_and_removes_the_socket(directory: Path) -> None:
    plugin = FakePlugin(directory)
    lists: list[Plugin] = []
    async with served(directory) as running:
        await plugin.start()
        plugin.send(device("a"))
        await plugin.register()
        await running.until(lambda: running.health() == {"a": True})
        lists += running.plugins._following
    assert not running.plugins._following
    assert len(lists) == 1
    assert names_in(directory) == ["gpu.sock"]
    await plugin.stop()


class _Quiet:
    """The client of a plugin that answers and lists nothing."""

    def __init__(self) -> None:
        self.closed = False

    async def call(self, *_: object) -> bytes:
        return b""

    async def stream(self, *_: object) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    async def close(self) -> None:
        self.closed = True


@in_loop
async def test_of_registrations_at_the_same_moment_one_stays_and_the_others_are_closed(
    directory: Path,
) -> None:
    """The first is replaced before its stream of lists was even opened."""
    clients = [_Quiet() for _ in range(4)]
    waiting = iter(clients)
    async with served(directory, dial=lambda _: next(waiting)) as running:
        raw = encoded("RegisterRequest", version="v1beta1", resource_name=GPU, endpoint="gpu.sock")
        await asyncio.gather(*(running.plugins.register(raw) for _ in clients))
        await running.until_seen(lambda: sum(client.closed for client in clients) == 3)
        assert running.plugins.connected() == {GPU: True}
        assert not clients[-1].closed
    assert all(client.closed for client in clients)


@in_loop
async def test_a_plugin_that_lists_nothing_offers_nothing_and_is_a_condition(
    directory: Path,
) -> None:
    async with served(directory, dial=lambda _: _Quiet()) as running:
        raw = encoded("RegisterRequest", version="v1beta1", resource_name=GPU, endpoint="gpu.sock")
        await running.plugins.register(raw)
        assert running.health() == {}
        assert "has not sent a list of devices yet" in running.plugins.conditions()[0]


def _has_health(running: Served, health: dict[str, bool]) -> bool:
    return running.health() == health


class _Ending(_Quiet):
    """The client of a plugin that sends lists, and ends with a status when `ended` is set."""

    def __init__(self, *lists: bytes, status: str = "UNAVAILABLE") -> None:
        super().__init__()
        self.lists = lists
        self.status = status
        self.ended = asyncio.Event()

    async def stream(self, *_: object) -> AsyncGenerator[bytes, None]:
        for raw in self.lists:
            yield raw
        await self.ended.wait()
        raise CallError(self.status, "")


@pytest.mark.parametrize(
    ("status", "away"),
    [
        ("UNAVAILABLE", True),
        ("CANCELLED", True),
        ("UNKNOWN", True),
        ("INTERNAL", True),
        ("RESOURCE_EXHAUSTED", False),
    ],
)
def test_a_plugin_is_away_however_its_stream_ends_but_by_a_list_that_is_too_long(
    directory: Path, status: str, *, away: bool
) -> None:
    @in_loop
    async def check() -> None:
        client = _Ending(device_list(device("a")), status=status)
        async with served(directory, dial=lambda _: client) as running:
            await running.plugins.register(
                encoded(
                    "RegisterRequest", version="v1beta1", resource_name=GPU, endpoint="gpu.sock"
                )
            )
            await running.until_seen(partial(_has_health, running, {"a": True}))
            client.ended.set()
            await running.until_seen(partial(_has_health, running, {"a": False}))
            assert running.plugins.offer().devices[GPU][0].away is away
            assert bool(running.plugins.conditions()) is not away

    check()


@in_loop
async def test_a_plugin_that_ends_again_and_again_without_a_list_is_a_condition_after_the_grace(
    directory: Path,
) -> None:
    clients = [_Ending(device_list(device("a"))), *(_Ending() for _ in range(3))]
    waiting = iter(clients)
    async with served(directory, dial=lambda _: next(waiting)) as running:
        raw = encoded("RegisterRequest", version="v1beta1", resource_name=GPU, endpoint="gpu.sock")
        for client in clients:
            await running.plugins.register(raw)
            listed = {"a": client is clients[0]}
            await running.until_seen(partial(_has_health, running, listed))
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
async def test_lists_of_all_plugins_share_the_time_that_using_lists_may_take(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[asyncio.Lock | None]()

    class Watched(NewestList):
        def __init__(
            self,
            use: Callable[[bytes], None],
            clock: Clock,
            turn: asyncio.Lock | None = None,
        ) -> None:
            turns.append(turn)
            super().__init__(use, clock, turn)

    monkeypatch.setattr(provider, "NewestList", Watched)
    async with served(directory) as running:
        for resource in (GPU, f"{GPU}-2"):
            plugin = FakePlugin(directory, resource)
            await plugin.start()
            plugin.send(device("a", 0))
            await plugin.register()
            await running.until(partial(running.health, resource))
            await plugin.stop()
    first, second = turns
    assert first is second is not None

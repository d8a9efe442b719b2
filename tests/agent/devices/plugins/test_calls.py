"""Calls of plugins: what is asked, what is answered, and what a plugin costs that fails."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.devices.plugin_calls import BACK_OFF, MOST_DOUBLINGS, CallBreaker, Plugin
from agent.devices.plugin_limits import CALLS, IGNORED_PREFERENCES, CallResult, Deadlines
from agent.devices.provider import DeviceError
from agent.devices.registration import Registrant
from agent.rpc.calls import CallError
from tests.agent.devices.plugins.support import GPU, PATIENT, SHORT, Tally, connected, served
from tests.agent.server.support import FakeClock, in_loop
from tests.fakes.device_plugin import always, device, encoded, failing, never

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from tests.agent.devices.plugins.support import Served
    from tests.fakes.device_plugin import Answer, FakePlugin

FOUR = frozenset("abcd")
#: The longest pause of a method, in seconds.
LONGEST = BACK_OFF * 2**MOST_DOUBLINGS
#: Answers late as far as the agent can see, however slow the machine.
LATE = failing("DEADLINE_EXCEEDED", "late")


@asynccontextmanager
async def registered(
    directory: Path, deadlines: Deadlines = PATIENT, *, options: bool = True
) -> AsyncIterator[tuple[Served, FakePlugin]]:
    """Yield a provider and its one plugin, which has four devices and all `options` or none."""
    devices = map(device, "abcd")
    async with (
        served(directory, deadlines=deadlines) as running,
        connected(running, *devices, preferring=options, pre_start=options) as plugin,
    ):
        plugin.calls.clear()
        running.tally.counts.clear()
        yield running, plugin


async def delivered(running: Served) -> None:
    """Have a device delivered as for a container of a pod."""
    await running.plugins.allocate(GPU, ("a",))
    await running.plugins.start_container(GPU, ("a",))


def made(running: Served, plugin: FakePlugin, method: str) -> int:
    """Return how many calls of a method were made; one that is late may not have arrived."""
    counts = running.tally.counts
    count = sum(
        counts[CALLS.name, GPU, method, each] for each in CallResult if each != CallResult.SKIPPED
    )
    assert plugin.methods().count(method) <= count
    return count


@in_loop
async def test_a_plugin_is_asked_which_available_devices_it_prefers(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        found = await running.plugins.preferred(GPU, FOUR, frozenset("b"), 3)
        assert found == ("b", "d", "c")
        [(method, request)] = plugin.calls
        [asked] = request.container_requests
        assert method == "GetPreferredAllocation"
        assert list(asked.available_deviceIDs) == ["a", "b", "c", "d"]
        assert list(asked.must_include_deviceIDs) == ["b"]
        assert asked.allocation_size == 3
        assert running.plugins.offer().preferring == {GPU}
        assert running.tally.counts == {(CALLS.name, GPU, "GetPreferredAllocation", "ok"): 1}


@in_loop
async def test_a_plugin_is_asked_for_no_more_than_its_options_say(directory: Path) -> None:
    async with registered(directory, options=False) as (running, plugin):
        assert await running.plugins.preferred(GPU, FOUR, frozenset(), 1) == ()
        assert await running.plugins.preferred("example.com/none", FOUR, frozenset(), 1) == ()
        await running.plugins.start_container(GPU, ("a",))
        assert plugin.calls == []


# Shows in differences.md: preference-misfit
@in_loop
async def test_a_preference_that_misfits_is_ignored_counted_and_noted(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        answer = encoded("PreferredAllocationResponse", container_responses=[{"deviceIDs": "x"}])
        plugin.answers["GetPreferredAllocation"] = always(answer)
        assert await running.plugins.preferred(GPU, FOUR, frozenset(), 1) == ()
        assert running.tally.counts[IGNORED_PREFERENCES.name, GPU] == 1
        assert running.tally.counts[CALLS.name, GPU, "GetPreferredAllocation", "invalid"] == 1
        [line] = running.plugins.conditions()
        assert line.startswith(f"device plugin of {GPU}: its preference was ignored: ")
        assert 'device "x" is preferred, but not available' in line


# Shows in differences.md: preference-fails
@in_loop
async def test_a_preference_that_fails_is_none_and_costs_its_deadline_once(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        for answer in (failing("INTERNAL", "broken"), LATE, LATE, LATE):
            plugin.answers["GetPreferredAllocation"] = answer
            assert await running.plugins.preferred(GPU, FOUR, frozenset(), 1) == ()
            await running.plugins.allocate(GPU, ("a",))
        assert made(running, plugin, "GetPreferredAllocation") == 2


@in_loop
async def test_an_allocation_is_one_call_that_is_measured(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        delivery = await running.plugins.allocate(GPU, ("c", "a"))
        assert delivery.environment == {"DEVICES": "c,a"}
        [(method, request)] = plugin.calls
        assert method == "Allocate"
        assert [list(each.devices_ids) for each in request.container_requests] == [["c", "a"]]
        assert running.tally.counts == {(CALLS.name, GPU, "Allocate", "ok"): 1}
        assert running.tally.observed == {("kubelet_device_plugin_alloc_duration_seconds", GPU): 1}


@pytest.mark.parametrize(
    ("answer", "words", "result"),
    [
        (failing("UNKNOWN", "no\nGPU"), r"UNKNOWN: no\\nGPU$", "failed"),
        (always(b""), "0 containers are answered", "invalid"),
        (always(b"\xff"), "cannot be decoded as AllocateResponse", "invalid"),
        (never, r"DEADLINE_EXCEEDED: Allocate was not answered within 0\.05 s", "timeout"),
    ],
)
@in_loop
async def test_an_allocation_that_fails_names_the_plugin_and_its_words(
    directory: Path, answer: Answer, words: str, result: str
) -> None:
    deadlines = SHORT if result == "timeout" else PATIENT
    async with registered(directory, deadlines) as (running, plugin):
        plugin.answers["Allocate"] = answer
        with pytest.raises(DeviceError, match=f"device plugin of {GPU}: .*{words}"):
            await running.plugins.allocate(GPU, ("a",))
        assert running.tally.counts == {(CALLS.name, GPU, "Allocate", result): 1}


@in_loop
async def test_devices_of_no_plugin_are_not_delivered(directory: Path) -> None:
    async with served(directory) as running:
        with pytest.raises(DeviceError, match="no plugin registered this resource"):
            await running.plugins.allocate(GPU, ("a",))


@in_loop
async def test_a_plugin_that_asked_for_it_prepares_devices_for_starts(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        await running.plugins.start_container(GPU, ("a", "b"))
        [(method, request)] = plugin.calls
        assert (method, list(request.devices_ids)) == ("PreStartContainer", ["a", "b"])
        plugin.answers["PreStartContainer"] = failing("INTERNAL", "reset failed")
        with pytest.raises(DeviceError, match=f"{GPU}: INTERNAL: reset failed"):
            await running.plugins.start_container(GPU, ("a",))


# Shows in differences.md: plugin-deadline
@in_loop
async def test_a_method_that_hangs_is_skipped_for_a_while_then_tried_once(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        plugin.answers["Allocate"] = LATE
        for hung, pause in enumerate((60, 120, 240, 480, 960, 960), 1):
            with pytest.raises(DeviceError, match="was not answered within"):
                await running.plugins.allocate(GPU, ("a",))
            times = f" {hung} times in a row" if hung > 1 else ""
            line = f"Allocate was not answered in time{times}"
            assert running.plugins.conditions() == (f"device plugin of {GPU}: {line}",)
            for remaining in (pause, pause - 40):
                with pytest.raises(DeviceError, match=f"{line}, so .* again in {remaining} s"):
                    await running.plugins.allocate(GPU, ("a",))
                running.clock.advance(40)
            running.clock.advance(pause - 80)
            assert made(running, plugin, "Allocate") == hung
            assert set(plugin.methods()) <= {"Allocate"}


@in_loop
async def test_a_plugin_answers_one_call_at_a_time(directory: Path) -> None:
    async with registered(directory, SHORT) as (running, plugin):
        plugin.answers["Allocate"] = never
        asked = [running.plugins.allocate(GPU, (name,)) for name in "abc"]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(each) for each in found} == {DeviceError}
        assert made(running, plugin, "Allocate") == 1


def test_while_a_method_that_hung_is_tried_it_is_not_called() -> None:
    clock = FakeClock()
    breaker = CallBreaker(clock.monotonic)
    breaker.begin()
    assert breaker.remaining == 0
    breaker.open()
    clock.advance(BACK_OFF)
    assert breaker.remaining == 0
    breaker.begin()
    assert breaker.remaining == 2 * BACK_OFF
    breaker.close()
    assert breaker.remaining == 0


def test_a_method_that_hangs_for_weeks_is_tried_as_often_as_one_that_hangs_for_an_hour() -> None:
    clock = FakeClock()
    breaker = CallBreaker(clock.monotonic)
    for _ in range(1100):
        breaker.begin()
        breaker.open()
        clock.advance(LONGEST)
    assert breaker.remaining == 0
    breaker.begin()
    assert breaker.remaining == LONGEST


class NobodyServes:
    """A client of a socket that nobody serves; each attempt takes three seconds."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.seconds: list[float] = []

    async def call(self, *asked: Any) -> Any:  # noqa: ANN401  # as of SocketClient
        self.seconds.append(asked[-1])
        self.clock.advance(min(3, asked[-1]))
        raise CallError("UNAVAILABLE", "nobody serves it")

    async def stream(self, *_: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401
        yield None

    async def close(self) -> None:
        pass


@in_loop
async def test_all_attempts_to_reach_a_plugin_have_one_deadline(directory: Path) -> None:
    clock, registrant = FakeClock(), Registrant(GPU, directory / "gpu.sock")
    client, began = NobodyServes(clock), clock.monotonic()
    plugin = Plugin(registrant, client, Deadlines(options=10), clock, Tally())
    with pytest.raises(CallError, match="failed to dial device plugin"):
        await plugin.connect()
    assert client.seconds == pytest.approx([10, 6.9, 3.9, 0.9])
    assert clock.monotonic() <= began + 10


@pytest.mark.parametrize(
    ("hanging", "field"), [("Allocate", "allocation"), ("PreStartContainer", "start")]
)
@in_loop
async def test_a_method_that_hangs_costs_one_pod(directory: Path, hanging: str, field: str) -> None:
    """Whatever the other methods answer."""
    async with registered(directory, replace(PATIENT, **{field: 0.05})) as (running, plugin):
        plugin.answers[hanging] = never
        for _ in range(5):
            await running.plugins.preferred(GPU, FOUR, frozenset(), 1)
            with pytest.raises(DeviceError, match=f"{hanging} was not answered"):
                await delivered(running)
        assert made(running, plugin, hanging) == 1
        assert made(running, plugin, "GetPreferredAllocation") == 5
        assert made(running, plugin, "Allocate") == 1
        [line] = running.plugins.conditions()
        assert line == f"device plugin of {GPU}: {hanging} was not answered in time"


@in_loop
async def test_an_answer_closes_the_breaker(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        for answer in (LATE, LATE, failing("INTERNAL", "x"), LATE, failing("INTERNAL", "x")):
            plugin.answers["Allocate"] = answer
            with pytest.raises(DeviceError):
                await running.plugins.allocate(GPU, ("a",))
            running.clock.advance(LONGEST)
        assert running.plugins.conditions() == ()


@in_loop
async def test_a_plugin_that_hangs_leaves_others_alone_and_may_come_back(directory: Path) -> None:
    async with registered(directory) as (running, plugin):
        delivering = plugin.answers["Allocate"]
        plugin.answers["Allocate"] = never
        calling = asyncio.create_task(running.plugins.allocate(GPU, ("a",)))
        await running.until_seen(lambda: "Allocate" in plugin.methods())
        nic = "example.com/nic"
        async with connected(running, device("x"), resource=nic, endpoint="nic.sock"):
            assert (await running.plugins.allocate(nic, ("x",))).environment == {"DEVICES": "x"}
        plugin.answers["Allocate"] = LATE
        await plugin.register()
        with pytest.raises(DeviceError, match=f"device plugin of {GPU}: "):
            await calling
        with pytest.raises(DeviceError):
            await running.plugins.allocate(GPU, ("a",))
        plugin.answers["Allocate"] = delivering
        await plugin.register()
        assert (await running.plugins.allocate(GPU, ("a",))).environment == {"DEVICES": "a"}

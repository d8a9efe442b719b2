"""The agent as a device plugin: it is registered with every kubelet, and answers in time."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from agent.cluster.kubelet.exclusive_plugin import DECIDING_SECONDS, PERIOD, SLOTS, ExclusivePlugin
from agent.cluster.kubelet.plugin_socket import PluginSocket, PluginSocketError
from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.device_plugins import DEVICE_PLUGIN, V1BETA1
from agent.server.watches import directory_names
from tests.agent.server.support import FakeClock, until
from tests.fakes.device_manager import FakeDeviceManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

RESOURCE: Final = "numawarden.dev/exclusive"


class StandingClock(FakeClock):
    """A clock whose short waits last until a test advances it, too, except those of attempts."""

    async def sleep(self, seconds: float) -> None:
        if seconds < DECIDING_SECONDS:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, woken))
        await woken


class Decisions:
    """What is decided for each pod: the words of a rejection, an error, or never anything."""

    def __init__(self) -> None:
        self.words: str | None = None
        self.error: Exception | None = None
        self.hangs = False
        self.asked = 0
        self.cancelled = 0
        self.deadlines: list[float] = []

    async def __call__(self, deadline: float) -> str | None:
        self.asked += 1
        self.deadlines.append(deadline)
        if self.error is not None:
            raise self.error
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        return self.words


class Served:
    """A plugin that serves a kubelet's directory, and the device manager of that kubelet."""

    def __init__(self, directory: Path, names: Callable[[Path], AsyncIterator[object]]) -> None:
        self.plugins = directory / "device-plugins"
        self.decisions = Decisions()
        self.clock = StandingClock()
        self.reported = [""]
        self.counted: list[str] = []
        self.plugin = ExclusivePlugin(
            self.plugins,
            RESOURCE,
            self.decisions,
            names,
            self.clock,
            self.reported.append,
            self.counted.append,
        )
        self.manager = FakeDeviceManager(self.plugins)

    def conditions(self) -> list[str]:
        return [line for line in self.reported[-1:] if line]

    async def condition(self) -> str:
        await until(self.conditions)
        [line] = self.conditions()
        return line

    async def registered(self) -> None:
        """Wait until the kubelet of now has registered the plugin and its list."""
        await self.manager.until_listed(RESOURCE)
        await until(lambda: self.plugin.is_registered)

    async def wait_out(self, seconds: float) -> None:
        await until(lambda: any(self.clock._sleepers))
        self.clock.advance(seconds)


@asynccontextmanager
async def registered(directory: Path) -> AsyncIterator[Served]:
    """Serve the plugin, which a kubelet has registered, until the block ends."""
    async with served(directory) as running:
        await running.manager.start()
        await running.registered()
        yield running


@asynccontextmanager
async def served(
    directory: Path, names: Callable[[Path], AsyncIterator[object]] = directory_names
) -> AsyncIterator[Served]:
    running = Served(directory, names)
    task = asyncio.create_task(running.plugin.serve())
    try:
        yield running
    finally:
        await running.manager.stop()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_kubelet_that_runs_gets_the_plugin_with_all_its_slots(tmp_path: Path) -> None:
    manager = FakeDeviceManager(tmp_path / "device-plugins")
    await manager.start()
    async with served(tmp_path) as running:
        running.manager = manager
        endpoint = await manager.until_listed(RESOURCE)
        assert endpoint.ids is not None
        assert len(set(endpoint.ids)) == SLOTS
        assert endpoint.healthy == set(endpoint.ids)
        [request] = manager.registrations
        assert (request.version, request.endpoint) == ("v1beta1", "numawarden.sock")
        [options] = manager.options
        assert not options.get_preferred_allocation_available
        assert not options.pre_start_required


async def test_every_restart_of_the_kubelet_gets_the_plugin_again(tmp_path: Path) -> None:
    async with served(tmp_path) as running:
        for _ in range(5):
            await running.manager.start()
            await running.registered()
            await running.manager.stop()
        for _ in range(5):
            await running.manager.start()
            await running.registered()
            await running.manager.crash()
        await until(lambda: not running.plugin.is_registered)
        await running.clock.passing(PERIOD, until(running.conditions))
        assert "UNAVAILABLE" in await running.condition()
        await running.manager.start()
        await running.registered()
        assert running.conditions() == []


async def test_a_kubelet_that_starts_while_the_former_answers_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appeared, answers = asyncio.Event(), list[asyncio.Future[None]]()

    async def names(_directory: Path) -> AsyncIterator[None]:
        while True:
            yield
            await appeared.wait()
            appeared.clear()

    class Answering:
        def __init__(self, _socket: Path, _service: str) -> None:
            answers.append(asyncio.get_running_loop().create_future())

        async def call(self, *_request: object) -> None:
            await answers[-1]

        async def close(self) -> None:
            pass

    async def attempted(former: int) -> None:
        await until(lambda: len(answers) > former)

    monkeypatch.setattr("agent.cluster.kubelet.exclusive_plugin.Client", Answering)
    async with served(tmp_path, names) as running:
        await running.manager.start()
        appeared.set()
        failing = CallError("UNAVAILABLE", "Connection refused")
        await attempted(0)
        while not running.conditions():
            attempts = len(answers)
            answers[-1].set_exception(failing)
            await running.clock.passing(PERIOD, attempted(attempts))
        attempts = len(answers)
        await running.manager.stop()
        await running.manager.start()
        answers[-1].set_exception(failing)
        appeared.set()
        await attempted(attempts)


async def test_no_event_is_needed_to_notice_a_kubelet(tmp_path: Path) -> None:
    async def blind(_directory: Path) -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    async with served(tmp_path, blind) as running:
        await until((running.plugins / "numawarden.sock").exists)
        for _ in range(2):
            await running.manager.start()
            while not running.plugin.is_registered:
                await running.wait_out(PERIOD)
                for _ in range(200):
                    await asyncio.sleep(0)
            await running.manager.stop()
            await until(lambda: not running.plugin.is_registered)


async def test_a_directory_that_vanishes_is_served_again(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        await running.manager.stop()
        moved = tmp_path / "moved"
        running.plugins.rename(moved)
        await until((running.plugins / "numawarden.sock").exists)
        await running.manager.start()
        await running.registered()


async def test_a_directory_that_cannot_be_made_is_a_condition_until_then(tmp_path: Path) -> None:
    place = tmp_path / "kubelet"
    place.write_text("")
    async with served(place) as running:
        line = await running.condition()
        assert line.startswith(f"{RESOURCE} is not offered to the kubelet: {place}/device-plugins")
        assert f"create it (install -d -m 0750 {place}/device-plugins)" in line
        place.unlink()
        await running.manager.start()
        await running.clock.passing(PERIOD, until(lambda: running.plugin.is_registered))
        assert running.conditions() == []


async def test_its_own_socket_that_vanishes_is_linked_and_registered_again(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        (running.plugins / "numawarden.sock").unlink()
        await until(lambda: len(running.manager.registrations) == 2)
        await running.registered()
        assert (await running.manager.allocate(RESOURCE, "slot-0")).container_responses


async def test_the_sockets_of_an_agent_that_was_killed_are_replaced(tmp_path: Path) -> None:
    plugins = tmp_path / "device-plugins"
    (plugins / ".numawarden").mkdir(parents=True)
    for name in ("numawarden.sock", ".numawarden/plugin.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(plugins / name))
    async with registered(tmp_path) as running:
        assert running.conditions() == []


async def test_a_file_in_the_place_of_the_socket_is_a_condition_and_stays(tmp_path: Path) -> None:
    plugins = tmp_path / "device-plugins"
    plugins.mkdir()
    (plugins / "numawarden.sock").write_text("mine")
    async with served(tmp_path) as running:
        line = await running.condition()
        assert "numawarden.sock is not a socket" in line
        assert (plugins / "numawarden.sock").read_text() == "mine"
        (plugins / "numawarden.sock").unlink()
        await running.manager.start()
        await running.registered()
        assert running.conditions() == []


async def test_a_directory_that_other_users_can_write_is_not_served(tmp_path: Path) -> None:
    plugins = tmp_path / "device-plugins"
    plugins.mkdir()
    plugins.chmod(0o777)
    async with served(tmp_path) as running:
        line = await running.condition()
        assert "can be written by others" in line
        assert list(plugins.iterdir()) == []


async def test_a_path_that_no_socket_can_have_is_a_condition(tmp_path: Path) -> None:
    async with served(tmp_path / ("long" * 25)) as running:
        line = await running.condition()
        assert "a socket's has at most 107" in line


@pytest.mark.parametrize(("name", "longest"), [("n" * 100, "n" * 100), ("n", "plugin.sock")])
async def test_the_path_that_is_too_long_is_the_one_that_is_named(name: str, longest: str) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp", suffix="d" * 85 * (name == "n")) as directory,
        pytest.raises(PluginSocketError, match=rf"/{longest} has 1\d\d bytes"),
    ):
        await PluginSocket(Path(directory), name, lambda _: pytest.fail("bound")).serve()


async def test_only_the_owner_can_call_and_the_sockets_go_with_the_agent(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        status = (running.plugins / "numawarden.sock").stat()
        assert (status.st_mode & 0o7777, status.st_uid) == (0o600, os.geteuid())
    assert [path.name for path in (tmp_path / "device-plugins").rglob("*.sock")] == []


async def test_a_kubelet_that_rejects_the_plugin_is_asked_less_often(tmp_path: Path) -> None:
    async with served(tmp_path) as running:
        running.manager.reject = "the ResourceName\nis invalid"
        await running.manager.start()
        hour = 360
        for _ in range(hour):
            await until(lambda: running.clock._sleepers)
            running.clock.advance(PERIOD)
        assert len(running.manager.registrations) <= hour + 12
        [line] = running.conditions()
        assert "the kubelet has not registered numawarden.dev/exclusive" in line
        assert "the ResourceName is invalid" in line
        asked = len(running.manager.registrations)
        running.clock.advance(PERIOD)
        await until(lambda: len(running.manager.registrations) > asked)
        running.manager.reject = None
        await running.clock.passing(PERIOD, until(lambda: running.plugin.is_registered))
        assert running.conditions() == []


async def test_a_kubelet_that_never_answers_does_not_keep_the_next_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.kubelet.exclusive_plugin._REGISTER_SECONDS", 10_000.0)
    async with served(tmp_path) as running:
        running.manager.hang = True
        await running.manager.start()
        await until(lambda: running.manager.registrations)
        running.manager.socket.unlink()
        after = FakeDeviceManager(running.plugins)
        await after.start()
        await after.until_listed(RESOURCE)
        await after.stop()


async def test_a_registration_that_is_not_answered_is_made_again_after_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.kubelet.exclusive_plugin._REGISTER_SECONDS", 0.2)
    async with served(tmp_path) as running:
        running.manager.hang = True
        await running.manager.start()
        await running.clock.passing(PERIOD, until(running.conditions))
        [line] = running.conditions()
        assert "DEADLINE_EXCEEDED" in line
        assert len(running.manager.registrations) > 1


async def test_a_list_that_is_no_longer_watched_is_registered_again(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        endpoint = running.manager.endpoints[RESOURCE]
        assert endpoint.watching is not None
        endpoint.watching.cancel()
        await until(lambda: not running.plugin.is_registered)
        again = until(lambda: len(running.manager.registrations) > 1)
        await running.clock.passing(PERIOD, again)
        await running.registered()


async def test_an_answer_gives_nothing_or_words_and_is_counted(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        rejection = "TopologyAffinityError: cpu: 2 asked, free 0:1 1:1"
        for words in ("", rejection, None, ""):
            running.decisions.words = words
            if words:
                with pytest.raises(CallError) as caught:
                    await running.manager.allocate(RESOURCE, "slot-0")
                assert (caught.value.code, caught.value.message) == ("FAILED_PRECONDITION", words)
            else:
                [response] = (await running.manager.allocate(RESOURCE, "s")).container_responses
                assert response.ByteSize() == 0
        running.decisions.error = RuntimeError("broken")
        with capture_logs() as logs:
            assert (await running.manager.allocate(RESOURCE, "slot-0")).container_responses
        [line] = [each for each in logs if each["event"] == "opt-in decision failed"]
        assert line["error"] == "RuntimeError"
        assert running.counted == ["admitted", "rejected", "undecided", "admitted", "undecided"]
        assert running.decisions.asked == 5


@pytest.mark.parametrize("words", ["x" * 100_000, "a\nb\x00\x1b[31m", "\u202e" * 3000, "ü" * 5000])
async def test_whatever_the_words_are_they_fit_into_a_status(tmp_path: Path, words: str) -> None:
    async with registered(tmp_path) as running:
        running.decisions.words = words
        with pytest.raises(CallError) as caught:
            await running.manager.allocate(RESOURCE, "slot-0")
        assert caught.value.code == "FAILED_PRECONDITION"
        assert caught.value.message.isprintable()
        assert len(caught.value.message) <= 800


async def test_several_containers_in_one_request_get_an_answer_each(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        request = V1BETA1["AllocateRequest"](
            container_requests=[{"devices_ids": ["slot-0"]}, {}, {"devices_ids": ["slot-1"]}]
        )
        answer = await running.plugin.allocate(request.SerializeToString())
        assert len(answer.container_responses) == 3


async def test_without_a_decision_in_time_the_pod_passes(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        running.decisions.hangs = True
        with capture_logs() as logs:
            answering = asyncio.create_task(running.manager.allocate(RESOURCE, "slot-0"))
            await until(lambda: running.decisions.asked)
            assert running.decisions.deadlines == [running.clock.now + DECIDING_SECONDS]
            running.clock.advance(DECIDING_SECONDS)
            assert (await answering).container_responses
        assert running.decisions.cancelled == 1
        assert [each["event"] for each in logs] == ["opt-in pod not decided"]
        assert running.counted == ["undecided"]
    assert DECIDING_SECONDS < 1


async def test_decisions_at_a_time_are_bounded_and_the_rest_passes_at_once(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        running.decisions.hangs = True
        first = [
            asyncio.create_task(running.manager.allocate(RESOURCE, f"slot-{n}")) for n in range(4)
        ]
        await until(lambda: running.decisions.asked == 4)
        assert (await running.manager.allocate(RESOURCE, "slot-9")).container_responses
        assert running.decisions.asked == 4
        running.clock.advance(DECIDING_SECONDS)
        await asyncio.gather(*first)
        running.decisions.hangs = False
        await running.manager.allocate(RESOURCE, "slot-0")
        assert running.decisions.asked == 5


async def test_a_kubelet_that_dies_within_a_call_ends_the_decision(tmp_path: Path) -> None:
    async with registered(tmp_path) as running:
        running.decisions.hangs = True
        call = asyncio.create_task(running.manager.allocate(RESOURCE, "slot-0"))
        await until(lambda: running.decisions.asked)
        await running.manager.crash()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: running.decisions.cancelled)


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\xff", b"\x0a\x02\x0a\x05", b"\xdd" * 64])
async def test_the_plugin_goes_on_after_garbage(tmp_path: Path, raw: bytes) -> None:
    class Garbage:
        def SerializeToString(self) -> bytes:  # noqa: N802  # as protobuf's messages
            return raw

    async with registered(tmp_path) as running:
        client = Client(running.plugins / "numawarden.sock", DEVICE_PLUGIN)
        with suppress(CallError):
            await client.call("Allocate", Garbage(), V1BETA1["AllocateResponse"], 30.0)
        with suppress(CallError):
            await client.call("Nothing", Garbage(), V1BETA1["Empty"], 30.0)
        await client.close()
        assert (await running.manager.allocate(RESOURCE, "slot-0")).container_responses

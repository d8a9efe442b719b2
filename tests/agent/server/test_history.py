"""Events: what watchers hear, and the history: what happened, who asked for it, who wrote what."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest
from msgspec import convert
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.api.client import AgentError
from agent.api.documents.admissions import BindRequest
from agent.api.documents.history import EventDocument
from agent.api.documents.verification import DriftDocument
from agent.config.agent import HistoryConfig
from agent.managers.policy import TopologyManagerPolicy
from agent.managers.registry import MANAGERS
from agent.server import metrics as names
from agent.server.counters import Counters
from agent.server.events import QUEUE_LENGTH, Events
from agent.server.history_recorder import LONGEST_MESSAGE, HistoryRecorder
from agent.state.history import HISTORY_NAME, HistoryBounds, HistoryQuery, HistoryStore
from cgroupfs.state import Writer
from sysfs.mask import Mask
from tests.agent.server.support import (
    OTHER_UID,
    PATIENCE,
    UID,
    FakeClock,
    in_loop,
    manifest,
    running,
    two_packages,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.api.documents.history import HistoryDocument, HistoryEntry
    from tests.agent.server.support import Running, World


POD = f"kubepods/pod{UID}"


async def history(agent: Running, **query: object) -> tuple[HistoryEntry, ...]:
    """Return the latest entries, the latest first."""
    asked = {"limit": 1000, **query}
    return (await asyncio.to_thread(agent.client.history, **asked)).entries  # type: ignore[arg-type]  # a query


def of_type(entries: tuple[HistoryEntry, ...], kind: str) -> HistoryEntry:
    (found,) = (entry for entry in entries if entry.type == kind)
    return found


@in_loop
async def test_every_change_is_in_the_history_with_who_asked(world: World) -> None:
    world.kernel.mkdir("jobs")
    world.kernel.mkdir("jobs/batch.scope")
    file = world.manifest_directory() / "file.yaml"
    async with running(world) as agent:
        client = agent.client
        await agent.ask(client.admit, manifest())
        await agent.ask(client.admit, manifest("big", OTHER_UID, cpu="64"))
        with pytest.raises(AgentError):
            await agent.ask(client.admit, b"kind: Pod")
        await agent.ask(client.bind, UID, "c0", BindRequest(cgroup="/jobs/batch.scope"))
        await agent.ask(client.unbind, UID, "c0")
        await agent.ask(client.remove, UID)
        file.write_bytes(manifest())
        await agent.sync_manifests()
        file.unlink()
        await agent.sync_manifests()
        entries = await history(agent)
    *changes, added, removed = [entry for entry in entries[::-1] if entry.requester is not None]
    assert [entry.type for entry in changes] == [
        "PodAdmitted",
        "PodRejected",
        "PodInvalid",
        "ContainerBound",
        "ContainerUnbound",
        "PodRemoved",
    ]
    assert {entry.requester.pid for entry in changes if entry.requester} == {os.getpid()}
    assert len({entry.operation for entry in changes}) == len(changes)
    for entry, kind in ((added, "PodAdmitted"), (removed, "PodRemoved")):
        assert entry.requester is not None
        found = (entry.type, entry.requester.source, entry.requester.pid, entry.requester.command)
        assert found == (kind, str(file), None, "")


@in_loop
async def test_a_difference_is_kept_in_full_with_its_writer(world: World) -> None:
    asked: list[tuple[str, str]] = []

    def writer_of(cgroup: str, file: str) -> Writer:
        asked.append((cgroup, file))
        return Writer(4711, "sh", 1000, "/user.slice/s.scope")

    world.writer_of = writer_of
    async with running(world) as agent:
        asked.clear()  # the limits of kubepods were new
        await agent.ask(agent.client.admit, manifest())
        world.kernel.write(POD, "cpuset.cpus", "5-6")
        await agent.ask(agent.client.reconcile)
        entry = of_type(await history(agent, pod="web"), "DriftFound")
        status = await asyncio.to_thread(agent.client.status)
        # The writer of an effective set is not asked for.
        world.kernel.set_online(two_packages().online - Mask.of(1))
        await agent.ask(agent.client.reconcile)
        latest = next(each for each in await history(agent) if each.type == "DriftFound")
    (found,) = entry.differences
    assert entry.pod == "shop/web"
    assert (found.cgroup, found.file) == (f"/{POD}", "cpuset.cpus")
    assert (found.observed, found.desired, found.cause) == ("5-6", "1,9", "unknown")
    assert found.repaired
    assert found.writer is not None
    assert (found.writer.pid, found.writer.command, found.writer.uid) == (4711, "sh", 1000)
    assert found.writer.cgroup == "/user.slice/s.scope"
    assert status.drift == entry.differences
    assert "written by sh[4711], uid 1000, in /user.slice/s.scope" in found.line()
    assert [each.file for each in latest.differences] == ["cpuset.cpus.effective"]
    assert asked == [(POD, "cpuset.cpus")]


@in_loop
async def test_starts_stops_and_what_changed_between_them_are_kept(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
    policy = TopologyManagerPolicy.RESTRICTED
    world.config = replace(world.config, topology_manager_policy=policy)
    async with running(world) as agent:
        entries = await history(agent)
    assert [entry.type for entry in entries] == [
        "ConfigurationChanged",
        "AgentStarted",
        "AgentStopped",
        "PodAdmitted",
        "AgentStarted",
    ]
    assert "restricted" in entries[0].message
    assert str(os.getpid()) in entries[1].message


@in_loop
async def test_a_disk_that_cannot_be_written_keeps_no_pod_waiting(world: World) -> None:
    path = world.config.agent.state_directory / HISTORY_NAME
    path.mkdir()
    async with running(world) as agent:
        assert (await asyncio.to_thread(agent.client.admit, manifest())).admitted
        with pytest.raises(AgentError, match="history cannot be read"):
            await history(agent)
        status = await asyncio.to_thread(agent.client.status)
        assert [each.type for each in status.conditions] == ["HistoryRecorded"]
        assert status.ready
        path.rmdir()
        await agent.ask(agent.client.reconcile)
        assert [entry.type for entry in await history(agent)] == ["EventsLost"]
        assert (await asyncio.to_thread(agent.client.status)).conditions == ()
        assert agent.controller.metrics.counters.value(names.HISTORY_LOST, "disk") == 2


@in_loop
async def test_no_history_is_kept_where_none_is_configured(world: World) -> None:
    config = replace(world.config.agent, history=HistoryConfig(max_bytes=0))
    world.config = replace(world.config, agent=config)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        with pytest.raises(AgentError, match="maxBytes is 0") as caught:
            await history(agent)
    assert caught.value.status == 404
    assert not (world.config.agent.state_directory / HISTORY_NAME).exists()


@in_loop
async def test_a_query_finds_one_pod_by_each_of_its_names_and_since_a_time(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        world.clock.now += 50
        await agent.ask(agent.client.admit, manifest("other", OTHER_UID))
        await agent.ask(agent.client.remove, UID)
        since = world.clock.time() - 1
        for query in ({"pod": UID}, {"pod": "web"}, {"pod": "shop/web"}, {"since": since}):
            found = [entry.type for entry in await history(agent, **query)]
            assert found == ["PodRemoved", "PodAdmitted"]
        first = await asyncio.to_thread(agent.client.history, limit=2)
        assert [entry.type for entry in first.entries] == ["PodRemoved", "PodAdmitted"]
        assert first.more
        for text in ("limit=0", "limit=1001", "limit=x", "since=-1", "since=1e3"):
            with pytest.raises(AgentError) as caught:
                await agent.ask(agent.client._request, "GET", f"/v1/history?{text}", None)
            assert caught.value.status == 400
            assert caught.value.error.details[0].path == text.partition("=")[0]


ALL = HistoryQuery(1000)


def event(number: int, message: str = "") -> EventDocument:
    return EventDocument(type=str(number), time=FakeClock().time(), operation="x", message=message)


class _Disk(HistoryStore):
    """A disk that hangs while `free` is not set, and fails with `error`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, HistoryBounds(1 << 20, 1e6), lambda: None)
        self.free, self.begun = threading.Event(), threading.Event()
        self.free.set()
        self.error: Exception | None = None

    def append(self, entries: Iterable[HistoryEntry], now: float) -> None:
        self.begun.set()
        assert self.free.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        super().append(entries, now)


@pytest.fixture
def disk(tmp_path: Path) -> _Disk:
    return _Disk(tmp_path)


@pytest.fixture
def recorder(disk: _Disk) -> Iterator[HistoryRecorder]:
    made = HistoryRecorder(disk, FakeClock(), Counters(MANAGERS), most_queued=3)
    yield made
    disk.free.set()
    made.close()


def lost(recorder: HistoryRecorder, reason: str) -> int:
    return recorder._counters.value(names.HISTORY_LOST, reason)


def types(found: HistoryDocument) -> list[str]:
    return [entry.type for entry in found.entries]


@in_loop
async def test_entries_noted_while_the_disk_hangs_wait_or_are_counted(
    disk: _Disk, recorder: HistoryRecorder
) -> None:
    disk.free.clear()
    recorder.note(event(0), None)
    assert disk.begun.wait(PATIENCE)
    for number in range(1, 6):
        recorder.note(event(number), None)
    assert lost(recorder, "queue") == 2
    disk.free.set()
    assert types(await recorder.latest(ALL)) == ["3", "2", "1", "0"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (RuntimeError("a defect"), "internal error"),
    ],
)
@in_loop
async def test_a_disk_that_fails_is_a_condition_until_it_works_again(
    disk: _Disk, recorder: HistoryRecorder, error: Exception, said: str
) -> None:
    disk.error = error
    with capture_logs() as log:
        for _ in range(2):
            recorder.note(event(0), None)
            await recorder.latest(ALL)
        (condition,) = recorder.conditions
        assert said in condition
        assert lost(recorder, "disk") == 2
        recorder.try_again()
        await recorder.latest(ALL)
        assert list(recorder.conditions) == [condition]
        disk.error = None
        recorder.try_again()
        (entry,) = (await recorder.latest(ALL)).entries
        assert (entry.type, entry.message[:9]) == ("EventsLost", "2 entries")
        assert recorder.conditions == ()
        recorder.try_again()
        recorder.note(event(1), None)
        assert types(await recorder.latest(ALL)) == ["1", "EventsLost"]
    assert lost(recorder, "disk") == 2
    if isinstance(error, OSError):
        assert [line["event"] for line in log] == ["history not written", "history written again"]


@in_loop
async def test_what_waits_is_written_at_the_end_and_nothing_after_it(
    tmp_path: Path, disk: _Disk, recorder: HistoryRecorder
) -> None:
    disk.free.clear()
    recorder.note(event(0), None)
    assert disk.begun.wait(PATIENCE)
    recorder.note(event(1), None)
    disk.free.set()
    recorder.close()
    recorder.note(event(2), None)
    assert lost(recorder, "queue") == 1
    assert types(_Disk(tmp_path).latest(ALL, 0.0)) == ["1", "0"]


@in_loop
async def test_entries_are_short_however_long_their_texts_are(recorder: HistoryRecorder) -> None:
    cpus = ",".join(map(str, range(0, 8192, 2)))
    named = {"uid": "", "pod": "", "container": None, "cgroup": "/x", "file": "cpuset.cpus"}
    texts = {"observed": cpus, "desired": cpus, "cause": "unknown", "detail": cpus}
    difference = convert({"time": 0.0, **named, **texts}, DriftDocument)
    recorder.note(event(0, "x" * 100_000), None)
    recorder.note(event(1, "y" * 100_000), None, (difference,) * 16)
    drift, plain = (await recorder.latest(ALL)).entries
    assert len(plain.message) == LONGEST_MESSAGE
    assert drift.message == ""
    assert len(drift.differences) == 16
    assert all(len(each.desired) < 1000 for each in drift.differences)


@in_loop
async def test_a_line_that_a_crash_cut_off_is_counted(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"type":"PodAdm')
    recorder = HistoryRecorder(_Disk(tmp_path), FakeClock(), Counters(MANAGERS))
    recorder.note(event(0), None)
    assert types(await recorder.latest(ALL)) == ["0"]
    assert lost(recorder, "torn") == 1
    recorder.close()


def events(dropped: list[int], length: int = QUEUE_LENGTH) -> Events:
    return Events(lambda: dropped.append(1), FakeClock(), length=length)


@in_loop
async def test_every_watcher_gets_every_event_in_order_until_the_end() -> None:
    dropped: list[int] = []
    hub = events(dropped, length=3)
    with hub.watch():
        pass  # it is forgotten
    with hub.watch() as first, hub.watch() as second:
        for number in range(3):
            hub.publish("PodAdmitted", str(number))
        hub.close()
        for watcher in (first, second):
            assert [seen.uid async for seen in watcher] == ["0", "1", "2"]
    with hub.watch() as late:
        assert [seen async for seen in late] == []
    hub.publish("PodAdmitted")
    assert dropped == []


@in_loop
async def test_a_slow_reader_loses_events_learns_so_and_they_are_counted() -> None:
    dropped: list[int] = []
    hub = events(dropped, length=2)
    with hub.watch() as watcher:
        for number in range(5):
            hub.publish("PodAdmitted", str(number))
        reading = aiter(watcher)
        assert [(await anext(reading)).uid for _ in range(2)] == ["0", "1"]
        hub.publish("PodAdmitted", "5")
        hub.close()
        rest = [seen async for seen in reading]
    assert [seen.type for seen in rest] == ["EventsLost", "PodAdmitted"]
    assert "3 events were lost" in rest[0].message
    assert len(dropped) == 3

"""Recording never waits, and what is lost is counted."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.api.documents import DriftDocument, EventDocument
from agent.managers.registry import MANAGERS
from agent.server import metrics as names
from agent.server.events import LONGEST_MESSAGE, HistoryRecorder
from agent.server.metrics import Counters
from agent.state.history import HistoryBounds, HistoryQuery, HistoryStore
from tests.agent.server.support import PATIENCE, FakeClock, in_loop

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.api.documents import HistoryDocument, HistoryEntry

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


@in_loop
async def test_a_query_sees_everything_that_was_noted_before(recorder: HistoryRecorder) -> None:
    for number in range(3):
        recorder.note(event(number), None)
        assert types(await recorder.latest(ALL))[0] == str(number)


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
        disk.error = None
        recorder.note(event(1), None)
        assert types(await recorder.latest(ALL)) == ["1"]
    assert recorder.conditions == ()
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
    difference = DriftDocument(
        time=0.0,
        uid="",
        pod="",
        container=None,
        cgroup="/x",
        file="cpuset.cpus",
        observed=cpus,
        desired=cpus,
        cause="unknown",
        detail=cpus,
    )
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

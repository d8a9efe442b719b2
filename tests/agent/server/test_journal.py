from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from agent.server import log_output as logs
from agent.server.log_output import FIELDS, JournalHandler
from agent.server.operations import operation
from systemd.journal import Journal, encoded
from tests.agent.server.test_log import configuring
from tests.fakes.journal import FakeJournal, fake_journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[io.StringIO]:
    """Log to the journal at `tmp_path / "socket"`; the stream is where lines go without one."""
    journal, fallback = Journal(tmp_path / "socket"), io.StringIO()
    with configuring():
        logs.configure("json", "debug", fallback, journal)
        yield fallback
        journal.close()


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[FakeJournal]:
    with fake_journal(tmp_path / "socket") as received:
        yield received


log = structlog.get_logger("agent.x")


def test_a_line_is_an_entry_with_priority_and_fields(
    stream: io.StringIO, journald: FakeJournal
) -> None:
    with operation("admit", uid="u-1", pod="shop/web") as identity:
        log.warning("pod rejected", cpus="1-2")
    (entry,) = journald.entries()
    assert json.loads(entry.pop("MESSAGE"))["cpus"] == "1-2"
    assert entry == {
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "numawarden",
        "EVENT": "pod rejected",
        "OPERATION": identity,
        "ACTION": "admit",
        "POD": "shop/web",
        "POD_UID": "u-1",
        "LOGGER": "agent.x",
    }
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("stream")
def test_levels_are_the_priorities_of_syslog_also_of_libraries(journald: FakeJournal) -> None:
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(log, level)("said")
    logging.getLogger("asyncio").error("Error %s", "handling")
    *own, other = journald.entries()
    assert [entry["PRIORITY"] for entry in own] == ["7", "6", "4", "3", "2"]
    found = (other["EVENT"], other["LOGGER"], other["PRIORITY"])
    assert found == ("Error handling", "asyncio", "3")


@pytest.mark.usefixtures("stream")
def test_no_value_can_forge_a_field(journald: FakeJournal) -> None:
    log.info("bound", uid="u\nPRIORITY=0\nMESSAGE=all is well", container="c\nX=1")
    (entry,) = journald.entries()
    assert entry["POD_UID"] == "u\nPRIORITY=0\nMESSAGE=all is well"
    assert (entry["PRIORITY"], entry["CONTAINER"]) == ("6", "c\nX=1")
    assert "X" not in entry


@pytest.mark.usefixtures("stream")
def test_a_long_line_arrives_whole(journald: FakeJournal) -> None:
    log.info("long", what="x" * (4 << 20))
    (entry,) = journald.entries()
    assert len(json.loads(entry["MESSAGE"])["what"]) == 4 << 20


def test_without_a_journal_lines_go_to_standard_error(stream: io.StringIO, tmp_path: Path) -> None:
    log.info("one")
    with fake_journal(tmp_path / "socket") as journald:
        log.info("two")
        assert [entry["EVENT"] for entry in journald.entries()] == ["two"]
    log.info("three")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "one", "three",
    ]  # fmt: skip


def test_lines_that_a_full_journal_does_not_take_are_counted(
    stream: io.StringIO, journald: FakeJournal
) -> None:
    written = 2000
    for number in range(written):
        log.info("line", number=number)
    arrived = len(journald.entries())
    assert 0 < arrived < written, "the queue of the socket is longer than this test expects"
    log.info("again")
    log.info("and again")
    again, after = journald.entries()
    assert again["LINES_LOST"] == str(written - arrived)
    assert "LINES_LOST" not in after
    assert stream.getvalue() == ""


def test_an_error_of_the_handler_does_not_reach_what_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[logging.LogRecord] = []
    journal = Journal(tmp_path / "socket")
    handler = JournalHandler(journal, logging.NullHandler())
    monkeypatch.setattr(handler, "handleError", failed.append)
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%d", ("no number",), None)
    handler.emit(record)
    journal.close()
    assert failed == [record]


def test_every_name_of_a_field_is_one_that_the_journal_keeps() -> None:
    assert encoded(dict.fromkeys(FIELDS.values(), "x"))

from __future__ import annotations

import io
import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog.testing import capture_logs

from agent.server import log_output as logs
from agent.server.log import COUNTING_SECONDS, LimitedLog
from agent.server.operations import current_operation, operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def configuring() -> Iterator[None]:
    """Configure the log as a test likes until the block ends."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configured = structlog.get_config()
    yield
    root.handlers, root.level = handlers, level
    for name in logs.OURS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.configure(**configured)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    with configuring():
        yield io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_line_is_a_json_object_with_time_level_and_origin(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    structlog.get_logger("agent.x").info("pod admitted", cpus="1-2")
    (line,) = lines(stream)
    assert line["message"] == "pod admitted"
    assert (line["level"], line["logger"], line["cpus"]) == ("info", "agent.x", "1-2")
    assert str(line["timestamp"]).endswith("Z")


def test_a_list_is_logged_with_its_first_items_and_the_number_of_the_others(
    stream: io.StringIO,
) -> None:
    logs.configure("json", "info", stream)
    cgroups = tuple(f"kubepods/pod{number}" for number in range(12_500))
    structlog.get_logger("agent.x").info("settings applied", cgroups=cgroups, pods=["a"])
    (line,) = lines(stream)
    assert (line["cgroups"], line["cgroups_left_out"]) == (list(cgroups[:64]), 12_436)
    assert line["pods"] == ["a"]
    assert "pods_left_out" not in line


def test_all_lines_of_an_operation_carry_its_id(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    log = structlog.get_logger("agent.x")
    with operation("admit", uid="u") as first:
        log.info("one")
        log.info("two")
        assert current_operation() == first
    with operation("remove") as second:
        log.info("three")
    log.info("four")
    assert [line.get("operation") for line in lines(stream)] == [first, first, second, None]
    assert [line.get("uid") for line in lines(stream)] == ["u", "u", None, None]
    assert first != second
    assert current_operation() == ""


def test_libraries_write_the_same_lines_but_only_when_something_is_wrong(
    stream: io.StringIO,
) -> None:
    logs.configure("json", "debug", stream)
    logging.getLogger("pyroute2.netlink").debug("noise")
    logging.getLogger("asyncio").error("Error %s", "handling")
    logs.configure("json", "warning", stream)
    structlog.get_logger("agent.x").info("below the level")
    (line,) = lines(stream)
    assert (line["message"], line["logger"]) == ("Error handling", "asyncio")


def test_an_exception_stays_within_its_line(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    try:
        int("boom")
    except ValueError:
        structlog.get_logger("agent.x").exception("failed")
    (line,) = lines(stream)
    assert "ValueError: invalid literal" in str(line["exception"])


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_what_others_chose_cannot_begin_a_line_or_speak_to_a_terminal(
    stream: io.StringIO, log_format: str
) -> None:
    logs.configure(log_format, "info", stream)
    evil = "a\n2026-01-01 pod admitted\r\x1b[2J\u2028\x85b"
    structlog.get_logger("agent.x").info("ready", path=evil, pods=3)
    logging.getLogger("agent.y").warning("said %s", evil)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert "ready" in lines[0]
    assert ("pods=3" in lines[0]) is (log_format == "console")


class Later:
    """Remembers what is to be called, and when it was asked to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.seconds: set[float] = set()

    def __call__(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        self.seconds.add(seconds)
        self.waiting.append(lambda: call(*arguments))

    def pass_time(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


def test_the_first_line_of_a_kind_is_written_at_once_and_others_are_counted() -> None:
    later = Later()
    with capture_logs() as said:
        lines = LimitedLog(structlog.get_logger(), later)
        for number in range(1000):
            lines.warning("odd peer", why=number)
            lines.error("odd peer")
        assert [(line["log_level"], line.get("why")) for line in said] == [
            ("warning", 0),
            ("error", None),
        ]
        later.pass_time()
    assert [(line["log_level"], line["more"], line.get("why")) for line in said[2:]] == [
        ("warning", 999, 999),
        ("error", 999, None),
    ]
    assert later.seconds == {COUNTING_SECONDS}


def test_after_a_quiet_time_a_line_is_written_at_once_again_and_no_count_is_lost_at_the_end() -> (
    None
):
    later = Later()
    with capture_logs() as said:
        lines = LimitedLog(structlog.get_logger(), later)
        for _ in range(2):
            lines.warning("odd peer")
        later.pass_time()  # writes the count
        later.pass_time()  # found nothing more
        assert not later.waiting
        for _ in range(3):
            lines.warning("odd peer")
        lines.flush()
    assert [line.get("more") for line in said] == [None, 1, None, 2]

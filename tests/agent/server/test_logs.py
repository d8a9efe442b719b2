from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from agent.server import log as logs
from agent.server.events import current_operation, operation

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configured = structlog.get_config()
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    for name in logs.OURS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.configure(**configured)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_line_is_a_json_object_with_time_level_and_origin(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    structlog.get_logger("agent.x").info("pod admitted", cpus="1-2")
    (line,) = lines(stream)
    assert line["message"] == "pod admitted"
    assert (line["level"], line["logger"], line["cpus"]) == ("info", "agent.x", "1-2")
    assert str(line["timestamp"]).endswith("Z")


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
    (line,) = lines(stream)
    assert (line["message"], line["logger"]) == ("Error handling", "asyncio")


def test_what_is_below_the_level_is_not_written(stream: io.StringIO) -> None:
    logs.configure("json", "warning", stream)
    log = structlog.get_logger("agent.x")
    log.info("no")
    log.warning("yes")
    assert [line["message"] for line in lines(stream)] == ["yes"]


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
    structlog.get_logger("agent.x").info("ready", path=evil)
    logging.getLogger("agent.y").warning("said %s", evil)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_the_console_is_for_people(stream: io.StringIO) -> None:
    logs.configure("console", "info", stream)
    structlog.get_logger("agent.x").info("ready", pods=3)
    text = stream.getvalue()
    assert "ready" in text
    assert "pods=3" in text
    assert "\x1b[" not in text

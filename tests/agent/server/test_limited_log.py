from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from structlog.testing import capture_logs

from agent.server.protocol import COUNTING_SECONDS, LimitedLog

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_after_a_quiet_time_a_line_is_written_at_once_again() -> None:
    later = Later()
    with capture_logs() as said:
        lines = LimitedLog(structlog.get_logger(), later)
        for _ in range(2):
            lines.warning("odd peer")
        later.pass_time()  # writes the count
        later.pass_time()  # found nothing more
        assert not later.waiting
        lines.warning("odd peer")
    assert [line.get("more") for line in said] == [None, 1, None]


def test_what_was_counted_is_not_lost_at_the_end() -> None:
    with capture_logs() as said:
        lines = LimitedLog(structlog.get_logger(), Later())
        for _ in range(3):
            lines.warning("odd peer")
        lines.flush()
    assert [line.get("more") for line in said] == [None, 2]

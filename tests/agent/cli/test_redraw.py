from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from agent.api.client import Unreachable
from agent.api.documents import EventDocument
from agent.cli.common import changes
from tests.agent.server.support import PATIENCE, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from agent.server.events import Watcher
    from tests.agent.server.support import Running

EVENT = EventDocument(type="PodAdmitted", time=0.0, operation="x")


def test_an_event_of_the_agent_is_a_change(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, loop = agent.controller.events.watch, agent.life.get_loop()

    def admitting() -> AbstractContextManager[Watcher]:
        """Admit a pod as soon as the agent streams its events."""
        loop.call_soon(lambda: loop.run_in_executor(None, agent.client.admit, manifest()))
        return watch()

    monkeypatch.setattr(agent.controller.events, "watch", admitting)
    assert next(changes(agent.client.watch(), PATIENCE)) is None
    assert UID in {pod.uid for pod in agent.client.pods()}


def fed(feed: SimpleQueue[EventDocument | None]) -> Iterator[EventDocument]:
    while (event := feed.get()) is not None:
        yield event


def test_changes_follow_the_events_and_end_with_them() -> None:
    feed: SimpleQueue[EventDocument | None] = SimpleQueue()
    seen = changes(fed(feed), PATIENCE)
    feed.put(EVENT)
    assert next(seen) is None
    feed.put(None)
    assert list(seen) == []


def test_events_that_wait_are_one_change() -> None:
    assert len(list(changes([EVENT] * 500, PATIENCE))) < 500


def test_all_is_drawn_again_after_some_time_without_an_event() -> None:
    feed: SimpleQueue[EventDocument | None] = SimpleQueue()
    seen = changes(fed(feed), 0.0)
    assert (next(seen), next(seen)) == (None, None)
    feed.put(None)


def test_an_agent_that_went_away_is_an_error() -> None:
    class Ended:
        def __iter__(self) -> Iterator[EventDocument]:
            raise Unreachable("/run/x", "it closed the connection")

    with pytest.raises(Unreachable):
        next(changes(Ended(), PATIENCE))

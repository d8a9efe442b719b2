from __future__ import annotations

from agent.api.documents import EventDocument
from agent.server.reporting.events import EventHub
from tests.agent.server.support import in_loop


def event(number: int) -> EventDocument:
    return EventDocument(type="PodAdmitted", time=float(number), operation=str(number))


@in_loop
async def test_every_watcher_gets_every_event_in_order() -> None:
    hub = EventHub(lambda: None)
    with hub.watch() as first, hub.watch() as second:
        for number in range(3):
            hub.publish(event(number))
        hub.close()
        assert [seen.operation async for seen in first] == ["0", "1", "2"]
        assert [seen.operation async for seen in second] == ["0", "1", "2"]


@in_loop
async def test_a_slow_reader_loses_events_learns_so_and_they_are_counted() -> None:
    dropped: list[int] = []
    hub = EventHub(lambda: dropped.append(1), length=2)
    with hub.watch() as watcher:
        for number in range(5):
            hub.publish(event(number))
        reading = aiter(watcher)
        assert [(await anext(reading)).operation for _ in range(2)] == ["0", "1"]
        hub.publish(event(5))
        hub.close()
        rest = [seen async for seen in reading]
    assert [seen.type for seen in rest] == ["EventsLost", "PodAdmitted"]
    assert "3 events were lost" in rest[0].message
    assert len(dropped) == 3


@in_loop
async def test_who_no_longer_watches_is_forgotten() -> None:
    dropped: list[int] = []
    hub = EventHub(lambda: dropped.append(1), length=1)
    with hub.watch():
        pass
    hub.publish(event(0))
    hub.publish(event(1))
    assert not dropped


@in_loop
async def test_who_begins_to_watch_after_the_end_reads_nothing() -> None:
    hub = EventHub(lambda: None)
    hub.close()
    with hub.watch() as watcher:
        assert [seen async for seen in watcher] == []

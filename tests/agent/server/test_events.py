from __future__ import annotations

from agent.server.events import QUEUE_LENGTH, Events
from tests.agent.server.support import FakeClock, in_loop


def events(dropped: list[int], length: int = QUEUE_LENGTH) -> Events:
    return Events(lambda: dropped.append(1), FakeClock(), length=length)


@in_loop
async def test_every_watcher_gets_every_event_in_order() -> None:
    hub = events([])
    with hub.watch() as first, hub.watch() as second:
        for number in range(3):
            hub.publish("PodAdmitted", str(number))
        hub.close()
        assert [seen.uid async for seen in first] == ["0", "1", "2"]
        assert [seen.uid async for seen in second] == ["0", "1", "2"]


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


@in_loop
async def test_who_no_longer_watches_is_forgotten() -> None:
    dropped: list[int] = []
    hub = events(dropped, length=1)
    with hub.watch():
        pass
    hub.publish("PodAdmitted")
    hub.publish("PodAdmitted")
    assert not dropped


@in_loop
async def test_who_begins_to_watch_after_the_end_reads_nothing() -> None:
    hub = events([])
    hub.close()
    with hub.watch() as watcher:
        assert [seen async for seen in watcher] == []

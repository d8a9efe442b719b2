"""A pod's Event says why it was rejected, once, and counts what repeats."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.cluster.kubernetes.pod_events import LONGEST_MESSAGE, MOST_PODS, POD_SECONDS, PodEvents
from agent.cluster.kubernetes.request_errors import Outcome
from agent.pods.model import PodIdentity
from tests.fakes.api_server import Failure

if TYPE_CHECKING:
    from agent.cluster.kubernetes.api_server import ApiServer
    from tests.fakes.api_server import FakeApiServer

WEB = PodIdentity("u-1", "web", "shop")
OTHER = PodIdentity("u-2", "other", "shop")
REASON = "TopologyAffinityError"
TIME = 1_700_000_000.0


@pytest.fixture
def events(server: ApiServer) -> PodEvents:
    return PodEvents(server, "worker-1")


async def send_all(events: PodEvents, now: float) -> list[Outcome]:
    outcomes = []
    while events.due(now):
        outcomes.append(await events.send(now))
    return outcomes


async def test_an_event_names_pod_reason_and_words(fake: FakeApiServer, events: PodEvents) -> None:
    events.note(WEB, REASON, "cpu: 2 asked, 1 free", TIME)
    assert await send_all(events, 0.0) == [Outcome.DONE]
    ((namespace, name), event) = fake.events.popitem()
    assert namespace == "shop"
    assert name.startswith("web.")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "shop"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "shop",
            "name": "web",
            "uid": "u-1",
        },
        "reason": REASON,
        "message": "cpu: 2 asked, 1 free",
        "type": "Warning",
        "count": 1,
        "firstTimestamp": "2023-11-14T22:13:20Z",
        "lastTimestamp": "2023-11-14T22:13:20Z",
        "source": {"component": "numawarden", "host": "worker-1"},
        "reportingComponent": "numawarden",
        "reportingInstance": "worker-1",
    }


async def test_what_repeats_is_counted_once_a_minute(
    fake: FakeApiServer, events: PodEvents
) -> None:
    for number in range(5):
        events.note(WEB, REASON, "no room", TIME + number)
        await send_all(events, float(number))
    assert [request.method for request in fake.requests] == ["POST"]
    await send_all(events, POD_SECONDS)
    assert [request.method for request in fake.requests] == ["POST", "PATCH"]
    (event,) = fake.events.values()
    assert (event["count"], event["lastTimestamp"]) == (5, "2023-11-14T22:13:24Z")
    assert not events.due(1e6)


async def test_another_message_is_another_event(fake: FakeApiServer, events: PodEvents) -> None:
    for message in ("first", "second", "third"):
        events.note(WEB, REASON, message, TIME)
        await send_all(events, 0.0)
    await send_all(events, POD_SECONDS)
    assert [event["message"] for event in fake.events.values()] == ["first", "third"]


async def test_pods_do_not_wait_for_each_other(fake: FakeApiServer, events: PodEvents) -> None:
    events.note(WEB, REASON, "no room", TIME)
    events.note(OTHER, REASON, "no room", TIME)
    assert await send_all(events, 0.0) == [Outcome.DONE, Outcome.DONE]
    assert len(fake.events) == 2


async def test_a_forgotten_event_is_made_again(fake: FakeApiServer, events: PodEvents) -> None:
    events.note(WEB, REASON, "no room", TIME)
    await send_all(events, 0.0)
    fake.events.clear()
    events.note(WEB, REASON, "no room", TIME)
    assert await send_all(events, POD_SECONDS) == [Outcome.NOT_FOUND, Outcome.DONE]
    (event,) = fake.events.values()
    assert event["count"] == 2


async def test_a_gone_namespace_delays_no_other(fake: FakeApiServer, events: PodEvents) -> None:
    fake.faults.append(Failure(404, 'namespaces "shop" not found'))
    events.note(WEB, REASON, "no room", TIME)
    events.note(OTHER, REASON, "no room", TIME)
    assert await send_all(events, 0.0) == [Outcome.NOT_FOUND, Outcome.DONE]
    assert events.error is None
    assert not events.due(1e6)


async def test_after_a_failure_another_is_next(fake: FakeApiServer, events: PodEvents) -> None:
    fake.faults.append(Failure(403, "namespace is being terminated"))
    events.note(WEB, REASON, "no room", TIME)
    events.note(OTHER, REASON, "no room", TIME)
    assert await send_all(events, 0.0) == [Outcome.FORBIDDEN]
    assert events.error is not None
    assert "verbs create and patch on events" in str(events.error)
    assert await send_all(events, 10.0) == [Outcome.DONE]
    assert [event["involvedObject"]["name"] for event in fake.events.values()] == ["other"]
    assert await send_all(events, POD_SECONDS) == [Outcome.DONE]
    assert events.error is None


def test_sending_without_an_event_is_a_mistake_of_the_caller(events: PodEvents) -> None:
    with pytest.raises(LookupError):
        asyncio.run(events.send(0.0))


def test_a_flood_of_pods_is_bounded(events: PodEvents) -> None:
    for number in range(3 * MOST_PODS):
        events.note(PodIdentity(f"u-{number}", f"p-{number}", "shop"), REASON, "no room", TIME)
    assert len(events._events) == MOST_PODS


async def test_names_and_messages_have_bounds(fake: FakeApiServer, events: PodEvents) -> None:
    long = PodIdentity("u-1", "a." * 126 + "a", "shop")
    events.note(long, REASON, "x" * 5000, TIME)
    await send_all(events, 0.0)
    (((_, name), event),) = fake.events.items()
    assert len(name) <= 253
    assert ".." not in name
    assert len(event["message"]) == LONGEST_MESSAGE

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from agent.cluster.kubelet import pods_api
from agent.cluster.kubelet.pods import PodsUnavailableError, UnreadablePodError
from agent.cluster.kubelet.pods_api import V1ALPHA1, EventType, PodsApi
from agent.rpc.calls import CallError
from tests.agent.server.support import OTHER_UID, UID, until
from tests.fakes.pods_api import FakePodsApi, pod_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: Longer than any answer takes, on however busy a machine.
LONG = 60.0
SHORT = 0.05


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[FakePodsApi, PodsApi]]:
    kubelet, client = FakePodsApi(directory), PodsApi(directory)
    kubelet.pods[UID] = pod_message(UID)
    await kubelet.start()
    try:
        yield kubelet, client
    finally:
        await client.close()
        await kubelet.stop()


async def test_pods_are_listed_and_asked_for_by_uid(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client):
        kubelet.pods[OTHER_UID] = pod_message(OTHER_UID, "db")
        found = await client.pods(LONG)
        assert {pod.uid: pod.name for pod in found.pods} == {UID: "web", OTHER_UID: "db"}
        pod = await client.pod(OTHER_UID, LONG)
        assert pod is not None
        assert pod.name == "db"
        assert await client.pod("no-such-pod", LONG) is None


async def test_a_watch_begins_with_all_pods_and_goes_on_with_what_happens(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client), aclosing(client.watch()) as events:
        first = await anext(events)
        assert (first.type, first.pod and first.pod.uid) == (EventType.ADDED, UID)
        assert (await anext(events)).type is EventType.INITIAL_SYNC_COMPLETE
        kubelet.delete(UID)
        last = await anext(events)
        assert (last.type, last.pod and last.pod.uid) == (EventType.DELETED, UID)


async def test_an_event_of_a_later_kubelet_says_how_the_pod_is_now(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client), aclosing(client.watch()) as events:
        await anext(events)
        await anext(events)
        kubelet.send_raw(
            V1ALPHA1["WatchPodsEvent"](type=17, pod=kubelet.pods[UID]).SerializeToString()
        )
        event = await anext(events)
        assert (event.type, event.pod and event.pod.uid) == (EventType.MODIFIED, UID)


async def test_bytes_that_are_no_event_break_the_watch_with_an_error(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client), aclosing(client.watch()) as events:
        await anext(events)
        kubelet.send_raw(b"\xff")
        await anext(events)
        with pytest.raises(PodsUnavailableError, match="cannot be decoded as WatchPodsEvent"):
            await anext(events)


async def test_a_watch_that_was_too_slow_is_an_error_with_its_status(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client), aclosing(client.watch()) as events:
        await anext(events)
        await anext(events)
        kubelet.break_watches()
        with pytest.raises(PodsUnavailableError, match="watch client channel closed") as raised:
            await anext(events)
        assert raised.value.code == "RESOURCE_EXHAUSTED"


async def test_calls_of_a_kubelet_that_hangs_end_at_their_deadline(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client):
        kubelet.hanging = True
        for call in (client.pods(SHORT), client.pod(UID, SHORT)):
            with pytest.raises(PodsUnavailableError) as raised:
                await call
            assert raised.value.code == "DEADLINE_EXCEEDED"


async def test_without_a_socket_nothing_is_dialled(tmp_path: Path) -> None:
    client = PodsApi(tmp_path)
    with pytest.raises(PodsUnavailableError, match="no such socket") as raised:
        await client.pods(LONG)
    assert raised.value.expected
    await client.close()


async def test_an_error_of_the_kubelet_is_printable(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client):
        kubelet.failing = CallError("INTERNAL", "bad\nnews\x1b[31m")
        with pytest.raises(PodsUnavailableError) as raised:
            await client.pods(LONG)
        assert str(raised.value).isprintable()
        assert raised.value.found.startswith("INTERNAL: bad")


async def test_a_list_that_is_no_list_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_api, "MOST_PODS", 2)
    async with served(tmp_path) as (kubelet, client):
        kubelet.raw_list = V1ALPHA1["ListPodsResponse"](pods=[b"", b"", b""]).SerializeToString()
        with pytest.raises(PodsUnavailableError, match="3 pods, more than 2"):
            await client.pods(LONG)
        kubelet.raw_list = b"\xff"
        with pytest.raises(PodsUnavailableError, match="cannot be decoded as ListPodsResponse"):
            await client.pods(LONG)


async def test_an_answer_with_another_pod_is_an_error_of_the_pod(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client):
        kubelet.pods[UID] = pod_message(OTHER_UID)
        with pytest.raises(UnreadablePodError, match=OTHER_UID):
            await client.pod(UID, LONG)


async def test_a_watch_that_is_closed_is_closed_at_the_kubelet(tmp_path: Path) -> None:
    async with served(tmp_path) as (kubelet, client):
        async with aclosing(client.watch()) as events:
            await anext(events)
            assert kubelet.watched == 1
        await until(lambda: not kubelet.watched)

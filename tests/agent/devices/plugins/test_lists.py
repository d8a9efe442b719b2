"""Of lists that arrive too fast the newest is used, at a cost that the sender cannot raise."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from agent.devices.lists import BURST, PAUSE, PAUSES_PER_USE, NewestList
from agent.rpc.calls import CallError
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class StandingClock:
    """A clock whose sleeps end when the test lets them; `slept` are their lengths."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._go_on = asyncio.Semaphore(0)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self._go_on.acquire()

    def go_on(self) -> None:
        self._go_on.release()


class Sender:
    """A stream of lists; `read` counts those that were taken from it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.read = 0
        self.closed = False

    async def lists(self) -> AsyncGenerator[bytes, None]:
        try:
            while (raw := await self.queue.get()) is not None:
                if isinstance(raw, Exception):
                    raise raw
                self.read += 1
                yield raw
        finally:
            self.closed = True


async def settled() -> None:
    """Let every task do what it can without an event from outside."""
    for _ in range(3 * BURST):
        await asyncio.sleep(0)


class Following:
    """A `NewestList` that follows a sender; `used` are the lists that it used."""

    def __init__(
        self,
        cost: float = 0.0,
        clock: StandingClock | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self.clock = clock or StandingClock()
        self.sender = Sender()
        self.used: list[bytes] = []
        self._cost = cost
        newest = NewestList(self._use, self.clock, turn)
        self.task = asyncio.create_task(newest.follow(self.sender.lists()))

    def _use(self, raw: bytes) -> None:
        if raw == b"defect":
            raise LookupError(raw)
        self.used.append(raw)
        self.clock.now += self._cost


@in_loop
async def test_the_first_list_is_used_at_once_and_of_the_rest_the_newest_after_a_pause() -> None:
    following = Following()
    for raw in (b"1", b"2", b"3"):
        following.sender.queue.put_nowait(raw)
        await settled()
    assert following.used == [b"1"]
    assert following.clock.slept == [PAUSE]
    following.clock.go_on()
    await settled()
    assert following.used == [b"1", b"3"]
    following.sender.queue.put_nowait(None)
    await following.task


@in_loop
async def test_no_more_is_read_than_a_burst_before_a_list_is_used() -> None:
    following = Following()
    for number in range(5 * BURST):
        following.sender.queue.put_nowait(str(number).encode())
    for uses in (1, 2, 3):
        await settled()
        assert len(following.used) == uses
        assert following.sender.read <= uses * BURST
        following.clock.go_on()
    following.task.cancel()


@in_loop
async def test_the_pause_grows_with_the_cost_of_a_list() -> None:
    following = Following(cost=2.0)
    following.sender.queue.put_nowait(b"1")
    await settled()
    assert following.clock.slept == [2.0 * PAUSES_PER_USE]
    following.task.cancel()


@in_loop
async def test_lists_of_all_plugins_share_one_tenth_of_the_time() -> None:
    clock, turn = StandingClock(), asyncio.Lock()
    plugins = [Following(1.0, clock, turn) for _ in range(64)]
    for plugin in plugins:
        for number in range(3):
            plugin.sender.queue.put_nowait(str(number).encode())
    for uses in range(1, 10):
        await settled()
        assert sum(len(plugin.used) for plugin in plugins) == uses
        assert clock.slept == [PAUSES_PER_USE] * uses
        clock.go_on()
    for plugin in plugins:
        plugin.task.cancel()
    await asyncio.gather(*(plugin.task for plugin in plugins), return_exceptions=True)


@pytest.mark.parametrize("end", [None, CallError("UNAVAILABLE", "gone")])
@in_loop
async def test_a_list_that_waits_when_the_stream_ends_is_dropped(end: CallError | None) -> None:
    following = Following()
    following.sender.queue.put_nowait(b"1")
    await settled()
    for raw in (b"2", end):
        following.sender.queue.put_nowait(raw)
    with nullcontext() if end is None else pytest.raises(CallError, match="gone"):
        await following.task
    assert following.used == [b"1"]
    assert following.sender.closed


@in_loop
async def test_an_error_in_using_a_list_ends_the_stream() -> None:
    following = Following()
    following.sender.queue.put_nowait(b"defect")
    with pytest.raises(LookupError):
        await following.task
    assert following.sender.closed

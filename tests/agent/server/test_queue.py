from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.progress import EndedError, Progress
from agent.server.errors import BusyError
from agent.server.limits import Caller
from agent.server.queue import (
    MOST_IN_A_ROW,
    MOST_OF_USER,
    OWN,
    Job,
    SerialQueue,
    Turns,
    Worker,
    called_by,
)
from tests.agent.server.support import FakeClock, in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

asked_by: ContextVar[str] = ContextVar("asked_by", default="")


@asynccontextmanager
async def served() -> AsyncIterator[SerialQueue]:
    """Return a queue whose actions run until the block ends."""
    queue = SerialQueue(Progress(FakeClock()))
    serving = asyncio.create_task(queue.serve())
    try:
        yield queue
    finally:
        queue.stop()
        await serving


@in_loop
async def test_actions_run_one_after_another_in_the_order_of_arrival() -> None:
    log: list[str] = []

    async def action(name: str) -> str:
        log.append(f"{name} begins")
        for _ in range(3):
            await asyncio.sleep(0)
        log.append(f"{name} ends")
        return name

    names = ["a", "b", "c"]
    async with served() as queue:
        results = await asyncio.gather(*(queue.run(partial(action, name)) for name in names))
    assert results == names
    assert log == [f"{name} {what}" for name in names for what in ("begins", "ends")]


@in_loop
async def test_an_action_whose_asker_went_away_is_finished_or_never_begun() -> None:
    began, go_on, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def action() -> None:
        began.set()
        await go_on.wait()
        finished.set()

    async def never() -> None:
        raise AssertionError("nobody asks for it any longer")

    async with served() as queue:
        asking = asyncio.create_task(queue.run(action))
        await began.wait()
        gone = asyncio.create_task(queue.run(never))
        await asyncio.sleep(0)
        asking.cancel()
        gone.cancel()
        go_on.set()
        await finished.wait()


MEMBERS = Caller("user 1"), Caller("user 2")
ROOT = Caller("user 0", privileged=True)


def put(
    queue: SerialQueue, action: Callable[[], Coroutine[None, None, None]], caller: Caller = OWN
) -> asyncio.Future[None]:
    with called_by(caller):
        return queue.add(Job(action=action, outcome=asyncio.get_running_loop().create_future()))


@in_loop
async def test_one_normal_turn_comes_after_eight_urgent_ones() -> None:
    queue, log = SerialQueue(Progress(FakeClock())), list[str]()

    async def action(name: str) -> None:
        log.append(name)

    asked = [
        put(queue, partial(action, f"{caller.name}: {n}"), caller)
        for caller, count in ((MEMBERS[0], 2), (MEMBERS[1], 2), (OWN, MOST_IN_A_ROW), (ROOT, 9))
        for n in range(count)
    ]
    serving = asyncio.create_task(queue.serve())
    await asyncio.gather(*asked)
    own = [f"the agent: {n}" for n in range(MOST_IN_A_ROW)]
    root = [f"user 0: {n}" for n in range(9)]
    rest = [root[8], "user 2: 0", "user 2: 1"]
    assert log == [*own, "user 1: 0", *root[:8], "user 1: 1", *rest]
    queue.stop()
    await serving


@pytest.mark.parametrize(
    ("raised", "error"),
    [(asyncio.CancelledError, EndedError), (BaseException, BaseException)],
)
@in_loop
async def test_an_action_that_is_cancelled_has_failed_and_the_queue_goes_on(
    raised: type[BaseException], error: type[BaseException]
) -> None:
    async def cancelled() -> None:
        raise raised

    async def succeed() -> int:
        return 7

    async with served() as queue:
        with pytest.raises(error):
            await queue.run(cancelled)
        assert await queue.run(succeed) == 7
        assert queue.finished == 2


@in_loop
async def test_a_queue_that_was_ended_is_a_failure_at_once() -> None:
    progress = Progress(FakeClock())
    queue = SerialQueue(progress)
    serving = asyncio.create_task(queue.serve())
    await asyncio.sleep(0)
    assert progress.failure() is None
    serving.cancel()
    await asyncio.wait((serving,))
    assert progress.failure() == "queue of changes has ended: it was cancelled; restart the agent"


@in_loop
async def test_those_that_wait_for_turns_go_on_one_by_one_as_actions_do() -> None:
    turns, log = Turns(), list[str]()

    async def take(name: str) -> None:
        async with turns:
            log.append(name)
            await asyncio.sleep(0)
            log.append(name)

    asked = []
    for caller, count in ((MEMBERS[0], 3), (MEMBERS[1], 2), (OWN, 2)):
        with called_by(caller):
            asked += [asyncio.create_task(take(f"{caller.name}: {n}")) for n in range(count)]
    await asyncio.gather(*asked)
    assert log[::2] == log[1::2]
    members = ["user 1: 1", "user 1: 2", "user 2: 0", "user 2: 1"]
    assert log[::2] == ["user 1: 0", "the agent: 0", "the agent: 1", *members]


@in_loop
async def test_a_task_that_leaves_before_or_at_the_moment_of_its_turn_passes_that_on() -> None:
    turns, log = Turns(), list[str]()

    async def take(name: str) -> None:
        async with turns:
            log.append(name)

    await turns.__aenter__()
    early, late, last = [asyncio.create_task(take(name)) for name in ("early", "late", "last")]
    await asyncio.sleep(0)
    early.cancel()
    await turns.__aexit__()
    late.cancel()  # whose turn it is, though it has not gone on yet
    await last
    assert log == ["last"]
    await take("next")
    assert log == ["last", "next"]


@in_loop
async def test_a_member_that_queues_without_end_is_rejected_and_others_are_not() -> None:
    queue = SerialQueue(Progress(FakeClock()))

    async def action() -> None:
        return

    asked = [put(queue, action, MEMBERS[0]) for _ in range(MOST_OF_USER)]
    with pytest.raises(BusyError):
        asked.append(put(queue, action, MEMBERS[0]))
    asked += [put(queue, action, MEMBERS[1]) for _ in range(MOST_OF_USER)]
    with pytest.raises(BusyError):  # of all users
        asked.append(put(queue, action, Caller("user 3")))
    asked += [put(queue, action, ROOT) for _ in range(2 * MOST_OF_USER)]
    assert queue.waiting == 4 * MOST_OF_USER
    asked[0].cancel()  # who is gone no longer counts
    asked.append(put(queue, action, MEMBERS[0]))
    queue.stop()
    await asyncio.wait(asked)


@in_loop
async def test_blocking_work_runs_in_one_other_thread_in_the_context_of_its_caller() -> None:
    worker = Worker(Progress(FakeClock()))

    async def action() -> tuple[str, int]:
        return await worker.run(lambda: (asked_by.get(), threading.get_ident()))

    async def ask(name: str) -> tuple[str, int]:
        asked_by.set(name)
        return await queue.run(action)

    async with served() as queue:
        (one, first), (two, second) = await asyncio.gather(ask("one"), ask("two"))
    assert (one, two) == ("one", "two")
    assert first == second != threading.get_ident()
    worker.close()

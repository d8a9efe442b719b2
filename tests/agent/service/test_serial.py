from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from functools import partial

import pytest

from agent.service.serial import SerialQueue, Stopped, Worker
from tests.agent.service.support import FakeClock, in_loop

asked_by: ContextVar[str] = ContextVar("asked_by", default="")


@in_loop
async def test_actions_run_one_after_another_in_the_order_of_arrival() -> None:
    queue = SerialQueue(FakeClock())
    serving = asyncio.create_task(queue.serve())
    log: list[str] = []

    async def action(name: str) -> str:
        log.append(f"{name} begins")
        for _ in range(3):
            await asyncio.sleep(0)
        log.append(f"{name} ends")
        return name

    names = ["a", "b", "c"]
    results = await asyncio.gather(*(queue.run(partial(action, name)) for name in names))
    queue.stop()
    await serving
    assert results == names
    assert log == [f"{name} {what}" for name in names for what in ("begins", "ends")]


@in_loop
async def test_whoever_asked_gets_the_error_and_the_queue_goes_on() -> None:
    queue = SerialQueue(FakeClock())
    serving = asyncio.create_task(queue.serve())

    async def fail() -> None:
        raise ValueError("no")

    async def succeed() -> int:
        return 7

    with pytest.raises(ValueError, match="no"):
        await queue.run(fail)
    assert await queue.run(succeed) == 7
    queue.stop()
    await serving


@in_loop
async def test_an_action_whose_asker_went_away_is_finished() -> None:
    queue = SerialQueue(FakeClock())
    serving = asyncio.create_task(queue.serve())
    began, go_on, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def action() -> None:
        began.set()
        await go_on.wait()
        finished.set()

    asking = asyncio.create_task(queue.run(action))
    await began.wait()
    asking.cancel()
    go_on.set()
    await finished.wait()
    queue.stop()
    await serving


@in_loop
async def test_what_was_queued_before_the_stop_is_done_and_nothing_after() -> None:
    queue = SerialQueue(FakeClock())

    async def action() -> int:
        return 1

    queued = asyncio.create_task(queue.run(action))
    await asyncio.sleep(0)
    assert queue.waiting == 1
    queue.stop()
    with pytest.raises(Stopped):
        await queue.run(action)
    await queue.serve()
    assert await queued == 1


@in_loop
async def test_it_tells_for_how_long_an_action_has_been_running() -> None:
    clock = FakeClock()
    queue = SerialQueue(clock)
    serving = asyncio.create_task(queue.serve())
    began, go_on = asyncio.Event(), asyncio.Event()

    async def action() -> None:
        began.set()
        await go_on.wait()

    assert queue.busy_seconds() == 0
    asking = asyncio.create_task(queue.run(action))
    await began.wait()
    clock.advance(42)
    assert queue.busy_seconds() == 42
    go_on.set()
    await asking
    queue.stop()
    await serving
    assert queue.busy_seconds() == 0


@in_loop
async def test_an_action_sees_the_context_of_whoever_asked_also_in_the_thread() -> None:
    queue, worker = SerialQueue(FakeClock()), Worker()
    serving = asyncio.create_task(queue.serve())

    async def action() -> str:
        return await worker.run(asked_by.get)

    async def ask(name: str) -> str:
        asked_by.set(name)
        return await queue.run(action)

    one, two = await asyncio.gather(ask("one"), ask("two"))
    assert (one, two) == ("one", "two")
    queue.stop()
    await serving
    worker.close()


@in_loop
async def test_blocking_work_runs_in_one_thread_that_is_not_the_loops() -> None:
    worker = Worker()
    threads = await asyncio.gather(*(worker.run(threading.get_ident) for _ in range(5)))
    worker.close()
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()

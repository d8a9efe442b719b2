"""Work with a deadline that its caller keeps, whatever the work does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")


class LateError(Exception):
    """Work did not end by its deadline (not a `TimeoutError`, which the work itself may raise)."""


async def within(seconds: float, work: Coroutine[None, None, ResultT]) -> ResultT:
    """Return what `work` returns; raises what it raises, or `LateError` after `seconds`.

    At the deadline the work is cancelled, and its end is not waited for: work that ignores the
    cancellation does not delay the caller. What it raises later is logged. Raises `RuntimeError` if
    something else cancelled the work.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if task.cancelled():
            raise RuntimeError("the work was cancelled")
        if task.done():
            return task.result()
    finally:
        # Also where the caller was cancelled while the work ended.
        task.add_done_callback(_retrieve if task.done() else _report_late)
        task.cancel()
    raise LateError


def _retrieve(task: asyncio.Task[ResultT]) -> None:
    """Take note of what work raised; asyncio would report it if its caller was cancelled."""
    if not task.cancelled():
        task.exception()


def _report_late(task: asyncio.Task[ResultT]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("NRI work failed after its deadline", exc_info=error)

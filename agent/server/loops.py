"""The loops of a running agent: they repeat actions, watch streams and run parts that serve.

No action, stream or part ends the agent, and none ends unseen:

- an action that fails is a condition until it succeeds (`attempt`), and runs again at its next time
  (`repeat`);
- a stream of changes that ends or fails is opened again (`pump`);
- a part that serves and fails is started again (`keep`);
- a loop that ends nevertheless is reported by its name (`never_ending`), as is one that is stuck.

Only a stop of the agent cancels a loop: a cancelled action is a failed action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from agent.clock import wait_for
from agent.progress import STALL_SECONDS, uncancelled
from agent.server.errors import EXPECTED, message_of
from agent.server.queue import QueueStopped

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from agent.clock import Clock
    from agent.progress import Progress

log = structlog.get_logger(__name__)

#: How long after a request an action begins, in seconds: requests within that time are one.
SETTLE_SECONDS: Final = 0.1
#: The shortest interval between two runs of a periodic action that changes trigger, in seconds.
SPACING_SECONDS: Final = 0.5
#: How long to wait before a stream of changes is opened again, in seconds: after it ended, as it
#: does without its directory, and after it failed.
ENDED_SECONDS: Final = 1.0
REOPEN_SECONDS: Final = 60.0


class Loops:
    """Runs loops that report to `conditions` (by subject) and to `progress` (by part)."""

    def __init__(self, conditions: dict[str, str], progress: Progress, clock: Clock) -> None:
        self._conditions = conditions
        self._progress = progress
        self._clock = clock

    async def repeat(
        self,
        asked: asyncio.Event,
        period: float | None,
        action: Callable[[], Awaitable[None]],
        subject: str,
        *,
        settle: float = SETTLE_SECONDS,
        spacing: float = SPACING_SECONDS,
    ) -> None:
        """Run an action every `period` seconds, and `settle` seconds after a request.

        Without a period it runs on request alone. A run on request begins at least `spacing`
        seconds after the run before it.
        """
        part = self._progress.part(subject, STALL_SECONDS + (period or 0))
        last = self._clock.monotonic() - spacing
        while True:
            if period is None:
                await asked.wait()
                part.begin()
            else:
                part.begin()
                await wait_for(asked, period, self._clock)
            if asked.is_set():
                soonest = last + spacing - self._clock.monotonic()
                if (pause := max(settle, soonest)) > 0:
                    await self._clock.sleep(pause)
                asked.clear()
            last = self._clock.monotonic()
            with part.working():
                await self.attempt(action, subject)

    async def attempt(self, action: Callable[[], Awaitable[None]], subject: str) -> None:
        """Run an action; a failure is a condition until a later run succeeds.

        An expected failure is logged once as long as it stays the same. When
        the agent stops, its queue takes no more actions; that is no failure.
        """
        try:
            await uncancelled(action())
        except QueueStopped:
            return
        except EXPECTED as error:
            message = f"{subject}: {message_of(error)}"
            if self._conditions.get(subject) != message:
                log.error("periodic action failed", action=subject, why=message_of(error))  # noqa: TRY400  # not a defect of the agent
            self._conditions[subject] = message
        except Exception as error:
            log.exception("periodic action failed unexpectedly", action=subject)
            why = f"internal error ({type(error).__name__}: {error}); see the agent log"
            self._conditions[subject] = f"{subject}: {why}"
        else:
            self._conditions.pop(subject, None)

    async def pump(
        self, name: str, stream: Callable[[], AsyncIterator[object]], asked: asyncio.Event
    ) -> None:
        """Request an action whenever a stream yields; open the stream again after its end.

        The end of a stream requests the action, too: changes may have been missed. A failure is a
        condition until the stream is opened again; no stream says that it works.
        """
        while True:
            reason = ""
            try:
                self._conditions.pop(name, None)
                await uncancelled(_set_by(stream, asked))
            except OSError as error:
                reason = error.strerror or str(error)
                log.warning("watch failed", what=name, reason=reason)
            except Exception as error:  # a mistake in one stream must not end the agent
                reason = f"internal error ({type(error).__name__}: {error}); see the agent log"
                log.exception("watch failed", what=name, reason=reason)
            if reason:
                self._conditions[name] = (
                    f"{name} are noticed only by the periodic comparison: {reason}"
                )
            asked.set()
            await self._clock.sleep(REOPEN_SECONDS if reason else ENDED_SECONDS)

    async def never_ending(self, name: str, loop: Coroutine[None, None, None]) -> None:
        """Run a loop that should not end while the agent runs; its end is a failure of its part."""
        why = "it returned"
        try:
            await uncancelled(loop)
        except Exception as error:
            log.exception("part of the agent ended", what=name)
            why = message_of(error)
        self._progress.part(name).end(why)

    async def keep(
        self,
        name: str,
        consequence: str,
        serve: Callable[[], Awaitable[None]],
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Run `serve` until the agent stops, again `REOPEN_SECONDS` after each end.

        An end is logged, calls `failed` and is a condition until the next start; the condition
        names the `consequence`.
        """
        while True:
            try:
                await uncancelled(serve())
                reason = "it ended by itself"
                log.error("part of the agent ended", what=name, why=reason)
            except Exception as error:  # a mistake in one part must not end the agent
                reason = f"internal error ({type(error).__name__}: {error}); see the agent log"
                log.exception("part of the agent failed", what=name)
            self._conditions[name] = f"{name} {consequence}: {reason}"
            if failed is not None:
                failed()
            await self._clock.sleep(REOPEN_SECONDS)
            self._conditions.pop(name, None)


async def _set_by(stream: Callable[[], AsyncIterator[object]], asked: asyncio.Event) -> None:
    async for _ in stream():
        asked.set()

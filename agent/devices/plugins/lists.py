"""Reading a stream of lists of which only the newest counts, at a bounded cost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from agent.clock import Clock

#: At least so long after a list is the next one used, in seconds.
PAUSE: Final = 0.1
#: ... and so many times as long as it took to use one, for the lists of all plugins: those that
#: send without end get a tenth of the loop's time together.
PAUSES_PER_USE: Final = 9
#: So many lists are read before the newest of them is used; then the plugin has to wait until
#: gRPC's flow control lets it send more.
BURST: Final = 256


class NewestList:
    """Uses the lists of one stream: the first at once, of those that follow too fast the newest.

    Those with the same `turn` share the time that using lists may take.
    """

    def __init__(
        self, use: Callable[[bytes], None], clock: Clock, turn: asyncio.Lock | None = None
    ) -> None:
        self._use = use
        self._turn = turn or asyncio.Lock()
        self._clock = clock
        self._newest: bytes | None = None
        self._arrived = asyncio.Event()
        self._used = asyncio.Event()
        self._unused = 0

    async def follow(self, lists: AsyncGenerator[bytes, None]) -> None:
        """Use lists until the stream ends; the last one is used in any case.

        Raises what reading or using raises.
        """
        tasks = {asyncio.create_task(self._read(lists)), asyncio.create_task(self._use_all())}
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._use_newest()
        for task in ended:
            await task

    async def _read(self, lists: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(lists):
            async for raw in lists:
                self._newest = raw
                self._arrived.set()
                self._unused += 1
                if self._unused >= BURST:
                    self._used.clear()
                    await self._used.wait()

    async def _use_all(self) -> None:
        while True:
            await self._arrived.wait()
            async with self._turn:
                started = self._clock.monotonic()
                self._use_newest()
                pause = PAUSES_PER_USE * (self._clock.monotonic() - started)
                if pause:
                    await self._clock.sleep(pause)
            if pause < PAUSE:
                await self._clock.sleep(PAUSE - pause)
            self._unused = 0
            self._used.set()

    def _use_newest(self) -> None:
        self._arrived.clear()
        raw, self._newest = self._newest, None
        if raw is not None:
            self._use(raw)

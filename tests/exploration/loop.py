"""An event loop whose time, worker thread and pauses go on when a test says so."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from msgspec import Struct

from agent.progress import progressed
from tests.agent.server.support import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")

#: The loop reads this time, in seconds, when it begins.
_BEGIN: Final = 1000.0


class Call(Struct, frozen=True):
    """A call of the worker thread that was requested and has not been made."""

    outcome: asyncio.Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def make(self) -> None:
        """Make the call now; its outcome is that of a thread."""
        try:
            result = self.function(*self.arguments)
        except Exception as error:  # noqa: BLE001  # the caller's
            if not self.outcome.cancelled():
                self.outcome.set_exception(error)
        else:
            if not self.outcome.cancelled():
                self.outcome.set_result(result)


class _NoFiles(selectors.BaseSelector):
    """A selector that waits for no file: where the loop would wait, it stops."""

    def __init__(self) -> None:
        self.stop: Callable[[], None] = progressed
        #: For how many seconds the loop would have waited for a timer, None without one.
        self.until_timer: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.until_timer = timeout
            self.stop()
        return []

    def register(
        self,
        fileobj: Any,  # noqa: ANN401  # as the base has it
        events: int,
        data: Any = None,  # noqa: ANN401  # as the base has it
    ) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401  # as the base
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401  # as the base
        raise KeyError(fileobj)


class SteppedLoop(asyncio.SelectorEventLoop):
    """Runs until nothing is ready, and goes on by what a test lets happen."""

    def __init__(self) -> None:
        self._files = _NoFiles()
        super().__init__(self._files)
        self._files.stop = self.stop
        self._now = _BEGIN
        #: The calls of the worker thread in the order of their requests.
        self.calls: deque[Call] = deque()
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self._now

    def run_in_executor(
        self,
        executor: Executor | None,  # noqa: ARG002  # there is one worker
        func: Callable[[*_Arguments], _Result],
        *args: *_Arguments,
    ) -> asyncio.Future[_Result]:
        call = Call(self.create_future(), func, args)
        self.calls.append(call)
        return call.outcome

    def settle(self) -> None:
        """Run until nothing is ready."""
        self.run_forever()

    @property
    def has_timer(self) -> bool:
        """Whether anything waits for a time, when nothing is ready."""
        return self._files.until_timer is not None

    def advance(self) -> None:
        """Let time go on to the next timer, and run until nothing is ready."""
        self._now += (self._files.until_timer or 0.0) + 0.001
        self.settle()


class SteppedClock(FakeClock):
    """A clock at which a pause of no time ends when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: deque[asyncio.Future[None]] = deque()

    async def sleep(self, seconds: float) -> None:
        if seconds:
            await super().sleep(seconds)
            return
        pause: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pauses.append(pause)
        await pause

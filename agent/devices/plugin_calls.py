"""The calls of one connected device plugin, each with a deadline.

In: a plugin that registered. Out: its options, lists of devices, preferences and deliveries, read
within bounds (`agent.devices.lists`), or an error whose text fits in a line. For every call but the
stream of lists, which lasts as long as the connection:

1. While the breaker of its method is open, the call is skipped (`SkippedCallError`).
2. The calls of one plugin are made one after the other, as a kubelet makes them.
3. A call that has its turn ends with the answer or at its deadline (`Deadlines`); at the deadline
   the breaker opens.
4. What came of the call is counted (`CallResult`).
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from agent.devices.lists import (
    AnswerError,
    PluginOptions,
    read_delivery,
    read_options,
    read_preference,
)
from agent.devices.plugin_limits import ALLOCATION_DURATION, CALLS, METHODS, CallResult
from agent.devices.registration import UNKNOWN
from agent.rpc.calls import CallError
from agent.rpc.device_plugins import V1BETA1
from agent.rpc.messages import RawMessage
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from agent.clock import Clock
    from agent.devices.plugin_limits import Deadlines, Measure
    from agent.devices.registration import Registrant
    from agent.managers.delivery import Delivery
    from agent.rpc.client import SocketClient
    from agent.rpc.messages import Message, MessageClass

    Call: TypeAlias = Callable[[str, Message, MessageClass, float], Awaitable[bytes]]

#: How long a method is not called after a call without an answer, in seconds. Calls are made one
#: after the other, so each further deadline would delay all pods with the resource.
BACK_OFF: Final = 60.0
#: How often that time doubles at most, once for each further call without an answer.
MOST_DOUBLINGS: Final = 4
#: The most characters of a plugin's own words in an error.
LONGEST_WORDS: Final = 500
#: The pause after a connection that failed, in seconds.
_REDIAL: Final = 0.1

_OPTIONS: Final = "GetDevicePluginOptions"
_PREFER: Final = "GetPreferredAllocation"
_ALLOCATE: Final = "Allocate"
_START: Final = "PreStartContainer"
#: gRPC's status names: no server listens on the socket; the deadline was exceeded.
_UNREACHABLE: Final = "UNAVAILABLE"
_TIMEOUT: Final = "DEADLINE_EXCEEDED"

AnswerT = TypeVar("AnswerT")


class SkippedCallError(Exception):
    """A plugin was not called, since it did not answer before; the text says for how long."""


class Plugin:
    """A plugin that registered; close it in the end."""

    def __init__(
        self,
        registrant: Registrant,
        client: SocketClient,
        deadlines: Deadlines,
        clock: Clock,
        measure: Measure,
    ) -> None:
        self.resource = registrant.resource
        self.socket = registrant.socket
        self.options = PluginOptions()
        #: By method.
        self.breakers = {method: CallBreaker(clock.monotonic) for method in METHODS}
        #: The digest of the last usable list of devices; an equal list is not read again.
        self.list_digest = b""
        self._client = client
        self._deadlines = deadlines
        self._clock = clock
        self._measure = measure
        self._turn = asyncio.Lock()

    async def connect(self) -> None:
        """Get the options, as the kubelet does within Register; raises `CallError`."""
        request, seconds = V1BETA1["Empty"](), self._deadlines.options
        try:
            self.options = await self._call(_OPTIONS, request, seconds, read_options, self._dial)
        except AnswerError as error:
            raise CallError(UNKNOWN, f"failed to get device plugin options: {error}") from error
        except CallError as error:
            unreachable = error.code == _UNREACHABLE
            step = "dial device plugin" if unreachable else "get device plugin options"
            raise CallError(UNKNOWN, f"failed to {step}: {error}") from error

    async def lists(self) -> AsyncGenerator[bytes, None]:
        """Yield the lists of devices as they arrive; raises `CallError`."""
        stream = self._client.stream("ListAndWatch", V1BETA1["Empty"](), RawMessage)
        try:
            async with aclosing(stream):
                async for raw in stream:
                    yield raw
        except CallError as error:
            raise _in_a_line(error) from error

    async def preferred(
        self, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Return the preferred ids, () where the plugin has no preference.

        Raises `CallError`, `SkippedCallError` and `AnswerError`.
        """
        question = {
            "available_deviceIDs": sorted(available),
            "must_include_deviceIDs": sorted(required),
            "allocation_size": size,
        }
        return await self._call(
            _PREFER,
            V1BETA1["PreferredAllocationRequest"](container_requests=[question]),
            self._deadlines.preference,
            lambda raw: read_preference(raw, available, required, size),
        )

    async def allocate(self, ids: tuple[str, ...]) -> Delivery:
        """Return what one container gets with these devices.

        Raises `CallError`, `SkippedCallError` and `AnswerError`.
        """
        return await self._call(
            _ALLOCATE,
            V1BETA1["AllocateRequest"](container_requests=[{"devices_ids": ids}]),
            self._deadlines.allocation,
            read_delivery,
        )

    async def start_container(self, ids: tuple[str, ...]) -> None:
        """Have the plugin prepare devices; raises `CallError`, `SkippedCallError`."""
        await self._call(
            _START,
            V1BETA1["PreStartContainerRequest"](devices_ids=ids),
            self._deadlines.start,
            lambda _raw: None,
        )

    async def close(self) -> None:
        """Close the connection and end all calls."""
        await self._client.close()

    async def _call(
        self,
        method: str,
        request: Message,
        seconds: float,
        read: Callable[[bytes], AnswerT],
        send: Call | None = None,
    ) -> AnswerT:
        """Call a method, and return what `read` makes of the answer (steps 1 to 4 above)."""
        self._check_breaker(method)
        async with self._turn:
            self._check_breaker(method)  # an earlier call may have reached its deadline
            raw = await self._raw_answer(method, request, seconds, send or self._client.call)
            try:
                answer = read(raw)
            except AnswerError:
                self._count(method, CallResult.INVALID)
                raise
        self._count(method, CallResult.OK)
        return answer

    async def _raw_answer(self, method: str, request: Message, seconds: float, send: Call) -> bytes:
        breaker = self.breakers[method]
        breaker.begin()
        started = self._clock.monotonic()
        try:
            raw = await send(method, request, RawMessage, seconds)
        except asyncio.CancelledError:  # mostly since the pod's time for all its calls is over
            breaker.open()
            self._count(method, CallResult.TIMEOUT)
            raise
        except CallError as error:
            if error.code == _TIMEOUT:
                breaker.open()
                self._count(method, CallResult.TIMEOUT)
                late = f"{method} was not answered within {seconds:g} s"
                raise CallError(_TIMEOUT, late) from error
            breaker.close()
            self._count(method, CallResult.FAILED)
            raise _in_a_line(error) from error
        finally:
            if method == _ALLOCATE:
                duration = self._clock.monotonic() - started
                self._measure.observe(ALLOCATION_DURATION, duration, self.resource)
        breaker.close()
        return raw

    async def _dial(
        self, method: str, request: Message, response: MessageClass, seconds: float
    ) -> bytes:
        """Call a method as soon as the plugin serves its socket; raises `CallError`.

        A plugin may serve the socket a moment after it registers.
        """
        latest = self._clock.monotonic() + seconds
        left = seconds
        while True:
            try:
                raw: bytes = await self._client.call(method, request, response, left)
            except CallError as error:
                left = latest - self._clock.monotonic() - _REDIAL
                if error.code != _UNREACHABLE or left <= _REDIAL:
                    raise
            else:
                return raw
            await self._clock.sleep(_REDIAL)

    def _check_breaker(self, method: str) -> None:
        """Raise `SkippedCallError` while the breaker of a method is open.

        A container that PreStartContainer would not prepare must not get devices: an open breaker
        of that method keeps Allocate from being called, too.
        """
        if method == _ALLOCATE and self.options.pre_start:
            self._check_breaker(_START)
        breaker = self.breakers[method]
        if remaining := breaker.remaining:
            self._count(method, CallResult.SKIPPED)
            raise SkippedCallError(
                f"{unanswered(method, breaker)}, so it is called again in {math.ceil(remaining)} s"
            )

    def _count(self, method: str, result: CallResult) -> None:
        self._measure.add(CALLS, self.resource, method, result)


class CallBreaker:
    """Keeps a method without an answer from costing every pod one deadline.

    - closed: the last call was answered. A deadline opens it for `BACK_OFF` seconds.
    - open: the method is not called. Once the time has passed, it is half open.
    - half open: one call is tried, the others are skipped. An answer, also an error, closes it; a
      deadline opens it for twice as long.

    Each method has a breaker of its own, and a plugin that registers again has closed ones.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        #: When it is half open next.
        self._open_until = 0.0
        #: How many calls in a row were not answered; 0: closed.
        self.timeouts = 0

    @property
    def remaining(self) -> float:
        """For how many more seconds the method is not called; 0 if it may be."""
        return max(0.0, self._open_until - self._monotonic())

    def begin(self) -> None:
        """Note that a call begins; a half-open breaker keeps others out for one more pause."""
        if self.timeouts:
            self._lengthen()

    def close(self) -> None:
        """Note that a call was answered."""
        self.timeouts = 0
        self._open_until = 0.0

    def open(self) -> None:
        """Note that a call was not answered in time."""
        self._lengthen()
        self.timeouts += 1

    def _lengthen(self) -> None:
        doublings = min(self.timeouts, MOST_DOUBLINGS)
        self._open_until = self._monotonic() + BACK_OFF * 2**doublings


def unanswered(method: str, breaker: CallBreaker) -> str:
    """Return the sentence that the last calls of a method were not answered."""
    times = f" {breaker.timeouts} times in a row" if breaker.timeouts > 1 else ""
    return f"{method} was not answered in time{times}"


def _in_a_line(error: CallError) -> CallError:
    """Return an error with a plugin's words so that they fit in a line of a log."""
    return CallError(error.code, printable(error.message, LONGEST_WORDS))

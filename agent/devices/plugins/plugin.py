"""One connected plugin: its options and its calls, each with a deadline and counted."""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from agent.devices.plugins.answers import (
    PluginOptions,
    read_delivery,
    read_options,
    read_preference,
)
from agent.devices.plugins.breaker import CallBreaker
from agent.devices.plugins.device_list import AnswerError
from agent.devices.plugins.metrics import ALLOCATION_DURATION, CALLS, METHODS, CallResult
from agent.devices.plugins.registration import UNKNOWN
from agent.rpc.calls import CallError
from agent.rpc.device_plugin import V1BETA1
from agent.rpc.messages import RawMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from agent.clock import Clock
    from agent.devices.plugins.limits import Deadlines
    from agent.devices.plugins.metrics import Measure
    from agent.devices.plugins.registration import Registrant
    from agent.managers.allocations.delivery import Delivery
    from agent.rpc.calls import SocketClient
    from agent.rpc.messages import Message, MessageClass

    Call: TypeAlias = Callable[[str, Message, MessageClass, float], Awaitable[bytes]]

_UNREACHABLE: Final = "UNAVAILABLE"
_TIMEOUT: Final = "DEADLINE_EXCEEDED"
_GET_OPTIONS: Final = "get device plugin options"
_OPTIONS: Final = "GetDevicePluginOptions"
_PREFER: Final = "GetPreferredAllocation"
_ALLOCATE: Final = "Allocate"
_START: Final = "PreStartContainer"
#: How long after a failed connection the next one is tried, in seconds.
_REDIAL: Final = 0.1

#: The most characters of a plugin's own words in an error.
LONGEST_WORDS: Final = 500

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
        self.breakers = {method: CallBreaker(clock.monotonic) for method in METHODS}
        #: The digest of the last list that was used; one that is the same is not read again.
        self.listed = b""
        self._client = client
        self._deadlines = deadlines
        self._clock = clock
        self._measure = measure

    async def connect(self) -> None:
        """Get the options, as the kubelet does within Register; raises `CallError`."""
        seconds = self._deadlines.options
        try:
            self.options = await self._answer(
                _OPTIONS, V1BETA1["Empty"](), seconds, read_options, self._dial
            )
        except AnswerError as error:
            raise CallError(UNKNOWN, f"failed to get device plugin options: {error}") from error
        except CallError as error:
            what = "dial device plugin" if error.code == _UNREACHABLE else _GET_OPTIONS
            raise CallError(UNKNOWN, f"failed to {what}: {error}") from error

    async def lists(self) -> AsyncGenerator[bytes, None]:
        """Yield the lists of devices as they arrive; raises `CallError`."""
        stream = self._client.stream("ListAndWatch", V1BETA1["Empty"](), RawMessage)
        try:
            async with aclosing(stream):
                async for raw in stream:
                    yield raw
        except CallError as error:
            raise _printable(error) from error

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
        return await self._answer(
            _PREFER,
            V1BETA1["PreferredAllocationRequest"](container_requests=[question]),
            self._deadlines.preference,
            lambda raw: read_preference(raw, available, required, size),
        )

    async def allocate(self, ids: tuple[str, ...]) -> Delivery:
        """Return what one container gets with these devices.

        Raises `CallError`, `SkippedCallError` and `AnswerError`. The plugin is not asked where its
        later PreStartContainer would be skipped.
        """
        if self.options.pre_start:
            self._check(_START)
        return await self._answer(
            _ALLOCATE,
            V1BETA1["AllocateRequest"](container_requests=[{"devices_ids": ids}]),
            self._deadlines.allocation,
            read_delivery,
        )

    async def start_container(self, ids: tuple[str, ...]) -> None:
        """Have the plugin prepare devices; raises `CallError`, `SkippedCallError`."""
        await self._answer(
            _START,
            V1BETA1["PreStartContainerRequest"](devices_ids=ids),
            self._deadlines.start,
            lambda _raw: None,
        )

    async def close(self) -> None:
        """Close the connection and end all calls."""
        await self._client.close()

    async def _dial(
        self, method: str, request: Message, response: MessageClass, seconds: float
    ) -> bytes:
        """Call a method as soon as the plugin serves its socket; raises `CallError`.

        A plugin may do that a moment after it registers.
        """
        latest = self._clock.monotonic() + seconds
        while True:
            try:
                raw: bytes = await self._client.call(method, request, response, seconds)
            except CallError as error:
                if error.code != _UNREACHABLE or self._clock.monotonic() >= latest:
                    raise
            else:
                return raw
            await self._clock.sleep(_REDIAL)

    async def _answer(
        self,
        method: str,
        request: Message,
        seconds: float,
        read: Callable[[bytes], AnswerT],
        call: Call | None = None,
    ) -> AnswerT:
        """Call a method, read what it answers, and count what became of the call."""
        self._check(method)
        breaker = self.breakers[method]
        started = self._clock.monotonic()
        try:
            raw: bytes = await (call or self._client.call)(method, request, RawMessage, seconds)
        except CallError as error:
            if error.code == _TIMEOUT:
                breaker.timed_out()
                self._count(method, CallResult.TIMEOUT)
                late = f"{method} was not answered within {seconds:g} s"
                raise CallError(_TIMEOUT, late) from error
            breaker.answered()
            self._count(method, CallResult.FAILED)
            raise _printable(error) from error
        finally:
            if method == _ALLOCATE:
                taken = self._clock.monotonic() - started
                self._measure.observe(ALLOCATION_DURATION, taken, self.resource)
        breaker.answered()
        try:
            answer = read(raw)
        except AnswerError:
            self._count(method, CallResult.INVALID)
            raise
        self._count(method, CallResult.OK)
        return answer

    def _check(self, method: str) -> None:
        """Raise `SkippedCallError` while the breaker of a method is open."""
        if remaining := self.breakers[method].remaining:
            self._count(method, CallResult.SKIPPED)
            raise SkippedCallError(
                f"{unanswered(method, self.breakers[method])}, so it is called again in "
                f"{math.ceil(remaining)} s"
            )

    def _count(self, method: str, result: CallResult) -> None:
        self._measure.add(CALLS, self.resource, method, result)


def unanswered(method: str, breaker: CallBreaker) -> str:
    """Return that the last calls of a method were not answered."""
    times = f" {breaker.timeouts} times in a row" if breaker.timeouts > 1 else ""
    return f"{method} was not answered in time{times}"


def _printable(error: CallError) -> CallError:
    """Return an error whose words, a plugin's, fit in a line of a log and of a terminal."""
    words = error.message[:LONGEST_WORDS]
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    return CallError(error.code, escaped)

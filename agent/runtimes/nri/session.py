"""The agent as one plugin of a runtime: it connects, registers, answers, and connects again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from google.protobuf.message import DecodeError
from msgspec import Struct
from msgspec.structs import replace

from agent.runtimes.nri.messages import (
    PLUGIN,
    RUNTIME,
    V1ALPHA1,
    smallest_subscription,
    subscription,
)
from agent.runtimes.nri.mux import NriProtocolError
from agent.runtimes.nri.service import PluginService, split_updates
from agent.runtimes.nri.ttrpc import LateError, TtrpcError, TtrpcLink, within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from agent.clock import Clock
    from agent.rpc.messages import Message
    from agent.runtimes.nri.handler import RuntimeHandler
    from agent.runtimes.nri.messages import NriEvent
    from agent.runtimes.nri.values import RuntimeInfo

log = structlog.get_logger(__name__)

#: The version of NRI that is spoken (RegisterPluginRequest, since NRI 0.12).
NRI_VERSION: Final = "v0.12.0"
#: How long connecting, and the answer to RegisterPlugin, may take, in seconds.
CONNECT_SECONDS: Final = 5.0
#: How long after it registered the plugin the runtime may take to synchronize, in seconds. A
#: runtime that does not know an event of the subscription never does.
SYNCHRONIZE_SECONDS: Final = 15.0
#: How long the runtime may take to update containers, in seconds; it updates one by one.
UPDATE_SECONDS: Final = 60.0
#: The pauses before the agent connects again, in seconds: containers that start meanwhile are not
#: adjusted before they run, so that the longest is short.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
#: After a connection that lasted so long, the first pause is the first again, in seconds.
_LASTED: Final = 10.0


class SessionState(Struct, frozen=True):
    """What a session does and did.

    `connected` is from Synchronize to the end of the connection; `since` is when that last changed
    (seconds since 1970). `runtime` is the last one that synchronized the plugin, `last_error` why
    it is not connected, or was not before. `connections` counts those that were synchronized.
    """

    connected: bool = False
    since: float = 0.0
    runtime: RuntimeInfo | None = None
    last_error: str = ""
    connections: int = 0


class NriSession:
    """Serves one runtime through its NRI socket.

    `name` and `index` (two digits; plugins are called in their order) are how the runtime calls the
    plugin. `seconds` is the deadline of every handler, `synchronizing` that of `synchronize`.
    `observe` gets the method, the outcome and the seconds of each answer (`PluginService`).
    """

    def __init__(  # noqa: PLR0913  # each is one fact about the plugin
        self,
        socket: Path,
        handler: RuntimeHandler,
        clock: Clock,
        *,
        name: str = "numawarden",
        index: str = "90",
        seconds: float = 0.2,
        synchronizing: float = 1.5,
        observe: Callable[[str, str, float], None] = lambda _method, _outcome, _seconds: None,
    ) -> None:
        self._socket = socket
        self._handler = handler
        self._clock = clock
        self._name = name
        self._index = index
        self._seconds = seconds
        self._synchronizing = synchronizing
        self._observe = observe
        #: The runtime that did not synchronize the plugin.
        self._silent: RuntimeInfo | None = None
        self._state = SessionState(since=clock.time())

    @property
    def state(self) -> SessionState:
        """What the session does and did."""
        return self._state

    async def serve(self) -> None:
        """Serve the runtime until cancelled, whatever becomes of it and of its socket."""
        pause = FIRST_PAUSE
        while True:
            began = self._clock.monotonic()
            why = await self._served_once()
            self._ended(why)
            if self._clock.monotonic() - began >= _LASTED:
                pause = FIRST_PAUSE
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _served_once(self) -> str:
        """Serve one connection; return why it ended."""
        try:
            reader, writer = await within(
                CONNECT_SECONDS, asyncio.open_unix_connection(self._socket)
            )
        except LateError:
            return f"{self._socket}: not connected within {CONNECT_SECONDS:g} s"
        except OSError as error:
            return f"{self._socket}: {error.strerror or error}"
        connection = _Connection(self._clock)
        service = PluginService(
            self._handler,
            connection.synchronizations.put_nowait,
            seconds=self._seconds,
            synchronizing=self._synchronizing,
            observe=self._observe,
            events=self._subscription,
        )
        link = TtrpcLink(reader, writer, PLUGIN, service.answer, service.written)
        try:
            return await self._until_ended(link, service, connection)
        finally:
            writer.transport.abort()
            if service.runtime is not None:
                self._disconnected(connection.why)

    async def _until_ended(
        self, link: TtrpcLink, service: PluginService, connection: _Connection
    ) -> str:
        reading = asyncio.create_task(link.run())
        using = asyncio.create_task(self._use(link, service, connection))
        tasks = (reading, using)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await (reading if reading.done() else using)
        except asyncio.CancelledError:
            connection.why = "the session was ended"
            raise
        except (NriProtocolError, TtrpcError, OSError) as error:
            connection.why = str(error)
        except Exception as error:
            log.exception("NRI session failed unexpectedly", socket=str(self._socket))
            connection.why = f"internal error ({type(error).__name__}); see the agent log"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return connection.why

    async def _use(self, link: TtrpcLink, service: PluginService, connection: _Connection) -> None:
        """Register, wait for Synchronize, then update what did not fit in its answer."""
        request = V1ALPHA1["RegisterPluginRequest"](
            plugin_name=self._name, plugin_idx=self._index, NRI_version=NRI_VERSION
        )
        await link.call(RUNTIME, "RegisterPlugin", request.SerializeToString(), CONNECT_SECONDS)
        remaining = await connection.next_remaining()
        if remaining is None:
            self._silent = service.runtime
            raise NriProtocolError(
                f"the runtime registered the plugin and did not synchronize it within "
                f"{SYNCHRONIZE_SECONDS:g} s"
            )
        self._connected(service)
        while True:
            await _repair(link, remaining)
            remaining = await connection.synchronizations.get()

    def _subscription(self, runtime: RuntimeInfo) -> Collection[NriEvent]:
        if runtime == self._silent:
            return smallest_subscription()
        return subscription(runtime.name, runtime.version, runtime.nri_version)

    def _connected(self, service: PluginService) -> None:
        runtime = service.runtime
        self._state = replace(
            self._state,
            connected=True,
            since=self._clock.time(),
            runtime=runtime,
            connections=self._state.connections + 1,
        )
        if runtime is not None:
            log.info(
                "NRI connected",
                socket=str(self._socket),
                runtime=runtime.name,
                version=runtime.version,
                nri=runtime.nri_version,
            )

    def _disconnected(self, why: str) -> None:
        try:
            self._handler.disconnected(why)
        except Exception:  # the agent connects again all the same
            log.exception("NRI handler failed", method="disconnected")

    def _ended(self, why: str) -> None:
        """Note why there is no connection, and log what is new."""
        state = self._state
        if state.connected:
            log.warning("NRI disconnected", socket=str(self._socket), error=why)
        elif why != state.last_error:
            log.warning("NRI not connected", socket=str(self._socket), error=why)
        since = self._clock.time() if state.connected else state.since
        self._state = replace(state, connected=False, since=since, last_error=why)


class _Connection:
    """What becomes of one connection."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: For each time that the runtime synchronized the plugin the updates that did not fit.
        self.synchronizations: asyncio.Queue[list[Message]] = asyncio.Queue()
        self.why = "the runtime closed the connection"

    async def next_remaining(self) -> list[Message] | None:
        """Return the updates of a synchronization, None if the runtime is too late with it."""
        waiting = asyncio.create_task(self.synchronizations.get())
        timer = asyncio.create_task(self._clock.sleep(SYNCHRONIZE_SECONDS))
        try:
            await asyncio.wait((waiting, timer), return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            timer.cancel()


async def _repair(link: TtrpcLink, remaining: list[Message]) -> None:
    """Update the containers of Synchronize that did not fit in its answer."""
    try:
        failed = await _updated(link, remaining)
    except TtrpcError as error:
        log.warning("NRI containers not repaired", containers=len(remaining), error=str(error))
    else:
        if failed:
            log.warning("NRI containers not repaired", containers=len(failed), error="")


async def _updated(link: TtrpcLink, updates: list[Message]) -> frozenset[str]:
    """Let the runtime update containers in as few calls as can be; return those that failed."""
    failed: set[str] = set()
    while updates:
        part, updates = split_updates(updates)
        request = V1ALPHA1["UpdateContainersRequest"]()
        request.update.extend(part)
        data = await link.call(
            RUNTIME, "UpdateContainers", request.SerializeToString(), UPDATE_SECONDS
        )
        try:
            response = V1ALPHA1["UpdateContainersResponse"].FromString(data)
        except DecodeError as error:
            raise TtrpcError("INTERNAL", "the response is not protobuf") from error
        failed.update(update.container_id for update in response.failed)
    return frozenset(failed)

"""The agent as one plugin of a runtime: it connects, registers, serves, and connects again.

In: the socket of a runtime, and the handler of its events. Out: `SessionState`. One connection goes
through these steps; whatever ends it, the agent connects again after a pause:

1. connect, within `CONNECT_SECONDS`;
2. register: the runtime answers, and configures the plugin (`PluginService`);
3. synchronized: the runtime sent all pods and containers, within `SYNCHRONIZE_SECONDS`. A runtime
   that does not know an event of the subscription never does; at the next connection it gets the
   smallest subscription.
4. serve until either side ends the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.cluster.nri.deadline import LateError, within
from agent.cluster.nri.events import smallest_subscription, subscription
from agent.cluster.nri.framing import NriProtocolError
from agent.cluster.nri.messages import PLUGIN, RUNTIME, V1ALPHA1
from agent.cluster.nri.service import PluginService
from agent.cluster.nri.ttrpc import TtrpcError, TtrpcLink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from agent.clock import Clock
    from agent.cluster.nri.events import NriEvent
    from agent.cluster.nri.handler import RuntimeHandler
    from agent.cluster.nri.messages import RuntimeInfo

log = structlog.get_logger(__name__)

#: The version of NRI that is spoken (RegisterPluginRequest, since NRI 0.12).
NRI_VERSION: Final = "v0.12.0"
#: How long connecting, and the answer to RegisterPlugin, may take, in seconds.
CONNECT_SECONDS: Final = 5.0
#: How long the runtime may take from the registration of the plugin until it synchronized it, in
#: seconds.
SYNCHRONIZE_SECONDS: Final = 15.0
#: The first and the longest pause before the agent connects again, in seconds. They are short:
#: containers that start meanwhile are not adjusted before they run.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
#: How long a connection lasts, in seconds, for the next pause to be `FIRST_PAUSE`.
_LASTED: Final = 10.0


class SessionState(Struct, frozen=True):
    """What a session does and did."""

    #: From Synchronize to the end of the connection.
    connected: bool = False
    #: When `connected` last changed (seconds since 1970).
    since: float = 0.0
    #: The last runtime that synchronized the plugin.
    runtime: RuntimeInfo | None = None
    #: Why it is not connected, or was not before.
    last_error: str = ""
    #: How many connections were synchronized.
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
        #: The last runtime that did not synchronize the plugin.
        self._silent: RuntimeInfo | None = None
        self._state = SessionState(since=clock.time())

    @property
    def state(self) -> SessionState:
        """What the session does and did."""
        return self._state

    async def serve(self) -> None:
        """Serve the runtime until cancelled; connect again after each connection."""
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
            connection.synchronized.set,
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
            await reading
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
        """Register, and wait for Synchronize."""
        request = V1ALPHA1["RegisterPluginRequest"](
            plugin_name=self._name, plugin_idx=self._index, NRI_version=NRI_VERSION
        )
        await link.call(RUNTIME, "RegisterPlugin", request.SerializeToString(), CONNECT_SECONDS)
        if not await connection.is_synchronized():
            self._silent = service.runtime
            raise NriProtocolError(
                f"the runtime registered the plugin and did not synchronize it within "
                f"{SYNCHRONIZE_SECONDS:g} s"
            )
        self._connected(service)

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
        """Note why there is no connection; log a reason that is new."""
        state = self._state
        if state.connected:
            log.warning("NRI disconnected", socket=str(self._socket), error=why)
        elif why != state.last_error:
            log.warning("NRI not connected", socket=str(self._socket), error=why)
        since = self._clock.time() if state.connected else state.since
        self._state = replace(state, connected=False, since=since, last_error=why)


class _Connection:
    """Whether one connection was synchronized, and why it ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.synchronized = asyncio.Event()
        self.why = "the runtime closed the connection"

    async def is_synchronized(self) -> bool:
        """Wait until the runtime synchronized the plugin; False if that takes too long."""
        waiting = asyncio.create_task(self.synchronized.wait())
        timer = asyncio.create_task(self._clock.sleep(SYNCHRONIZE_SECONDS))
        try:
            await asyncio.wait((waiting, timer), return_when=asyncio.FIRST_COMPLETED)
            return self.synchronized.is_set()
        finally:
            waiting.cancel()
            timer.cancel()

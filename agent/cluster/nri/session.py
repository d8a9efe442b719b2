"""The agent as one plugin of a runtime: it connects, registers, answers, and connects again.

Each request of the runtime becomes a call of a handler. Whatever the handler does, the runtime gets
an answer in time, and no error but of CreateContainer, UpdateContainer and UpdatePodSandbox.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import structlog
from google.protobuf.message import DecodeError
from msgspec import Struct
from msgspec.structs import replace

from agent.cluster.nri.messages import (
    EVENTS,
    PLUGIN,
    RUNTIME,
    V1ALPHA1,
    ContainerResources,
    NriEvent,
    PodSandbox,
    RuntimeContainer,
    RuntimeInfo,
    adjustment_message,
    event_mask,
    smallest_subscription,
    subscription,
    update_message,
    update_messages,
)
from agent.cluster.nri.protocol import (
    LONGEST_SENT,
    STATUS_CODES,
    LateError,
    NriProtocolError,
    TtrpcError,
    TtrpcLink,
    within,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
    from pathlib import Path

    from agent.clock import Clock
    from agent.cluster.nri.messages import Adjustment
    from agent.cluster.nri.protocol import RuntimeCall
    from agent.rpc import Message

log = structlog.get_logger(__name__)

#: A handler gets this part of the time for which the runtime waits at most.
_SHARE_OF_TIMEOUT: Final = 0.8
#: A container that is not decided this long before the deadline of its handler is to be rejected
#: in the handler's words, in seconds.
_TO_REJECT: Final = 0.1
#: So many bytes of a SynchronizeResponse are updates at most.
_MOST_UPDATES: Final = LONGEST_SENT - (64 << 10)
#: The most bytes of all parts of one Synchronize: 20,000 pods of a few containers.
LONGEST_SYNCHRONIZE: Final = 256 << 20

ResultT = TypeVar("ResultT")
_Subject: TypeAlias = "Mapping[str, str]"

#: The version of NRI that is spoken (RegisterPluginRequest, since NRI 0.12).
NRI_VERSION: Final = "v0.12.0"
#: How long connecting, and the answer to RegisterPlugin, may take, in seconds.
CONNECT_SECONDS: Final = 5.0
#: How long after it registered the plugin the runtime may take to synchronize, in seconds. A
#: runtime that does not know an event of the subscription never does.
SYNCHRONIZE_SECONDS: Final = 15.0
#: The pauses before the agent connects again, in seconds: containers that start meanwhile are not
#: adjusted before they run, so that the longest is short.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
#: After a connection that lasted so long, the first pause is the first again, in seconds.
_LASTED: Final = 10.0


class ContainerRejectedError(Exception):
    """A container must not be created, or it or its pod updated; only these answers may raise it.

    `code` is gRPC's name of a status, such as "FAILED_PRECONDITION"; `message` is what users see in
    the pod's events. Raises `ValueError` for any other code.
    """

    def __init__(self, code: str, message: str) -> None:
        if code not in STATUS_CODES:
            raise ValueError(f"{code!r} is not a status of gRPC that means an error")
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RuntimeHandler(Protocol):
    """Answers the events of a runtime, which creates pods and containers meanwhile.

    A coroutine is cancelled at its deadline; the runtime goes on without its answer. What is raised
    is logged and changes nothing, but for `ContainerRejectedError`: runtimes before containerd
    2.2.6 leave a process and a record behind a sandbox that a plugin rejected, and do not start
    again.
    """

    def configured(self, info: RuntimeInfo) -> None:
        """Take note of a runtime that registered the plugin; `synchronize` follows."""

    async def synchronize(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[RuntimeContainer]
    ) -> Mapping[str, Adjustment]:
        """Return what is to be changed, by container id, of all containers that there are."""

    async def sandbox_started(self, sandbox: PodSandbox) -> None:
        """Take note of a sandbox; its cgroup exists and its pause process runs."""

    def sandbox_stopped(self, sandbox: PodSandbox) -> None:
        """Take note of a sandbox whose containers have all ended."""

    def sandbox_removed(self, sandbox: PodSandbox) -> None:
        """Take note of the end of a sandbox."""

    def sandbox_updated(self, sandbox: PodSandbox) -> None:
        """Take note of a sandbox that is to have other resources by an in-place resize of its pod.

        Raises `ContainerRejectedError`.
        """

    async def container_created(
        self, sandbox: PodSandbox, container: RuntimeContainer, seconds: float
    ) -> Adjustment | None:
        """Return what is to be changed of a container before its process starts.

        The answer may take so many seconds. Raises `ContainerRejectedError`.
        """

    async def container_updated(
        self, sandbox: PodSandbox, container: RuntimeContainer, requested: ContainerResources
    ) -> Adjustment | None:
        """Return what is to be set other than the runtime is asked to set.

        `container` has the resources from before. Raises `ContainerRejectedError`.
        """

    def container_started(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Take note of a container whose process runs."""

    def container_stopped(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Take note of a container whose process ended, by itself or not."""

    def container_removed(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Take note of the end of a container."""

    def disconnected(self, why: str) -> None:
        """Take note of the end of a connection after `configured`; events are missed now."""


class PluginService:
    """Answers the requests of one connection.

    `seconds` is the deadline of a handler, `synchronizing` that of `synchronize`. `events` chooses
    what to subscribe to from a runtime that registered the plugin. `synchronized` is called after
    the last part of Synchronize. `observe` gets of each answer that was written the method, the
    outcome and the seconds since its request was read; outcomes are `answered`, `rejected`, `late`
    (after its deadline) and `failed` (the handler raised what it may not).
    """

    def __init__(
        self,
        handler: RuntimeHandler,
        synchronized: Callable[[], None],
        *,
        seconds: float,
        synchronizing: float,
        observe: Callable[[str, str, float], None],
        events: Callable[[RuntimeInfo], Collection[NriEvent]],
    ) -> None:
        self._handler = handler
        self._synchronized = synchronized
        self._seconds = seconds
        self._synchronizing = synchronizing
        self._observe = observe
        #: The events and outcomes of answers that are not written yet.
        self._outcomes: dict[RuntimeCall, tuple[str, str]] = {}
        self._events = events
        #: The parts of Synchronize until its last, and their bytes.
        self._received = 0
        self._sandboxes: list[PodSandbox] = []
        self._containers: list[RuntimeContainer] = []
        self._of_sandboxes: dict[int, Callable[[PodSandbox], Coroutine[None, None, None]]] = {
            NriEvent.RUN_POD_SANDBOX: handler.sandbox_started,
            NriEvent.STOP_POD_SANDBOX: partial(_calling, handler.sandbox_stopped),
            NriEvent.REMOVE_POD_SANDBOX: partial(_calling, handler.sandbox_removed),
        }
        self._of_containers: dict[int, Callable[[PodSandbox, RuntimeContainer], None]] = {
            NriEvent.POST_START_CONTAINER: handler.container_started,
            NriEvent.STOP_CONTAINER: handler.container_stopped,
            NriEvent.REMOVE_CONTAINER: handler.container_removed,
        }
        #: The runtime, once it registered the plugin.
        self.runtime: RuntimeInfo | None = None

    async def answer(self, call: RuntimeCall) -> bytes:
        """Return the response to a request of the runtime.

        Raises `TtrpcError` for a method that is not known, and for what the handler rejects;
        `NriProtocolError` for a request that cannot be read.
        """
        response = await self._response(call)
        data: bytes = response.SerializeToString()
        return data

    def written(self, call: RuntimeCall) -> None:
        """Report how long an answer took, which is written now."""
        outcome = self._outcomes.pop(call, None)
        if outcome is not None:
            self._observe(*outcome, perf_counter() - call.received)

    async def _response(self, call: RuntimeCall) -> Message:
        match call.method:
            case "Configure":
                return self._configure(_read("ConfigureRequest", call))
            case "Synchronize":
                return await self._synchronize(_read("SynchronizeRequest", call), call)
            case "CreateContainer":
                return await self._create(_read("ContainerEvent", call), call)
            case "UpdateContainer":
                return await self._update(_read("UpdateContainerRequest", call), call)
            case _:
                await self._note(call)
                return V1ALPHA1["Empty"]()

    async def _note(self, call: RuntimeCall) -> None:
        """Take note of what is answered with an empty message."""
        match call.method:
            case "Shutdown":
                log.info("NRI runtime shuts down")
            case "StateChange":
                change = _read("StateChangeEvent", call)
                await self._event(change.event, change, call)
            case "UpdatePodSandbox":
                await self._update_sandbox(_read("UpdatePodSandboxRequest", call), call)
            case method:
                event = EVENTS.get(method)
                if event is None:
                    raise TtrpcError("UNIMPLEMENTED", f"method {words(method)}")
                kind = "PodEvent" if method.endswith("Sandbox") else "ContainerEvent"
                await self._event(event, _read(kind, call), call)

    def _configure(self, request: Message) -> Message:
        runtime = RuntimeInfo.of(request)
        self.runtime = runtime
        try:
            self._handler.configured(runtime)
        except Exception:  # the plugin is registered all the same
            log.exception("NRI handler failed", method="Configure")
        return V1ALPHA1["ConfigureResponse"](events=event_mask(self._events(runtime)))

    async def _synchronize(self, request: Message, call: RuntimeCall) -> Message:
        self._received += len(call.payload)
        if self._received > LONGEST_SYNCHRONIZE:
            raise NriProtocolError(f"more than {LONGEST_SYNCHRONIZE} bytes to synchronize")
        self._sandboxes += map(PodSandbox.of, request.pods)
        self._containers += map(RuntimeContainer.of, request.containers)
        if request.more:
            return V1ALPHA1["SynchronizeResponse"](more=True)
        self._received = 0
        sandboxes, self._sandboxes = self._sandboxes, []
        containers, self._containers = self._containers, []
        found = {"pods": str(len(sandboxes)), "containers": str(len(containers))}
        work = self._repairs(tuple(sandboxes), tuple(containers))
        updates = await self._handle(call.method, call, found, work) or []
        response = V1ALPHA1["SynchronizeResponse"](update=fitting(updates))
        # A request for the others could lock up a containerd before 2.4 (NRI before 0.12.1,
        # containerd issue 13733); comparisons write their cgroups.
        if more := len(updates) - len(response.update):
            log.warning("NRI containers not repaired", containers=more)
        self._synchronized()
        return response

    async def _repairs(
        self, sandboxes: tuple[PodSandbox, ...], containers: tuple[RuntimeContainer, ...]
    ) -> list[Message]:
        return update_messages(await self._handler.synchronize(sandboxes, containers))

    async def _create(self, request: Message, call: RuntimeCall) -> Message:
        sandbox, container = PodSandbox.of(request.pod), RuntimeContainer.of(request.container)
        spent = perf_counter() - call.received
        seconds = max(0.0, self._deadline(call.method, call) - spent - _TO_REJECT)

        async def adjusted() -> Message:
            adjustment = await self._handler.container_created(sandbox, container, seconds)
            if adjustment is None:
                return V1ALPHA1["CreateContainerResponse"]()
            return V1ALPHA1["CreateContainerResponse"](adjust=adjustment_message(adjustment))

        subject = _subject(sandbox, container)
        response = await self._handle(call.method, call, subject, adjusted(), may_reject=True)
        return response or V1ALPHA1["CreateContainerResponse"]()

    async def _update(self, request: Message, call: RuntimeCall) -> Message:
        sandbox, container = PodSandbox.of(request.pod), RuntimeContainer.of(request.container)
        requested = ContainerResources.of(request.linux_resources)

        async def updated() -> Message:
            adjustment = await self._handler.container_updated(sandbox, container, requested)
            if adjustment is None:
                return V1ALPHA1["UpdateContainerResponse"]()
            update = update_message(container.id, adjustment, ignore_failure=True)
            return V1ALPHA1["UpdateContainerResponse"](update=[update])

        subject = _subject(sandbox, container)
        response = await self._handle(call.method, call, subject, updated(), may_reject=True)
        return response or V1ALPHA1["UpdateContainerResponse"]()

    async def _update_sandbox(self, request: Message, call: RuntimeCall) -> None:
        requested = ContainerResources.of(request.linux_resources)
        sandbox = PodSandbox.of(request.pod).with_resources(requested)
        work = _calling(self._handler.sandbox_updated, sandbox)
        await self._handle(call.method, call, _subject(sandbox), work, may_reject=True)

    async def _event(self, number: int, request: Message, call: RuntimeCall) -> None:
        """Let the handler take note of an event that no answer changes; others are ignored."""
        sandbox = PodSandbox.of(request.pod)
        of_sandbox = self._of_sandboxes.get(number)
        if of_sandbox is not None:
            work = of_sandbox(sandbox)
            await self._handle(NriEvent(number).method, call, _subject(sandbox), work)
        of_container = self._of_containers.get(number)
        if of_container is not None:
            container = RuntimeContainer.of(request.container)
            subject = _subject(sandbox, container)
            work = _calling(of_container, sandbox, container)
            await self._handle(NriEvent(number).method, call, subject, work)

    async def _handle(
        self,
        method: str,
        call: RuntimeCall,
        subject: _Subject,
        work: Coroutine[None, None, ResultT],
        *,
        may_reject: bool = False,
    ) -> ResultT | None:
        """Return what a handler returns, None if it failed or was late.

        Raises `TtrpcError` if it rejected that and may do so.
        """
        outcome = "failed"
        try:
            result = await within(self._deadline(method, call), work)
            outcome = "answered"
        except LateError:
            outcome = "late"
            log.warning("NRI handler late", method=method, **subject)
            return None
        except ContainerRejectedError as error:
            if not may_reject:
                log.error("NRI handler failed", method=method, why=str(error), **subject)  # noqa: TRY400  # not a defect that a traceback shows
                return None
            outcome = "rejected"
            raise TtrpcError(error.code, error.message) from error
        except Exception:  # an error would be the runtime's error of the pod
            log.exception("NRI handler failed", method=method, **subject)
            return None
        else:
            return result
        finally:
            self._outcomes[call] = method, outcome

    def _deadline(self, method: str, call: RuntimeCall) -> float:
        seconds = self._synchronizing if method == "Synchronize" else self._seconds
        timeouts = [call.seconds]
        if self.runtime is not None:
            timeouts.append(self.runtime.request_timeout_ms / 1000)
        return min([seconds, *(_SHARE_OF_TIMEOUT * each for each in timeouts if each)])


def fitting(updates: list[Message]) -> list[Message]:
    """Return as many updates as fit in one message, in their order, the first in any case."""
    size = 0
    for at, update in enumerate(updates):
        # The tag and the length of the update in its list have at most 6 bytes.
        size += update.ByteSize() + 6
        if at and size > _MOST_UPDATES:
            return updates[:at]
    return updates


def _read(kind: str, call: RuntimeCall) -> Message:
    try:
        return V1ALPHA1[kind].FromString(call.payload)
    except DecodeError as error:
        raise NriProtocolError(f"a request of {call.method} that is not protobuf") from error


def _subject(sandbox: PodSandbox, container: RuntimeContainer | None = None) -> _Subject:
    subject = {"pod": f"{sandbox.namespace}/{sandbox.name}", "uid": sandbox.uid}
    if container is not None:
        subject["container"] = container.name
    return subject


async def _calling(function: Callable[..., None], *values: object) -> None:
    function(*values)


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

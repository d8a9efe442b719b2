"""The agent as a device plugin of the kubelet, so that the kubelet itself rejects a pod.

A pod opts in with one device of this plugin in its limits. The kubelet calls `Allocate` for it
within the pod's admission: an error there makes the pod `Failed`, with the error's words in its
status and its event. The devices are slots without meaning; an answer gives nothing to a container.

- `Allocate` has no timeout in the kubelet and holds up all admissions of the node. So it is
  answered within a second; an undecided pod passes, and its containers are rejected later.
- A kubelet that starts fails every pod that opted in until the plugin has registered. So the plugin
  serves before the kubelet does, and registers as soon as the kubelet's socket is there.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from google.protobuf.message import DecodeError

from agent.cluster.kubelet.plugin_socket import PluginSocket, PluginSocketError
from agent.progress import uncancelled
from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.device_plugins import DEVICE_PLUGIN, KUBELET_SOCKET, REGISTRATION, V1BETA1, VERSION
from agent.rpc.messages import RawMessage
from agent.rpc.server import server
from agent.rpc.sockets import socket_stamp
from agent.text import printable_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from grpc import aio

    from agent.clock import Clock
    from agent.rpc.messages import Message

log = structlog.get_logger(__name__)

#: The file name of this plugin's socket in the directory of plugins.
ENDPOINT: Final = "numawarden.sock"
#: The most containers of a node that can have the resource: more than a kubelet runs (its
#: maxPods is 110, large nodes have 250), even if each pod has four. The kubelet keeps their names
#: in its checkpoint, 9 bytes each.
SLOTS: Final = 1024
#: How long a decision may take, in seconds, so that the answer takes less than one.
DECIDING_SECONDS: Final = 0.8
#: Decisions at a time. The kubelet admits one pod after the other.
_DECISIONS: Final = 4
#: Calls at a time of each kind: of `Allocate` and the others, and of `ListAndWatch`.
_CALLS: Final = 16
#: The longest request in bytes: a container with every slot.
_LONGEST_REQUEST: Final = 64 << 10
#: The longest rejection in characters. The kubelet puts it into the pod's status and an event,
#: whose message has 1,024 at most.
_LONGEST_WORDS: Final = 800
#: How long the kubelet may take to register the plugin, in seconds: it dials for 10 s.
_REGISTER_SECONDS: Final = 15.0
#: The first and the longest pause after a registration that failed, in seconds; each is twice the
#: one before. The kubelet's socket is there a moment before the kubelet listens on it.
_FIRST_WAIT: Final = 0.005
_LONGEST_WAIT: Final = 10.0
#: The pause after which a registration that still fails is reported, in seconds.
_REPORTED_WAIT: Final = 1.0
#: How often the directory is read if it cannot be watched, in seconds.
_UNWATCHED_WAIT: Final = 1.0
#: How often the sockets are checked if no event announced a change, in seconds; and how long the
#: kubelet may take to watch the list after a registration, or again after it ceased to.
PERIOD: Final = 10.0
_OPTIONS: Final[Mapping[str, int]] = MappingProxyType(
    {"grpc.max_receive_message_length": _LONGEST_REQUEST}
)

#: Decides the pod that the kubelet admits now, until a moment of the clock: returns the words of a
#: rejection, "" if the pod is admitted, None if it is undecided. Is cancelled at that moment.
Decide: TypeAlias = "Callable[[float], Awaitable[str | None]]"


class ExclusivePlugin:
    """The plugin of `resource` in a directory of plugins (`/var/lib/kubelet/device-plugins`).

    `names` watches a directory: it yields when the watch is set and whenever a name appears or
    disappears, ends when the directory is gone, and raises `OSError`. `report` is called with the
    line that says what keeps pods that opted in from being admitted, and with "" when nothing does;
    `count` with the result of each answer to Allocate: `admitted`, `rejected` or `undecided`.
    """

    def __init__(
        self,
        directory: Path,
        resource: str,
        decide: Decide,
        names: Callable[[Path], AsyncIterator[object]],
        clock: Clock,
        report: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self._resource = resource
        self._report = report
        self._count = count
        self._decide = decide
        self._names = names
        self._clock = clock
        self._directory = directory
        self._kubelet = self._directory / KUBELET_SOCKET
        self._socket = PluginSocket(self._directory, ENDPOINT, self._make_server)
        #: The kubelet's socket (`socket_stamp`) at the last registration, and at the last attempt.
        self._registered: tuple[int, int, int] | None = None
        self._tried: tuple[int, int, int] | None = None
        self._next_wait = _FIRST_WAIT
        #: When the kubelet registered the plugin, or ceased to watch its list.
        self._watched_at = 0.0
        #: How many watches of the list are open, and how many decisions are in progress.
        self._streams = 0
        self._deciding = 0
        #: Set when the sockets may have changed.
        self._look = asyncio.Event()
        #: What was reported last.
        self._condition = ""

    @property
    def is_registered(self) -> bool:
        """Whether a kubelet has registered the plugin and watches its list."""
        return self._registered is not None and self._streams > 0

    async def serve(self) -> None:
        """Serve and register until cancelled, then end all calls and remove the socket."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(uncancelled(self._follow_names()))
                tasks.create_task(uncancelled(self._keep_registered()))
        finally:
            await self._socket.close()

    async def allocate(self, raw: bytes) -> Message:
        """Answer with nothing for each container; raises `CallError` for a rejected pod."""
        try:
            request = V1BETA1["AllocateRequest"].FromString(raw)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", "the request is not an AllocateRequest") from error
        words = await self._decided()
        if words is None:
            self._count("undecided")
        else:
            self._count("rejected" if words else "admitted")
        if words:
            raise CallError("FAILED_PRECONDITION", printable_line(words, _LONGEST_WORDS))
        nothing = [V1BETA1["ContainerAllocateResponse"]() for _ in request.container_requests]
        return V1BETA1["AllocateResponse"](container_responses=nothing)

    async def _decided(self) -> str | None:
        """Return the words of a rejection, "" for a pod that is admitted; None if undecided."""
        if self._deciding >= _DECISIONS:
            log.warning("opt-in pod not decided", why=f"{_DECISIONS} decisions are in progress")
            return None
        self._deciding += 1
        deciding = asyncio.ensure_future(self._decide(self._clock.monotonic() + DECIDING_SECONDS))
        waiting = asyncio.ensure_future(self._clock.sleep(DECIDING_SECONDS))
        deciding.add_done_callback(self._end_decision)
        try:
            await asyncio.wait((deciding, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            decided = deciding.done()
            deciding.cancel()
        if not decided:
            log.warning("opt-in pod not decided", why=f"no decision within {DECIDING_SECONDS:g} s")
            return None
        try:
            return deciding.result()
        except asyncio.CancelledError:
            log.warning("opt-in pod not decided", why="the decision was cancelled")
        except Exception as error:
            log.exception("opt-in decision failed", error=type(error).__name__)
        return None

    def _end_decision(self, decision: asyncio.Future[str | None]) -> None:
        self._deciding -= 1
        if not decision.cancelled():
            decision.exception()  # seen by its caller, unless that was too late

    async def _options(self, _request: bytes) -> Message:
        return V1BETA1["DevicePluginOptions"]()

    async def _list(self, _request: bytes) -> AsyncIterator[Message]:
        """Send the list once; the stream is open as long as the plugin is there."""
        self._streams += 1
        try:
            yield V1BETA1["ListAndWatchResponse"](
                devices=[{"ID": f"slot-{n}", "health": "Healthy"} for n in range(SLOTS)]
            )
            await asyncio.Event().wait()
        finally:
            self._streams -= 1
            self._watched_at = self._clock.monotonic()
            self._look.set()

    def _make_server(self, path: Path) -> aio.Server:
        return server(
            path,
            DEVICE_PLUGIN,
            {
                "GetDevicePluginOptions": (RawMessage, self._options),
                "Allocate": (RawMessage, self.allocate),
            },
            streams={"ListAndWatch": (RawMessage, self._list)},
            concurrent=_CALLS,
            options=_OPTIONS,
        )

    async def _follow_names(self) -> None:
        """Look whenever a name in the directory appears or disappears."""
        while True:
            wait = _FIRST_WAIT
            try:
                self._socket.make_directory()
                async for _ in self._names(self._directory):
                    self._look.set()
            except (OSError, PluginSocketError):
                wait = _UNWATCHED_WAIT  # no watch is left, or what the next look reports
            await self._clock.sleep(wait)
            self._look.set()

    async def _keep_registered(self) -> None:
        while True:
            self._look.clear()
            await self._wait(await self._step())

    async def _step(self) -> float:
        """Serve and register if need be; return after how many seconds to look again."""
        try:
            linked = await self._socket.serve()
        except PluginSocketError as error:
            self._note_unserved(str(error))
            return _LONGEST_WAIT
        kubelet = socket_stamp(self._kubelet)
        if kubelet != self._tried:
            self._tried, self._next_wait = kubelet, _FIRST_WAIT
        if kubelet is None:
            self._registered = None
            self._note("")
            return PERIOD
        if linked or kubelet != self._registered:
            return await self._register(kubelet)
        if self._streams:
            return PERIOD
        unwatched = self._clock.monotonic() - self._watched_at
        return PERIOD - unwatched if unwatched < PERIOD else await self._register(kubelet)

    async def _register(self, kubelet: tuple[int, int, int]) -> float:
        """Register with the kubelet of a socket; return after how many seconds to look again."""
        self._registered = None
        call = asyncio.ensure_future(self._call_register())
        try:
            while not call.done():
                looking = asyncio.ensure_future(self._look.wait())
                await asyncio.wait((call, looking), return_when=asyncio.FIRST_COMPLETED)
                looking.cancel()
                self._look.clear()
                if not (call.done() or self._is_with(kubelet)):
                    return 0.0
        finally:
            call.cancel()
        error = call.exception()
        if isinstance(error, CallError | None) and not self._is_with(kubelet):
            return 0.0  # what the former kubelet answered, while the next one has started
        if error is None:
            self._registered, self._watched_at = kubelet, self._clock.monotonic()
            self._next_wait = _FIRST_WAIT
            self._note("")
            log.info("exclusive plugin registered", resource=self._resource)
            return PERIOD
        if not isinstance(error, CallError):
            raise error
        wait, self._next_wait = self._next_wait, min(2 * self._next_wait, _LONGEST_WAIT)
        if wait > _REPORTED_WAIT:
            self._note_unregistered(printable_line(str(error), _LONGEST_WORDS))
        return wait

    def _is_with(self, kubelet: tuple[int, int, int]) -> bool:
        """Whether no other kubelet has started, which would have removed the plugin's socket."""
        return self._socket.is_linked and socket_stamp(self._kubelet) == kubelet

    async def _call_register(self) -> None:
        client = Client(self._kubelet, REGISTRATION)
        request = V1BETA1["RegisterRequest"](
            version=VERSION, endpoint=ENDPOINT, resource_name=self._resource
        )
        try:
            await client.call("Register", request, V1BETA1["Empty"], _REGISTER_SECONDS)
        finally:
            await client.close()

    async def _wait(self, seconds: float) -> None:
        """Wait until there is something to look at, at most `seconds`."""
        looking = asyncio.ensure_future(self._look.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((looking, sleeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
            sleeping.cancel()

    def _note_unserved(self, error: str) -> None:
        condition = f"{self._resource} is not offered to the kubelet: {error}"
        if condition != self._condition:
            log.warning("exclusive plugin not served", error=error)
        self._note(condition)

    def _note_unregistered(self, error: str) -> None:
        condition = (
            f"the kubelet has not registered {self._resource} ({error}), so it rejects the pods "
            "that ask for it; see whether the kubelet runs, and its log"
        )
        if condition != self._condition:
            log.warning("exclusive plugin not registered", resource=self._resource, error=error)
        self._note(condition)

    def _note(self, condition: str) -> None:
        if condition != self._condition:
            self._condition = condition
            self._report(condition)

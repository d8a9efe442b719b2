"""The agent as a device plugin of the kubelet, so that the kubelet itself rejects a pod.

A pod opts in with one device of this plugin in its limits. The kubelet calls `Allocate` for it
within the pod's admission: an error there makes the pod `Failed`, with the error's words in its
status and its event. The devices are slots without meaning, and what the answer gives is nothing.

`Allocate` has no timeout in the kubelet and holds up every other admission of the node, so it is
answered within a second whatever happens; an undecided pod is let pass, and its containers are
rejected later. A kubelet that starts fails every pod that opted in until the plugin has registered,
so the plugin serves before it, and registers as soon as the kubelet's socket is there.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from google.protobuf.message import DecodeError

from agent.files import risk_above, risk_of
from agent.progress import uncancelled
from agent.rpc import (
    DEVICE_PLUGIN,
    KUBELET_SOCKET,
    LONGEST_SOCKET,
    REGISTRATION,
    V1BETA1,
    VERSION,
    CallError,
    Client,
    RawMessage,
    is_socket,
    server,
    socket_file,
    socket_stamp,
)
from agent.text import printable_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from grpc import aio

    from agent.clock import Clock
    from agent.rpc import Message

#: The kubelet removes the sockets beside its own, but no directories.
_BELOW: Final = ".numawarden"
_BOUND: Final = "plugin.sock"
#: As the kubelet makes the directory of plugins.
_DIRECTORY_MODE: Final = 0o750
_OWN_MODE: Final = 0o700
#: Connecting needs the right to write: the kubelet is root.
_SOCKET_MODE: Final = 0o600

log = structlog.get_logger(__name__)

#: The file name of this plugin's socket in the directory of plugins.
ENDPOINT: Final = "numawarden.sock"
#: How many containers of a node can have the resource at a time: more than a kubelet runs (its
#: maxPods is 110, large nodes have 250), even if each pod has four. The kubelet keeps their names
#: in its checkpoint, 9 bytes each.
SLOTS: Final = 1024
#: How long a decision may take, in seconds, so that the answer takes less than one.
DECIDING_SECONDS: Final = 0.8
#: Decisions at a time. The kubelet admits one pod after the other.
_DECISIONS: Final = 4
#: Calls at a time of each kind: of `Allocate` and the others, and of `ListAndWatch`.
_CALLS: Final = 16
#: In bytes: a container with every slot.
_LONGEST_REQUEST: Final = 64 << 10
#: The longest rejection in characters. The kubelet puts it into the pod's status and an event,
#: whose message has 1,024 at most.
_LONGEST_WORDS: Final = 800
#: How long the kubelet may take to register the plugin, in seconds: it dials for 10 s.
_REGISTER_SECONDS: Final = 15.0
#: After a failed registration, in seconds: the first wait, doubled with each further one, and the
#: longest. The kubelet's socket is there a moment before the kubelet listens on it.
_FIRST_WAIT: Final = 0.005
_LONGEST_WAIT: Final = 10.0
#: A registration that still fails after this wait is reported, in seconds.
_REPORTED_WAIT: Final = 1.0
#: How often the directory is looked at where no watch can be set, in seconds.
_UNWATCHED_WAIT: Final = 1.0
#: How often what events missed is looked for, in seconds; and how long the kubelet may take to
#: watch the list after a registration, or again after it ceased to.
PERIOD: Final = 10.0
_OPTIONS: Final[Mapping[str, int]] = MappingProxyType(
    {"grpc.max_receive_message_length": _LONGEST_REQUEST}
)

#: Decides the pod that the kubelet admits now, until a moment of the clock: returns the words of a
#: rejection, "" if the pod is admitted, None if it is undecided. Is cancelled at that moment.
Decide: TypeAlias = "Callable[[float], Awaitable[str | None]]"


class PluginSocketError(Exception):
    """The socket cannot be served; the text says why and what to do."""


class PluginSocket:
    """The socket `name` in the directory of plugins, and the server behind it.

    Every starting kubelet clears the directory, and binding a server again takes longer than a
    kubelet waits before it admits its first pod. So the server is bound in a directory of its own
    below the kubelet's, which the kubelet leaves alone, and its socket is linked to where the
    kubelet looks for it: that is one call when the link was removed.

    `make` returns a server that is bound to a path and not started.
    """

    def __init__(self, directory: Path, name: str, make: Callable[[Path], aio.Server]) -> None:
        self.path = directory / name
        self._directory = directory
        self._bound = directory / _BELOW / _BOUND
        self._make = make
        self._server: aio.Server | None = None
        self._file: tuple[int, int] | None = None

    @property
    def is_linked(self) -> bool:
        """Whether the kubelet finds this process's socket."""
        return self._file is not None and socket_file(self.path) == self._file

    def make_directory(self) -> None:
        """Make the directory of plugins as the kubelet does; raises `PluginSocketError`."""
        try:
            self._directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            risk = risk_of(self._directory, self._directory.stat()) or risk_above(self._directory)
        except OSError as error:
            raise PluginSocketError(
                f"{self._directory} cannot be used: {error.strerror}; create it (install -d -m "
                f"0750 {self._directory}), then restart the agent"
            ) from error
        if risk is not None:
            raise PluginSocketError(f"{risk}; {risk.remedy}")

    async def serve(self) -> bool:
        """Serve, and link the socket; return False if both was so already.

        Raises `PluginSocketError`.
        """
        if self.is_linked:
            return False
        self.make_directory()
        try:
            if self._file is None or socket_file(self._bound) != self._file:
                await self._start()
            if is_socket(self.path):
                self.path.unlink()
            self.path.hardlink_to(self._bound)
        except FileExistsError:
            raise PluginSocketError(
                f"{self.path} is not a socket, so it is not replaced; remove it"
            ) from None
        except (OSError, RuntimeError) as error:
            raise PluginSocketError(f"{self.path} cannot be made: {error}") from error
        return True

    async def close(self) -> None:
        """End all calls and remove the socket, unless another process replaced it."""
        if self.is_linked:
            self.path.unlink(missing_ok=True)
        await self._stop()

    async def _start(self) -> None:
        await self._stop()
        length = max(len(str(path).encode()) for path in (self._bound, self.path))
        if length > LONGEST_SOCKET:
            raise PluginSocketError(
                f"the path {self._bound} has {length} bytes, a socket's has at most "
                f"{LONGEST_SOCKET}; a kubelet's directory (agent.kubelet.directory) needs a "
                "shorter path"
            )
        self._bound.parent.mkdir(mode=_OWN_MODE, exist_ok=True)
        self._server = self._make(self._bound)
        self._bound.chmod(_SOCKET_MODE)
        await self._server.start()
        self._file = socket_file(self._bound)

    async def _stop(self) -> None:
        self._file = None
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)


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
        self._streams = 0
        self._deciding = 0
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

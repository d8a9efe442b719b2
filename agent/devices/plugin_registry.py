"""The kubelet's plugin watcher: plugins that are found by their own sockets in a directory.

In: the sockets at and below the directory. Out: plugins registered with a `Registrar`, and a
condition for each that cannot be. A socket goes through these steps (pkg/kubelet/pluginmanager):

1. A new socket: its plugin is asked who it is (`pluginregistration/v1`, GetInfo). A plugin of
   another type (CSI, DRA) is a kubelet's, so it is asked nothing more.
2. The plugin is registered, and informed of the outcome (NotifyRegistrationStatus).
3. A registration that failed is tried again, after a pause that doubles.
4. The socket is gone, or is another file: the plugin is disconnected.

Directories that not only root can change are not looked into.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import structlog

from agent.devices.registration import REGISTERING, read_plugin_info, registrant_of
from agent.files import risk_above, risk_of
from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.device_plugins import PLUGIN_REGISTRATION, PLUGIN_WATCHER
from agent.rpc.messages import RawMessage
from agent.rpc.sockets import LONGEST_SOCKET, socket_stamp
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.clock import Clock
    from agent.devices.registration import Registrant
    from agent.files import PathRisk
    from agent.rpc.client import SocketClient

    Watch: TypeAlias = Callable[[Path], AsyncIterator[None]]
    #: Distinguishes a socket from the next one of its path (`socket_stamp`).
    Stamp: TypeAlias = tuple[int, int, int]

log = structlog.get_logger(__name__)

#: How often the directory is read, in seconds, also if nothing announced a change.
PERIOD: Final = 2.0
#: The first pause after a registration that failed, in seconds, and the longest; the kubelet's.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 122.0
#: The type of device plugins, in the kubelet's words.
DEVICE_PLUGIN_TYPE: Final = "DevicePlugin"
#: The shortest time between two readings of the directory, in seconds.
_BETWEEN_READINGS: Final = 0.1
#: The most directories that are looked into.
_MOST_DIRECTORIES: Final = 64


class Registrar(Protocol):
    """Registers plugins; `agent.devices.plugins.DevicePlugins`, also of those of `kubelet.sock`."""

    @property
    def is_serving(self) -> bool:
        """Whether this process serves plugins; if not, a kubelet may."""

    async def connect(self, registrant: Registrant) -> None:
        """Connect a plugin, and follow its lists; raises `CallError`."""

    def disconnect(self, registrant: Registrant, why: str) -> None:
        """Lose a plugin, unless another one replaced it."""

    def update(self) -> None:
        """Note that the conditions may have changed."""


class PluginRegistry:
    """Registers the device plugins of a directory for as long as their sockets are there.

    `watch` yields whenever a name in the directory changes. `seconds` is the deadline of a call.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        seconds: float,
        registrar: Registrar,
        watch: Watch | None,
    ) -> None:
        self.directory = directory
        self._clock = clock
        self._seconds = seconds
        self._registrar = registrar
        self._watch = watch
        self._sockets: dict[Path, _Socket] = {}
        #: Why directories and sockets were left out of the last reading, a line each.
        self._faults: list[str] = []
        self._turns = asyncio.Semaphore(REGISTERING)

    def conditions(self) -> Iterator[str]:
        """Yield why plugins of the directory are not registered, a line each."""
        yield from self._faults
        for path, socket in sorted(self._sockets.items()):
            if socket.fault:
                yield f"the plugin at {path} is not registered: {socket.fault}"

    async def serve(self) -> None:
        """Follow the directory until cancelled; then forget all plugins."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._repeat())
                tasks.create_task(self._follow())
        finally:
            for path in tuple(self._sockets):
                self._forget(path)

    async def _repeat(self) -> None:
        while True:
            self.read()
            await self._clock.sleep(PERIOD)

    async def _follow(self) -> None:
        """Read the directory at each change of a name; `_repeat` finds what this misses."""
        while self._watch is not None:
            with suppress(OSError):
                async for _ in self._watch(self.directory):
                    self.read()
                    await self._clock.sleep(_BETWEEN_READINGS)
            await self._clock.sleep(PERIOD)

    def read(self) -> None:
        """Register the plugins of new sockets, and disconnect those whose socket is gone."""
        stamps = self._stamps() if self._registrar.is_serving else {}
        for path, socket in tuple(self._sockets.items()):
            if stamps.get(path) != socket.stamp:
                self._forget(path)
        for path, stamp in stamps.items():
            if path not in self._sockets:
                socket = self._sockets[path] = _Socket(stamp)
                socket.task = asyncio.create_task(self._register(path, socket))
        self._registrar.update()

    def _stamps(self) -> dict[Path, Stamp]:
        """Return the sockets of directories that only root can change; set `_faults`."""
        self._faults = []
        if not self._is_safe(self.directory, risk_above):
            return {}
        return dict(self._read_sockets())

    def _read_sockets(self) -> Iterator[tuple[Path, Stamp]]:
        """Yield the sockets at and below the directory, without hidden ones, as the kubelet."""
        for number, (place, directories, names) in enumerate(os.walk(self.directory)):
            if number == _MOST_DIRECTORIES:
                self._faults.append(
                    f"no plugin of {place} and later directories is registered: "
                    f"{_MOST_DIRECTORIES} are looked into; remove some below {self.directory}"
                )
                return
            if not self._is_safe(Path(place), lambda path: risk_of(path, path.stat())):
                directories.clear()
                continue
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            for name in sorted(names):
                path = Path(place, name)
                stamp = None if name.startswith(".") else socket_stamp(path)
                if stamp is None:
                    continue
                if (length := len(os.fsencode(path))) <= LONGEST_SOCKET:
                    yield path, stamp
                    continue
                self._faults.append(
                    f"the plugin at {path} is not registered: the path has {length} bytes, a "
                    f"socket's has at most {LONGEST_SOCKET}; give the socket a shorter name, or "
                    "set a shorter agent.devicePlugins.registryDirectory"
                )

    def _is_safe(self, directory: Path, risk_in: Callable[[Path], PathRisk | None]) -> bool:
        """Return whether a directory is there and has no risk; a risk is a fault."""
        try:
            risk = risk_in(directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._faults.append(f"{directory} cannot be read: {error.strerror}")
            return False
        if risk is not None:
            self._faults.append(f"no plugin of {directory} is registered: {risk}; {risk.remedy}")
        return risk is None

    def _forget(self, path: Path) -> None:
        socket = self._sockets.pop(path)
        if socket.task is not None:
            socket.task.cancel()
        if socket.registrant is not None:
            self._registrar.disconnect(socket.registrant, f"its socket {path} was removed")

    async def _register(self, path: Path, socket: _Socket) -> None:
        """Register the plugin of a socket; try again until that succeeds."""
        pause = FIRST_PAUSE
        while True:
            client = Client(path, PLUGIN_WATCHER)
            try:
                async with self._turns:
                    await self._register_once(path, socket, client)
            except CallError as error:
                if socket.fault != error.message:
                    log.warning("plugin not registered", socket=str(path), error=str(error))
                socket.fault = error.message or error.code
            else:
                socket.fault = ""
                return
            finally:
                await client.close()
                self._registrar.update()
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _register_once(self, path: Path, socket: _Socket, client: SocketClient) -> None:
        request = PLUGIN_REGISTRATION["InfoRequest"]()
        raw = await client.call("GetInfo", request, RawMessage, self._seconds)
        info = read_plugin_info(raw)
        if info.type != DEVICE_PLUGIN_TYPE:
            log.info("plugin ignored", socket=str(path), type=shown(info.type))
            return
        try:
            registrant = registrant_of(info, path)
            await self._registrar.connect(registrant)
        except CallError as error:
            text = f"RegisterPlugin error -- plugin registration failed with err: {error.message}"
            await self._notify(client, registered=False, error=text)
            raise
        socket.registrant = registrant
        try:
            await self._notify(client, registered=True)
        except CallError as error:
            log.warning("plugin takes no status", socket=str(path), error=str(error))

    async def _notify(self, client: SocketClient, *, registered: bool, error: str = "") -> None:
        status = PLUGIN_REGISTRATION["RegistrationStatus"](
            plugin_registered=registered, error=error
        )
        await client.call("NotifyRegistrationStatus", status, RawMessage, self._seconds)


class _Socket:
    """A socket in the directory and its plugin."""

    def __init__(self, stamp: Stamp) -> None:
        self.stamp = stamp
        #: Why the plugin is not registered, "" if it is or was not tried yet.
        self.fault = ""
        #: Set once the plugin is registered.
        self.registrant: Registrant | None = None
        #: Registers the plugin.
        self.task: asyncio.Task[None] | None = None

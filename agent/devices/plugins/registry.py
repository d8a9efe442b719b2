"""The kubelet's plugin watcher: plugins that are found by their sockets in a directory.

A plugin serves `pluginregistration/v1` there: it is asked who it is, registered, and informed what
became of it (pkg/kubelet/pluginmanager). What other types of plugins serve (CSI, DRA) is the
business of a kubelet, so that these are not answered.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import structlog
from google.protobuf.message import DecodeError

from agent.devices.plugins.limits import MOST_RESOURCES
from agent.devices.plugins.registration import Registrant
from agent.pods.identity import extended_resource_fault
from agent.rpc.calls import CallError, Client
from agent.rpc.device_plugin import PLUGIN_REGISTRATION, PLUGIN_WATCHER, VERSION
from agent.rpc.messages import RawMessage
from agent.rpc.socket_files import LONGEST_SOCKET, socket_stamp
from agent.safe_files import risk_above, risk_of
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.clock import Clock
    from agent.rpc.calls import SocketClient
    from agent.rpc.messages import Message
    from agent.safe_files import PathRisk

    #: Yields whenever a name in a directory appears or disappears; raises `OSError`.
    Watch: TypeAlias = Callable[[Path], AsyncIterator[None]]

log = structlog.get_logger(__name__)

#: How often the directory is read even if nothing announced a change, in seconds.
PERIOD: Final = 2.0
#: How long after a registration that failed the next one is tried, in seconds; each further one
#: waits twice as long. The kubelet's figures.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 122.0
#: The type of device plugins, in the kubelet's words.
DEVICE_PLUGIN_TYPE: Final = "DevicePlugin"
#: The shortest time between two readings of the directory, in seconds.
_BETWEEN_READINGS: Final = 0.1
#: The most directories that are looked into, and the longest answer in bytes.
_MOST_DIRECTORIES: Final = 64
_LONGEST_INFO: Final = 4096


class Registrar(Protocol):
    """Whom plugins are registered with; the same over `kubelet.sock`."""

    @property
    def is_serving(self) -> bool:
        """Whether plugins are this process's, and not those of a kubelet."""

    async def connect(self, registrant: Registrant) -> None:
        """Connect a plugin, and follow its lists; raises `CallError`."""

    def disconnect(self, registrant: Registrant, why: str) -> None:
        """Lose a plugin, unless another one replaced it."""

    def update(self) -> None:
        """Note that the conditions may have changed."""


class _Found:
    """A socket in the directory, and what became of it.

    `stamp` distinguishes one file from the next, `fault` says why the plugin is not registered.
    """

    def __init__(self, stamp: tuple[int, int, int]) -> None:
        self.stamp = stamp
        self.fault = ""
        self.registered: Registrant | None = None
        self.task: asyncio.Task[None] | None = None


class PluginRegistry:
    """Registers the device plugins whose sockets are in a directory, as long as they are.

    `watch` yields whenever a name in the directory changes.
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
        self._found: dict[Path, _Found] = {}
        self._faults: list[str] = []

    def conditions(self) -> Iterator[str]:
        """Yield why plugins of the directory are not registered, a line each."""
        yield from self._faults
        for path, found in sorted(self._found.items()):
            if found.fault:
                yield f"the plugin at {path} is not registered: {found.fault}"

    async def serve(self) -> None:
        """Follow the directory until cancelled; then forget all plugins."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._repeat())
                tasks.create_task(self._follow())
        finally:
            for path in tuple(self._found):
                self._forget(path)

    async def _repeat(self) -> None:
        while True:
            self.read()
            await self._clock.sleep(PERIOD)

    async def _follow(self) -> None:
        """Read the directory at every change of it; the periodic reading finds what is missed."""
        while self._watch is not None:
            with suppress(OSError):
                async for _ in self._watch(self.directory):
                    self.read()
                    await self._clock.sleep(_BETWEEN_READINGS)
            await self._clock.sleep(PERIOD)

    def read(self) -> None:
        """Register the plugins of new sockets, and disconnect those whose socket is gone."""
        stamps = self._stamps() if self._registrar.is_serving else {}
        for path, found in tuple(self._found.items()):
            if stamps.get(path) != found.stamp:
                self._forget(path)
        for path, stamp in stamps.items():
            if path not in self._found:
                found = self._found[path] = _Found(stamp)
                found.task = asyncio.create_task(self._register(path, found))
        self._registrar.update()

    def _stamps(self) -> dict[Path, tuple[int, int, int]]:
        """Return the sockets of directories that only root can change, and sets `_faults`."""
        self._faults = []
        if not self._is_safe(self.directory, risk_above):
            return {}
        return dict(islice(self._sockets(), MOST_RESOURCES))

    def _sockets(self) -> Iterator[tuple[Path, tuple[int, int, int]]]:
        """Yield the sockets at and below the directory, without hidden ones, as the kubelet."""
        for place, directories, names in islice(os.walk(self.directory), _MOST_DIRECTORIES):
            if not self._is_safe(Path(place), lambda path: risk_of(path, path.stat())):
                directories.clear()
                continue
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            for name in sorted(names):
                path = Path(place, name)
                stamp = None if name.startswith(".") else socket_stamp(path)
                if stamp is not None and len(os.fsencode(path)) <= LONGEST_SOCKET:
                    yield path, stamp

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
        found = self._found.pop(path)
        if found.task is not None:
            found.task.cancel()
        if found.registered is not None:
            self._registrar.disconnect(found.registered, f"its socket {path} was removed")

    async def _register(self, path: Path, found: _Found) -> None:
        """Register the plugin of a socket, again until that succeeds."""
        pause = FIRST_PAUSE
        while True:
            client = Client(path, PLUGIN_WATCHER)
            try:
                await self._register_once(path, found, client)
            except CallError as error:
                if found.fault != error.message:
                    log.warning("plugin not registered", socket=str(path), error=str(error))
                found.fault = error.message or error.code
            else:
                found.fault = ""
                return
            finally:
                await client.close()
                self._registrar.update()
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _register_once(self, path: Path, found: _Found, client: SocketClient) -> None:
        info = _decoded(
            await client.call(
                "GetInfo", PLUGIN_REGISTRATION["InfoRequest"](), RawMessage, self._seconds
            )
        )
        if info.type != DEVICE_PLUGIN_TYPE:
            log.info("plugin ignored", socket=str(path), type=shown(info.type))
            return
        try:
            registrant = _registrant(info, path)
            await self._registrar.connect(registrant)
        except CallError as error:
            what = f"RegisterPlugin error -- plugin registration failed with err: {error.message}"
            await self._notify(client, registered=False, error=what)
            raise
        found.registered = registrant
        try:
            await self._notify(client, registered=True)
        except CallError as error:
            log.warning("plugin takes no status", socket=str(path), error=str(error))

    async def _notify(self, client: SocketClient, *, registered: bool, error: str = "") -> None:
        status = PLUGIN_REGISTRATION["RegistrationStatus"](
            plugin_registered=registered, error=error
        )
        await client.call("NotifyRegistrationStatus", status, RawMessage, self._seconds)


def _decoded(raw: bytes) -> Message:
    if len(raw) > _LONGEST_INFO:
        raise CallError("INVALID_ARGUMENT", f"its PluginInfo has more than {_LONGEST_INFO} bytes")
    try:
        return PLUGIN_REGISTRATION["PluginInfo"].FromString(raw)
    except DecodeError as error:
        raise CallError("INVALID_ARGUMENT", "its answer is not a PluginInfo") from error


def _registrant(info: Message, path: Path) -> Registrant:
    """Return who a plugin is; raises `CallError` with the kubelet's words where it has some.

    Without an endpoint the plugin serves devices on the socket with which it registers.
    """
    versions = tuple(info.supported_versions)
    if VERSION not in versions:
        raise CallError(
            "INVALID_ARGUMENT",
            f"manager version, {VERSION}, is not among plugin supported versions "
            f"[{' '.join(shown(each) for each in versions)}]",
        )
    fault = extended_resource_fault(info.name)
    if fault is not None:
        raise CallError(
            "INVALID_ARGUMENT",
            f"invalid name of device plugin socket: the ResourceName {shown(info.name)} is "
            f"invalid: {fault}",
        )
    endpoint = info.endpoint or str(path)
    if not (endpoint.startswith("/") and endpoint.isprintable()):
        raise CallError("INVALID_ARGUMENT", f"endpoint {shown(endpoint)} is not an absolute path")
    if len(os.fsencode(endpoint)) > LONGEST_SOCKET:
        raise CallError(
            "INVALID_ARGUMENT",
            f"endpoint {shown(endpoint)} has more than the {LONGEST_SOCKET} bytes of a socket's "
            "path",
        )
    return Registrant(info.name, Path(endpoint))

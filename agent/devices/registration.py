"""How device plugins register: over a socket in a directory, or by their own sockets in another.

`PluginDirectory` is the directory of `kubelet.sock`. Its path is fixed in most plugins, so a
kubelet may serve it at the same time or start later. The socket is made under another name and
linked to its own: a link never replaces a file, so that a kubelet's socket made at the same moment
stays; and gRPC, which removes the name that it was bound to when it stops, does not remove the
socket of a kubelet. `read_registration` says who registers there.

`PluginRegistry` is the kubelet's plugin watcher: plugins that serve `pluginregistration/v1` in a
directory are asked who they are, registered, and informed what became of it
(pkg/kubelet/pluginmanager). What other types of plugins serve (CSI, DRA) is the business of a
kubelet, so that these are not answered.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import structlog
from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.devices.plugin_limits import LONGEST_REGISTRATION, MOST_RESOURCES
from agent.files import risk_above, risk_of
from agent.pods.model import extended_resource_fault
from agent.rpc import (
    KUBELET_SOCKET,
    LONGEST_SOCKET,
    PLUGIN_REGISTRATION,
    PLUGIN_WATCHER,
    V1BETA1,
    VERSION,
    CallError,
    Client,
    RawMessage,
    is_socket,
    socket_file,
    socket_stamp,
)
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.clock import Clock
    from agent.files import PathRisk
    from agent.rpc import Message, SocketClient

    Watch: TypeAlias = Callable[[Path], AsyncIterator[None]]

log = structlog.get_logger(__name__)

#: The name under which the socket is made.
UNLINKED_SOCKET: Final = ".numawarden"
BoundT = TypeVar("BoundT")
_DIRECTORY_MODE: Final = 0o750
#: That of the kubelet's socket: connecting needs the right to write, so only root can.
_SOCKET_MODE: Final = 0o755
_FREE: Final = frozenset((errno.ECONNREFUSED, errno.ENOENT))


class DirectoryError(Exception):
    """The directory cannot be served; the text says why and what to do."""


class PluginDirectory:
    """The directory, while this process serves it or waits until it can."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / KUBELET_SOCKET
        self._served: tuple[int, int] | None = None

    @property
    def is_served(self) -> bool:
        """Whether `kubelet.sock` is the socket that this process linked."""
        return self._served is not None and self._served == socket_file(self.socket)

    def check_free(self) -> None:
        """Raise `DirectoryError` if another process serves the directory, or it is not usable."""
        length = len(os.fsencode(self.socket))
        if length > LONGEST_SOCKET:
            raise DirectoryError(
                f"the path {self.socket} has {length} bytes, a socket's has at most "
                f"{LONGEST_SOCKET}; set a shorter agent.devicePlugins.directory"
            )
        try:
            self.path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            risk = risk_of(self.path, self.path.stat()) or risk_above(self.path)
        except OSError as error:
            raise DirectoryError(
                f"{self.path} cannot be used: {error.strerror}; create it (install -d -m 0750 "
                f"{self.path}) or set agent.devicePlugins.directory"
            ) from error
        if risk is not None:
            raise _untrusted(risk)
        if _answers(self.socket):
            raise DirectoryError(
                f"another process answers on {self.socket}, a kubelet or another agent; stop it, "
                "or set agent.devicePlugins.directory"
            )

    def remove_sockets(self) -> None:
        """Remove all sockets as the kubelet does at its start, so that plugins register again.

        Other files stay, such as the kubelet's checkpoint. Raises `DirectoryError`.
        """
        try:
            for entry in self.path.iterdir():
                if is_socket(entry):
                    entry.unlink()
        except OSError as error:
            raise DirectoryError(f"{self.path} cannot be cleared: {error}") from error

    def link(self, bind: Callable[[Path], BoundT]) -> BoundT:
        """Have `bind` make the socket, give it its name; return what `bind` returned.

        Raises `DirectoryError`.
        """
        unlinked = self.path / UNLINKED_SOCKET
        try:
            bound = bind(unlinked)
            unlinked.chmod(_SOCKET_MODE)
            if is_socket(self.socket):
                self.socket.unlink()
            self.socket.hardlink_to(unlinked)
            self._served = socket_file(unlinked)
        except (OSError, RuntimeError) as error:
            raise DirectoryError(f"{self.socket} cannot be made: {error}") from error
        finally:
            unlinked.unlink(missing_ok=True)
        return bound

    def unlink(self) -> None:
        """Remove the socket, unless another process replaced it."""
        if self.is_served:
            self.socket.unlink()
        self._served = None


def _untrusted(risk: PathRisk) -> DirectoryError:
    return DirectoryError(f"{risk}; {risk.remedy}")


def _answers(path: Path) -> bool:
    """Return whether a process accepts connections on a socket; False also without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(0)
        code = client.connect_ex(os.fsencode(path))
    # EAGAIN: the listener has many connections that it did not accept yet.
    return code not in _FREE and (code in (0, errno.EAGAIN) or is_socket(path))


#: Go's gRPC answers with this code where a method returns an error without one, as the kubelet's.
UNKNOWN: Final = "UNKNOWN"
INVALID: Final = "INVALID_ARGUMENT"
#: So many plugins may register at the same time by either way: each may take the deadline of its
#: options, and one that does not serve its socket yet keeps no other one waiting.
REGISTERING: Final = MOST_RESOURCES


class Registrant(Struct, frozen=True):
    """A resource and the socket of its plugin."""

    resource: str
    socket: Path


def read_registration(raw: bytes, directory: Path) -> Registrant:
    """Return who registers; raises `CallError` with the kubelet's words where it has some.

    The options of a RegisterRequest are ignored, as by the kubelet: those that the plugin answers
    to GetDevicePluginOptions count.
    """
    if len(raw) > LONGEST_REGISTRATION:
        raise CallError(INVALID, f"the RegisterRequest has more than {LONGEST_REGISTRATION} bytes")
    try:
        request = V1BETA1["RegisterRequest"].FromString(raw)
    except DecodeError as error:
        raise CallError(INVALID, "the request is not a RegisterRequest") from error
    if request.version != VERSION:
        raise CallError(
            UNKNOWN,
            f"requested API version {shown(request.version)} is not supported by kubelet. "
            f'Supported version is ["{VERSION}"]',
        )
    resource: str = request.resource_name
    fault = extended_resource_fault(resource)
    if fault is not None:
        raise CallError(UNKNOWN, f"the ResourceName {shown(resource)} is invalid: {fault}")
    return Registrant(resource, directory / _endpoint(request.endpoint, directory))


def _endpoint(name: str, directory: Path) -> str:
    if not name or "/" in name or name in (".", "..", KUBELET_SOCKET) or not name.isprintable():
        raise CallError(
            INVALID,
            f"endpoint {shown(name)} is not the file name of a plugin's socket in {directory}",
        )
    length = len(str(directory / name).encode())
    if length > LONGEST_SOCKET:
        raise CallError(
            INVALID,
            f"the path of endpoint {shown(name)} has {length} bytes, a socket's has at most "
            f"{LONGEST_SOCKET}",
        )
    return name


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
        self._turns = asyncio.Semaphore(REGISTERING)

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
        return dict(self._sockets())

    def _sockets(self) -> Iterator[tuple[Path, tuple[int, int, int]]]:
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
                async with self._turns:
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

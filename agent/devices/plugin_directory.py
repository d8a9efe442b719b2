"""The directory in which device plugins register: `kubelet.sock`, served by this process.

In: the path of the directory, and what answers a registration. Out: the served socket, or the
fault that keeps this process from serving it. The path is fixed in most plugins, so a kubelet may
serve the same directory or start later. Two things protect a kubelet's socket:

- The socket is made under another name and linked to `kubelet.sock`. A link never replaces a file,
  so a socket that a kubelet makes at the same moment stays.
- gRPC, when it stops, removes the name that it was bound to: the other one.
"""

from __future__ import annotations

import errno
import math
import os
import socket
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from agent.devices.plugin_limits import GRACE
from agent.devices.registration import REGISTERING
from agent.files import risk_above, risk_of
from agent.rpc.device_plugins import KUBELET_SOCKET, REGISTRATION
from agent.rpc.messages import RawMessage
from agent.rpc.server import server
from agent.rpc.sockets import LONGEST_SOCKET, is_socket, socket_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from grpc import aio

    from agent.clock import Clock
    from agent.rpc.messages import Message

log = structlog.get_logger(__name__)

#: The name under which the socket is made.
UNLINKED_SOCKET: Final = ".numawarden"
_DIRECTORY_MODE: Final = 0o750
#: That of the kubelet's socket: connecting needs the right to write, so only root can.
_SOCKET_MODE: Final = 0o755
#: No process listens on the socket, or it does not exist.
_FREE: Final = frozenset((errno.ECONNREFUSED, errno.ENOENT))

BoundT = TypeVar("BoundT")


class DirectoryError(Exception):
    """The directory cannot be served; the text says why and what to do."""


class RegistrationServer:
    """Serves a directory while no other process does; `register` answers a RegisterRequest."""

    def __init__(
        self, directory: Path, register: Callable[[bytes], Awaitable[Message]], clock: Clock
    ) -> None:
        #: Why the directory is not served, "" while it is.
        self.fault = ""
        self._directory = PluginDirectory(directory)
        self._register = register
        self._clock = clock
        self._server: aio.Server | None = None
        #: When another process had removed the socket; long ago once a plugin registered again.
        self._removed_at = -math.inf

    @property
    def is_serving(self) -> bool:
        """Whether this process serves the directory."""
        return self._server is not None

    def conditions(self) -> Iterator[str]:
        """Yield what is not as it should be, a line each."""
        if self.fault:
            yield self.fault
        if self._clock.monotonic() - self._removed_at < GRACE:
            yield (
                f"another process removed {self._directory.socket}, it is served again; plugins "
                "that watch it register again"
            )

    def registered(self) -> None:
        """Note that a plugin registered: a removed socket is no condition any more."""
        self._removed_at = -math.inf

    async def ensure(self) -> None:
        """Serve the directory unless it is served; `fault` says why that failed."""
        if self.is_serving and self._directory.is_served:
            return
        removed = self.is_serving
        await self.stop()
        try:
            self._directory.check_free()
            if not removed:
                self._directory.remove_sockets()
            await self._start()
        except DirectoryError as error:
            if str(error) != self.fault:
                log.warning("device plugins not served", error=str(error))
            self.fault = str(error)
            await self.stop()
            return
        self.fault = ""
        if removed:
            self._removed_at = self._clock.monotonic()
        log.info("device plugins served", socket=str(self._directory.socket), again=removed)

    async def stop(self) -> None:
        """Remove the socket, unless another process replaced it, and end all calls."""
        self._directory.unlink()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _start(self) -> None:
        methods = {"Register": (RawMessage, self._register)}

        def bind(path: Path) -> aio.Server:
            self._server = server(path, REGISTRATION, methods, concurrent=REGISTERING)
            return self._server

        await self._directory.link(bind).start()


class PluginDirectory:
    """The files of the directory: the socket that this process linked, and those of others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / KUBELET_SOCKET
        #: The file of the socket that this process linked (`socket_file`).
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
            raise DirectoryError(f"{risk}; {risk.remedy}")
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


def _answers(path: Path) -> bool:
    """Return whether a process accepts connections on a socket; False also without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(0)
        code = client.connect_ex(os.fsencode(path))
    # EAGAIN: the listener has many connections that it did not accept yet.
    return code not in _FREE and (code in (0, errno.EAGAIN) or is_socket(path))

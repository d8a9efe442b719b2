"""The socket of a device plugin in the kubelet's directory, and the server behind it.

In: the directory of plugins, the name of the socket, and what makes a server. Out: a socket where
the kubelet looks for it, or `PluginSocketError`.

Each kubelet that starts clears the directory, and binding a server again takes longer than a
kubelet waits before it admits its first pod. So the server is bound in a directory of its own below
the kubelet's, which the kubelet leaves alone, and its socket is linked into the kubelet's. After a
link was removed, one call makes it again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agent.files import risk_above, risk_of
from agent.rpc.sockets import LONGEST_SOCKET, is_socket, socket_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from grpc import aio

#: The kubelet removes the sockets beside its own, but no directories.
_BELOW: Final = ".numawarden"
_BOUND: Final = "plugin.sock"
#: As the kubelet makes the directory of plugins.
_DIRECTORY_MODE: Final = 0o750
_OWN_MODE: Final = 0o700
#: Connecting needs the right to write: the kubelet is root.
_SOCKET_MODE: Final = 0o600


class PluginSocketError(Exception):
    """The socket cannot be served; the text says why and what to do."""


class PluginSocket:
    """The socket `name`; `make` returns a server that is bound to a path and not started."""

    def __init__(self, directory: Path, name: str, make: Callable[[Path], aio.Server]) -> None:
        self.path = directory / name
        self._directory = directory
        self._bound = directory / _BELOW / _BOUND
        self._make = make
        self._server: aio.Server | None = None
        #: The bound socket (`socket_file`), None while the server does not serve.
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
        """Serve, and link the socket; return False if it was linked already.

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
        length, longest = max((len(os.fsencode(path)), path) for path in (self._bound, self.path))
        if length > LONGEST_SOCKET:
            raise PluginSocketError(
                f"the path {longest} has {length} bytes, a socket's has at most "
                f"{LONGEST_SOCKET}; a kubelet's directory (agent.kubelet.directory) needs a "
                "shorter path"
            )
        try:
            self._bound.parent.mkdir(mode=_OWN_MODE, exist_ok=True)
        except FileExistsError:
            raise PluginSocketError(f"{self._bound.parent} is not a directory; remove it") from None
        self._server = self._make(self._bound)
        self._bound.chmod(_SOCKET_MODE)
        await self._server.start()
        self._file = socket_file(self._bound)

    async def _stop(self) -> None:
        self._file = None
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

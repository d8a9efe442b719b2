"""The directory of plugins' sockets, and the socket with which plugins register.

It is the kubelet's directory, whose path is fixed in most plugins, so a kubelet may serve it at the
same time or start later. The socket is made under another name and linked to its own: a link never
replaces a file, so that a kubelet's socket made at the same moment stays; and gRPC, which removes
the name that it was bound to when it stops, does not remove the socket of a kubelet.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final, TypeVar

from agent.rpc.device_plugin import KUBELET_SOCKET
from agent.rpc.socket_files import LONGEST_SOCKET, is_socket, socket_file
from agent.safe_files import risk_above, risk_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.safe_files import PathRisk

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

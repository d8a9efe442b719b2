"""Reporting the state of the service to systemd: sd_notify(3) and the watchdog.

The environment is a parameter, so that tests and callers choose it.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOCKET: Final = "NOTIFY_SOCKET"
#: How long to wait for a service manager that does not read, in seconds.
PATIENCE_SECONDS: Final = 2.0
_LINE_BREAK: Final = "\n"


class NotifyError(SystemdError):
    """The notification socket exists in the environment but cannot be used."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"cannot notify systemd over NOTIFY_SOCKET={address}: {why}")


class Notifier:
    """Sends states to the service manager; does nothing where none asked for them.

    `environment` is usually `os.environ`. Raises `NotifyError` for an address that is neither a
    path nor an abstract socket (`@name`).
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get(_SOCKET, "")
        if self._address and self._address[0] not in "/@":
            raise NotifyError(self._address, "it is neither a path nor an abstract socket")

    @property
    def active(self) -> bool:
        """Whether a service manager listens."""
        return bool(self._address)

    def ready(self, status: str = "") -> None:
        """Report that the service is ready."""
        self._send("READY=1", *_status(status))

    def stopping(self, status: str = "") -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1", *_status(status))

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows; left out while the manager is behind."""
        self._send(*_status(text), wait=False)

    def watchdog(self) -> None:
        """Report that the service still works; call this from the loop that does the work.

        The call never waits: a manager that does not keep up has enough messages in its queue.
        """
        self._send("WATCHDOG=1", wait=False)

    def _send(self, *lines: str, wait: bool = True) -> None:
        if not self._address or not lines:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(PATIENCE_SECONDS if wait else 0)
                sender.connect(address)
                sender.sendall(_LINE_BREAK.join(lines).encode())
        except BlockingIOError:  # the queue is full, and the caller does not wait
            return
        except OSError as error:
            raise NotifyError(self._address, str(error)) from error


def _status(text: str) -> tuple[str, ...]:
    # A line break would start another assignment.
    return (f"STATUS={' '.join(text.split())}",) if text else ()


def watchdog_interval(environment: Mapping[str, str], pid: int | None = None) -> float | None:
    """Return how often to send `watchdog`, in seconds: half of what systemd allows.

    None when no watchdog is set (`WATCHDOG_USEC`) or it is meant for another process
    (`WATCHDOG_PID`; `pid` is this process unless given). Raises `SystemdError` on nonsense.
    """
    text = environment.get("WATCHDOG_USEC", "")
    if not text:
        return None
    for_pid = environment.get("WATCHDOG_PID", "")
    if for_pid and for_pid != str(os.getpid() if pid is None else pid):
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise SystemdError(f"WATCHDOG_USEC={text!r} is not a positive number of microseconds")
    return int(text) / 2_000_000

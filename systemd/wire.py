"""A typed interface to jeepney, the D-Bus library, which has no types of its own.

No other module uses jeepney. Every value that comes from the wire is an `object`, which the caller
narrows.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from jeepney import DBusAddress, MatchRule, MessageType, new_method_call
from jeepney.bus import get_bus
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, prep_socket
from jeepney.low_level import HeaderFields

from systemd.errors import (
    BusError,
    BusSilentError,
    BusTimeoutError,
    BusUnavailableError,
    NoSuchUnitError,
    UnitExistsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM_BUS: Final = "unix:path=/run/dbus/system_bus_socket"

_ERRORS: Final[dict[str, type[BusError]]] = {
    "org.freedesktop.systemd1.NoSuchUnit": NoSuchUnitError,
    "org.freedesktop.systemd1.UnitExists": UnitExistsError,
}


class Signals(Protocol):
    """Signals that arrive while a match is installed."""

    def next(self, timeout: float) -> tuple[object, ...]:
        """Return the body of the next signal; raises `TimeoutError` after `timeout` seconds."""
        ...


class BusConnection:
    """One connection to a message bus. Blocking; use it from one thread.

    `address` is a D-Bus address such as `unix:path=/run/dbus/system_bus_socket`. Raises
    `BusUnavailableError` when it cannot be reached, its subclass `BusSilentError` when it does not
    speak within `timeout` seconds.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self._address = address
        try:
            sock = prep_socket(get_bus(address), timeout=timeout)
        except TimeoutError as error:
            raise BusSilentError(address, f"no connection within {timeout:g} s") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise BusUnavailableError(address, str(error) or type(error).__name__) from error
        # The library greets the bus without a time limit; an end of the socket ends that too.
        guard = threading.Timer(timeout, _cut, (sock,))
        guard.start()
        try:
            self._connection = DBusConnection(sock)
        except OSError as error:
            sock.close()
            raise BusSilentError(address, f"no greeting within {timeout:g} s") from error
        finally:
            guard.cancel()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def call(
        self,
        address: tuple[str, str, str],
        method: str,
        signature: str,
        body: tuple[object, ...],
        timeout: float,
    ) -> tuple[object, ...]:
        """Call a method of (bus name, object path, interface) and return the reply's values.

        Raises `BusError` (or its subclass) for an error reply, `BusTimeoutError` when there is no
        reply within `timeout` seconds, `BusUnavailableError` when the connection broke.
        """
        name, path, interface = address
        message = new_method_call(
            DBusAddress(path, bus_name=name, interface=interface),
            method,
            signature or None,
            body,
        )
        reply = self._exchange(message, method, timeout)
        values = tuple(reply.body)
        if reply.header.message_type is MessageType.error:
            error = str(reply.header.fields.get(HeaderFields.error_name, ""))
            text = str(values[0]) if values else ""
            raise _ERRORS.get(error, BusError)(method, error, text)
        return values

    @contextmanager
    def signals(
        self, interface: str, member: str, path: str, argument: tuple[int, str], timeout: float
    ) -> Iterator[Signals]:
        """Collect the signals of one kind whose argument (number, text) is as given.

        The match is installed before the body runs and removed after it, so no signal that the
        body causes is missed and none piles up afterwards. It stays when nothing was answered in
        time: asking for its removal would take another deadline, and such a connection is closed.
        """
        rule = MatchRule(type="signal", interface=interface, member=member, path=path)
        rule.add_arg_condition(*argument)
        found: deque[object] = deque()
        with self._connection.filter(rule, queue=found):
            self._exchange(message_bus.AddMatch(rule), "AddMatch", timeout)
            try:
                yield _Signals(self, found)
            except (BusTimeoutError, BusUnavailableError):
                raise
            except BaseException:
                self._exchange(message_bus.RemoveMatch(rule), "RemoveMatch", timeout)
                raise
            self._exchange(message_bus.RemoveMatch(rule), "RemoveMatch", timeout)

    def wait(self, found: deque[object], timeout: float) -> tuple[object, ...]:
        """Return the body of the next message of a queue; see `Signals.next`."""
        try:
            message = self._connection.recv_until_filtered(found, timeout=timeout)
        except TimeoutError:
            raise
        except OSError as error:
            raise BusUnavailableError(self._address, str(error)) from error
        return tuple(message.body)

    def _exchange(self, message: object, what: str, timeout: float) -> _Reply:
        try:
            reply: _Reply = self._connection.send_and_get_reply(message, timeout=timeout)
        except TimeoutError as error:
            raise BusTimeoutError(what, timeout) from error
        except OSError as error:
            raise BusUnavailableError(self._address, str(error)) from error
        return reply


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Header(Protocol):
    message_type: object
    fields: dict[object, object]


class _Reply(Protocol):
    header: _Header
    body: tuple[object, ...]


class _Signals:
    def __init__(self, connection: BusConnection, found: deque[object]) -> None:
        self._connection = connection
        self._found = found

    def next(self, timeout: float) -> tuple[object, ...]:
        return self._connection.wait(self._found, timeout)

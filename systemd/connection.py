"""One connection to a message bus (D-Bus).

This is the only user of jeepney, which has no types of its own: every value that comes from the
wire is an `object`, which the caller narrows.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

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
    from collections.abc import Collection, Iterator, Sequence

_ERRORS: Final[dict[str, type[BusError]]] = {
    "org.freedesktop.systemd1.NoSuchUnit": NoSuchUnitError,
    "org.freedesktop.systemd1.UnitExists": UnitExistsError,
}


class Call(NamedTuple):
    """A method call: `address` is (bus name, object path, interface), `body` has the arguments."""

    address: tuple[str, str, str]
    method: str
    signature: str = ""
    body: tuple[object, ...] = ()

    def message(self) -> object:
        """Return the message to send."""
        name, path, interface = self.address
        to = DBusAddress(path, bus_name=name, interface=interface)
        return new_method_call(to, self.method, self.signature or None, self.body)


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

    def call(self, call: Call, timeout: float) -> tuple[object, ...]:
        """Make a call and return the reply's values.

        Raises `BusError` (or its subclass) for an error reply, `BusTimeoutError` when there is no
        reply within `timeout` seconds, `BusUnavailableError` when the connection broke.
        """
        (reply,) = self.call_each((call,), timeout)
        if isinstance(reply, BusError):
            raise reply
        return reply

    def call_each(
        self, calls: Sequence[Call], timeout: float
    ) -> list[tuple[object, ...] | BusError]:
        """Make calls and return the values of each reply, or the error that it is, in order.

        All calls are sent before the first reply is waited for. Raises as `call` does where no
        reply comes.
        """
        if not calls:
            return []
        messages = [call.message() for call in calls]
        replies = self._exchange(messages, calls[0].method, timeout)
        return [_values(reply, call) for call, reply in zip(calls, replies, strict=True)]

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
            self._exchange((message_bus.AddMatch(rule),), "AddMatch", timeout)
            try:
                yield Signals(self, found)
            except (BusTimeoutError, BusUnavailableError):
                raise
            except BaseException:
                self._exchange((message_bus.RemoveMatch(rule),), "RemoveMatch", timeout)
                raise
            self._exchange((message_bus.RemoveMatch(rule),), "RemoveMatch", timeout)

    def wait(self, found: deque[object], timeout: float) -> tuple[object, ...]:
        """Return the body of the next message of a queue; see `Signals.next`."""
        try:
            message = self._connection.recv_until_filtered(found, timeout=timeout)
        except TimeoutError:
            raise
        except OSError as error:
            raise BusUnavailableError(self._address, str(error)) from error
        return tuple(message.body)

    def _exchange(self, messages: Sequence[object], what: str, timeout: float) -> list[_Reply]:
        """Send messages, then return their replies; other messages go to their filters."""
        connection, deadline = self._connection, time.monotonic() + timeout
        replies: dict[int, _Reply | None] = {}
        try:
            for message in messages:
                serial = next(connection.outgoing_serial)
                replies[serial] = None
                connection.send(message, serial=serial)
            with connection.filter(_RepliesTo(replies), queue=deque()) as found:
                while None in replies.values():
                    left = max(0.0, deadline - time.monotonic())
                    reply: _Reply = connection.recv_until_filtered(found, timeout=left)
                    replies[_answered(reply)] = reply
        except TimeoutError as error:
            raise BusTimeoutError(what, timeout) from error
        except OSError as error:
            raise BusUnavailableError(self._address, str(error)) from error
        return [reply for reply in replies.values() if reply is not None]


def _values(reply: _Reply, call: Call) -> tuple[object, ...] | BusError:
    """Return the values of a reply, or the error that it is."""
    values = tuple(reply.body)
    if reply.header.message_type is not MessageType.error:
        return values
    error = str(reply.header.fields.get(HeaderFields.error_name, ""))
    text = str(values[0]) if values else ""
    return _ERRORS.get(error, BusError)(call.method, error, text)


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Header(Protocol):
    message_type: object
    fields: dict[object, object]


class _Reply(Protocol):
    header: _Header
    body: tuple[object, ...]


class _RepliesTo:
    """A rule for the replies to calls, by their serial numbers."""

    def __init__(self, serials: Collection[int]) -> None:
        self._serials = serials

    def matches(self, message: _Reply) -> bool:
        """Return whether a message is one of the replies."""
        return _answered(message) in self._serials


def _answered(message: _Reply) -> int:
    """Return the serial number of the call that a message answers, -1 if it answers none."""
    serial = message.header.fields.get(HeaderFields.reply_serial)
    return serial if isinstance(serial, int) else -1


class Signals:
    """Signals that arrive while a match is installed."""

    def __init__(self, connection: BusConnection, found: deque[object]) -> None:
        self._connection = connection
        self._found = found

    def next(self, timeout: float) -> tuple[object, ...]:
        """Return the body of the next signal; raises `TimeoutError` after `timeout` seconds."""
        return self._connection.wait(self._found, timeout)

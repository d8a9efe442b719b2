"""systemd's manager over D-Bus: the few calls that resource control needs (systemd1(5)).

systemd answers a property change with success even when the kernel rejects the value (seen with
systemd 257: AllowedCPUs=100 gives no error), so callers read the cgroup's files back.

`BusConnection` is the only user of jeepney, which has no types of its own: every value that comes
from the wire is an `object`, which the caller narrows.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from enum import StrEnum
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
    JobFailedError,
    NoSuchUnitError,
    ProtocolError,
    UnitExistsError,
)
from systemd.escape import check_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from systemd.properties import Property, Value

SYSTEM_BUS: Final = "unix:path=/run/dbus/system_bus_socket"

_ERRORS: Final[dict[str, type[BusError]]] = {
    "org.freedesktop.systemd1.NoSuchUnit": NoSuchUnitError,
    "org.freedesktop.systemd1.UnitExists": UnitExistsError,
}


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
                yield Signals(self, found)
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


class Signals:
    """Signals that arrive while a match is installed."""

    def __init__(self, connection: BusConnection, found: deque[object]) -> None:
        self._connection = connection
        self._found = found

    def next(self, timeout: float) -> tuple[object, ...]:
        """Return the body of the next signal; raises `TimeoutError` after `timeout` seconds."""
        return self._connection.wait(self._found, timeout)


#: How long systemd may take for one call. A `daemon-reload` of a large host takes seconds; while
#: a call is waited for, the agent does nothing else and cannot end.
PATIENCE_SECONDS: Final = 5.0

_NAME: Final = "org.freedesktop.systemd1"
_MANAGER_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = "org.freedesktop.systemd1.Manager"
_UNIT: Final = "org.freedesktop.systemd1.Unit"
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"
_INTERFACES: Final = {
    "slice": "org.freedesktop.systemd1.Slice",
    "scope": "org.freedesktop.systemd1.Scope",
    "service": "org.freedesktop.systemd1.Service",
}


class ActiveState(StrEnum):
    """`ActiveState` of a unit; one that is not loaded counts as inactive."""

    ACTIVE = "active"
    RELOADING = "reloading"
    INACTIVE = "inactive"
    FAILED = "failed"
    ACTIVATING = "activating"
    DEACTIVATING = "deactivating"
    MAINTENANCE = "maintenance"
    REFRESHING = "refreshing"

    @property
    def running(self) -> bool:
        """Whether the unit's cgroup exists and properties apply to it at once."""
        return self in (ActiveState.ACTIVE, ActiveState.RELOADING, ActiveState.REFRESHING)

    @property
    def stopped(self) -> bool:
        """Whether the unit does not run and is not about to, as it is while a restart waits."""
        return self in (ActiveState.INACTIVE, ActiveState.FAILED)


class Systemd(Protocol):
    """What resource control needs of systemd. All calls block and raise `SystemdError`s."""

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        """Create and start a transient unit, and wait until it runs.

        Raises `UnitExistsError` when a unit of that name is loaded.
        """
        ...

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change properties until the next boot (`runtime`); applied to the cgroup at once."""
        ...

    def stop(self, unit: str) -> None:
        """Stop a unit by itself and wait until it is gone.

        What requires it runs on: the units in a slice require it, and nothing of theirs is ended.
        Raises `NoSuchUnitError` for one that is not loaded, except a slice: any slice can be
        loaded by its name, so stopping one that never was is a success.
        """
        ...

    def active_state(self, unit: str) -> ActiveState:
        """Return the state of a unit without loading it."""
        ...

    def control_group(self, unit: str) -> str:
        """Return a unit's cgroup relative to the root, `""` when it has none now."""
        ...

    def unit_property(self, unit: str, name: str) -> object:
        """Return one property of the unit's own type (`AllowedCPUs`, `CPUQuotaPerSecUSec`, …)."""
        ...


class SystemBus:
    """`Systemd` over the message bus at `address`.

    Connects at the first call and again after the connection broke or was silent: what a
    connection was half asked for (to send signals) does not outlive it. Each call has `timeout`
    seconds, including the wait for its job. Use it from one thread.
    """

    def __init__(self, address: str = SYSTEM_BUS, *, timeout: float = PATIENCE_SECONDS) -> None:
        self._address = address
        self._timeout = timeout
        self._open: BusConnection | None = None

    def close(self) -> None:
        """End the connection; the next call makes a new one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        """Create and start a transient unit; see `Systemd.start_transient`."""
        check_unit(unit)
        auxiliary: list[object] = []
        body = (unit, "fail", _wire(properties), auxiliary)
        self._run_job(unit, "start", ("StartTransientUnit", "ssa(sv)a(sa(sv))", body))

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change properties at run time; see `Systemd.set_properties`."""
        body = (check_unit(unit), True, _wire(properties))
        self._manager("SetUnitProperties", "sba(sv)", body)

    def stop(self, unit: str) -> None:
        """Stop a unit; see `Systemd.stop`."""
        body = (check_unit(unit), "ignore-dependencies")
        self._run_job(unit, "stop", ("StopUnit", "ss", body))

    def active_state(self, unit: str) -> ActiveState:
        """Return the state of a unit; see `Systemd.active_state`."""
        try:
            path = self._unit_path("GetUnit", "s", (check_unit(unit),))
        except NoSuchUnitError:
            return ActiveState.INACTIVE
        value = self._get(path, _UNIT, "ActiveState")
        try:
            return ActiveState(str(value))
        except ValueError as error:
            raise ProtocolError("ActiveState", value) from error

    def control_group(self, unit: str) -> str:
        """Return a unit's cgroup; see `Systemd.control_group`."""
        return str(self.unit_property(unit, "ControlGroup")).removeprefix("/")

    def unit_property(self, unit: str, name: str) -> object:
        """Return one property; see `Systemd.unit_property`."""
        kind = check_unit(unit).rpartition(".")[2]
        path = self._unit_path("GetUnit", "s", (unit,))
        return self._get(path, _INTERFACES.get(kind, _UNIT), name)

    # --- the wire ---------------------------------------------------------------------------

    def _run_job(self, unit: str, job: str, call: tuple[str, str, tuple[object, ...]]) -> None:
        deadline = time.monotonic() + self._timeout
        with (
            self._connected() as bus,
            bus.signals(_MANAGER, "JobRemoved", _MANAGER_PATH, (2, unit), self._timeout) as ended,
        ):
            method, signature, body = call
            queued = self._manager(method, signature, body)
            try:
                while True:
                    signal = ended.next(max(0.0, deadline - time.monotonic()))
                    if len(signal) == 4 and signal[1] == queued[0]:  # noqa: PLR2004 - id, job, unit, result
                        break
            except TimeoutError as error:
                raise BusTimeoutError(f"the {job} of {unit}", self._timeout) from error
            if signal[3] not in ("done", "skipped"):
                raise JobFailedError(unit, job, str(signal[3]))

    def _manager(self, method: str, signature: str, body: tuple[object, ...]) -> tuple[object, ...]:
        with self._connected() as bus:
            address = (_NAME, _MANAGER_PATH, _MANAGER)
            return bus.call(address, method, signature, body, self._timeout)

    def _unit_path(self, method: str, signature: str, body: tuple[object, ...]) -> str:
        reply = self._manager(method, signature, body)
        if len(reply) != 1 or not isinstance(reply[0], str):
            raise ProtocolError(method, reply)
        return reply[0]

    def _get(self, path: str, interface: str, name: str) -> object:
        with self._connected() as bus:
            address = (_NAME, path, _PROPERTIES)
            reply = bus.call(address, "Get", "ss", (interface, name), self._timeout)
        match reply:
            case ((str(), value),):
                return value
            case _:
                raise ProtocolError(f"Get {name}", reply)

    @contextmanager
    def _connected(self) -> Iterator[BusConnection]:
        try:
            yield self._open or self._connect()
        except (BusUnavailableError, BusTimeoutError):
            self.close()
            raise

    def _connect(self) -> BusConnection:
        self._open = BusConnection(self._address, self._timeout)
        # Without a subscriber systemd sends no JobRemoved.
        address = (_NAME, _MANAGER_PATH, _MANAGER)
        self._open.call(address, "Subscribe", "", (), self._timeout)
        return self._open


def _wire(properties: Sequence[Property]) -> list[tuple[str, tuple[str, object]]]:
    return [(prop.name, (prop.signature, _plain(prop.value))) for prop in properties]


def _plain(value: Value) -> object:
    return list(value) if isinstance(value, tuple) else value

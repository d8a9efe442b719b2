"""systemd's manager over D-Bus: the few calls that resource control needs (systemd1(5)).

systemd answers a property change with success even when the kernel rejects the value (seen with
systemd 257: AllowedCPUs=100 gives no error), so callers read the cgroup's files back.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from jeepney import DBusAddress, MatchRule, MessageType, new_method_call
from jeepney.bus import get_bus
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, prep_socket
from jeepney.low_level import HeaderFields

from systemd.units import (
    BusError,
    BusSilentError,
    BusTimeoutError,
    BusUnavailableError,
    JobFailedError,
    NoSuchUnitError,
    NotAskedError,
    ProtocolError,
    SystemdError,
    UnitExistsError,
    UnitNameError,
    check_unit,
    description,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from systemd.units import Property, Value

    Shown: TypeAlias = tuple[object, ...] | SystemdError


# --- connection -----------------------------------------------------------------------------------
# One connection to a message bus (D-Bus).
#
# This is the only user of jeepney, which has no types of its own: every value that comes from the
# wire is an `object`, which the caller narrows.

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


# --- bus ------------------------------------------------------------------------------------------

SYSTEM_BUS: Final = "unix:path=/run/dbus/system_bus_socket"

#: How long systemd may take for one call. A `daemon-reload` of a large host takes seconds; while
#: a call is waited for, the agent does nothing else and cannot end.
PATIENCE_SECONDS: Final = 5.0

_NAME: Final = "org.freedesktop.systemd1"
_MANAGER_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = "org.freedesktop.systemd1.Manager"
_AT: Final = (_NAME, _MANAGER_PATH, _MANAGER)
_UNIT: Final = "org.freedesktop.systemd1.Unit"
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"
_INTERFACES: Final = {
    "slice": "org.freedesktop.systemd1.Slice",
    "scope": "org.freedesktop.systemd1.Scope",
    "service": "org.freedesktop.systemd1.Service",
}


#: So many calls are sent before their replies are read: neither side's buffers fill up.
_SENT_AT_ONCE: Final = 64


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

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        """Return properties of the unit's own type (`AllowedCPUs`, `ControlGroup`, …).

        Raises `NoSuchUnitError` for a unit that is not loaded.
        """
        ...

    def properties_of(self, asked: Sequence[tuple[str, Sequence[str]]]) -> list[Shown]:
        """Return the `unit_properties` of several units, or what each raises, in their order.

        A systemd that does not answer raises, for all of them.
        """
        ...

    def set_properties_of(
        self, desired: Sequence[tuple[str, Sequence[Property]]]
    ) -> list[SystemdError | None]:
        """Do `set_properties` for several units; return what each raises, in their order.

        A systemd that does not answer raises, for all of them: any of them may be done.
        """
        ...


class SystemBus:
    """`Systemd` over the message bus at `address`.

    Connects at the first call and again after the connection broke or was silent: what a
    connection was half asked for (to send signals) does not outlive it. Each call has `timeout`
    seconds, including the wait for its job; `answered` is called after each. Use it from one
    thread.
    """

    def __init__(
        self,
        address: str = SYSTEM_BUS,
        *,
        timeout: float = PATIENCE_SECONDS,
        answered: Callable[[], object] = object,
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._answered = answered
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
        self._manager(*_setting(check_unit(unit), properties))

    def stop(self, unit: str) -> None:
        """Stop a unit; see `Systemd.stop`."""
        body = (check_unit(unit), "ignore-dependencies")
        self._run_job(unit, "stop", ("StopUnit", "ss", body))

    def active_state(self, unit: str) -> ActiveState:
        """Return the state of a unit; see `Systemd.active_state`."""
        try:
            (value,) = _raised(self._shown(((unit, _UNIT, ("ActiveState",)),))[0])
        except NoSuchUnitError:
            return ActiveState.INACTIVE
        try:
            return ActiveState(str(value))
        except ValueError as error:
            raise ProtocolError("ActiveState", value) from error

    def control_group(self, unit: str) -> str:
        """Return a unit's cgroup; see `Systemd.control_group`."""
        return str(self.unit_properties(unit, "ControlGroup")[0]).removeprefix("/")

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        """Return properties; see `Systemd.unit_properties`."""
        return _raised(self.properties_of(((unit, names),))[0])

    def properties_of(self, asked: Sequence[tuple[str, Sequence[str]]]) -> list[Shown]:
        """Return properties of several units; see `Systemd.properties_of`.

        The bus is waited for twice, however many units there are.
        """
        kinds = (unit.rpartition(".")[2] for unit, _ in asked)
        return self._shown(
            [
                (unit, _INTERFACES.get(kind, _UNIT), names)
                for kind, (unit, names) in zip(kinds, asked, strict=True)
            ]
        )

    def set_properties_of(
        self, desired: Sequence[tuple[str, Sequence[Property]]]
    ) -> list[SystemdError | None]:
        """Change properties of several units; see `Systemd.set_properties_of`."""
        calls = [_checked(unit, Call(_AT, *_setting(unit, given))) for unit, given in desired]
        return [
            reply if isinstance(reply, SystemdError) else None for reply in self._call_each(calls)
        ]

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
            return bus.call(Call(_AT, method, signature, body), self._timeout)

    def _shown(self, asked: Sequence[tuple[str, str, Sequence[str]]]) -> list[Shown]:
        """Return properties of units, asked for by unit, interface and names."""
        found = self._call_each(
            [_checked(unit, Call(_AT, "GetUnit", "s", (unit,))) for unit, _, _ in asked]
        )
        paths = [_path(reply) for reply in found]
        calls: list[Call] = []
        for (_, interface, names), path in zip(asked, paths, strict=True):
            if isinstance(path, str):
                at = (_NAME, path, _PROPERTIES)
                calls.extend(Call(at, "Get", "ss", (interface, name)) for name in names)
        replies = iter(self._call_each(calls))
        return [
            path if isinstance(path, SystemdError) else _variants(names, replies)
            for (_, _, names), path in zip(asked, paths, strict=True)
        ]

    def _call_each(
        self, calls: Sequence[Call | SystemdError]
    ) -> list[tuple[object, ...] | SystemdError]:
        """Make calls, `_SENT_AT_ONCE` at a time; an error among them is its own reply."""
        made = [call for call in calls if isinstance(call, Call)]
        replies: list[tuple[object, ...] | SystemdError] = []
        for first in range(0, len(made), _SENT_AT_ONCE):
            with self._connected() as bus:
                replies += bus.call_each(made[first : first + _SENT_AT_ONCE], self._timeout)
        found = iter(replies)
        return [next(found) if isinstance(call, Call) else call for call in calls]

    @contextmanager
    def _connected(self) -> Iterator[BusConnection]:
        try:
            yield self._open or self._connect()
        except (BusUnavailableError, BusTimeoutError):
            self.close()
            raise
        finally:
            self._answered()

    def _connect(self) -> BusConnection:
        self._open = BusConnection(self._address, self._timeout)
        # Without a subscriber systemd sends no JobRemoved.
        self._open.call(Call(_AT, "Subscribe"), self._timeout)
        return self._open


def _checked(unit: str, call: Call) -> Call | SystemdError:
    """Return a call about a unit, or the error that its name is."""
    try:
        check_unit(unit)
    except UnitNameError as error:
        return error
    return call


def _raised(shown: Shown) -> tuple[object, ...]:
    if isinstance(shown, SystemdError):
        raise shown
    return shown


def _path(reply: tuple[object, ...] | SystemdError) -> str | SystemdError:
    """Return the object path that a reply has."""
    match reply:
        case SystemdError():
            return reply
        case (str() as path,):
            return path
        case _:
            return ProtocolError("GetUnit", reply)


def _variants(names: Sequence[str], replies: Iterator[tuple[object, ...] | SystemdError]) -> Shown:
    """Return the values of the next replies, one for each name, or the first error of them."""
    values: list[object] = []
    found = [next(replies) for _ in names]
    for name, reply in zip(names, found, strict=True):
        match reply:
            case SystemdError():
                return reply
            case ((str(), value),):
                values.append(value)
            case _:
                return ProtocolError(f"Get {name}", reply)
    return tuple(values)


def _setting(unit: str, properties: Sequence[Property]) -> tuple[str, str, tuple[object, ...]]:
    """Return method, signature and arguments that set properties until the next boot."""
    return "SetUnitProperties", "sba(sv)", (unit, True, _wire(properties))


def _wire(properties: Sequence[Property]) -> list[tuple[str, tuple[str, object]]]:
    return [(prop.name, (prop.signature, _plain(prop.value))) for prop in properties]


def _plain(value: Value) -> object:
    return list(value) if isinstance(value, tuple) else value


# --- breaker --------------------------------------------------------------------------------------
# A circuit breaker for systemd: a bus that hangs costs one deadline, not one for each call.

_Result = TypeVar("_Result")


class Breaker:
    """A `Systemd` that is not called again after it did not answer, until `try_again`.

    Each call then raises `NotAskedError` at once. Every call of a bus that hangs takes its whole
    deadline, and there may be hundreds of calls in one comparison of the cgroups.
    """

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._silence: BusTimeoutError | BusUnavailableError | None = None

    def try_again(self) -> None:
        """Ask systemd again with the next call."""
        self._silence = None

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        """Start a transient unit; see `Systemd.start_transient`."""
        self._ask(lambda: self._systemd.start_transient(unit, properties))

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change properties; see `Systemd.set_properties`."""
        self._ask(lambda: self._systemd.set_properties(unit, properties))

    def stop(self, unit: str) -> None:
        """Stop a unit; see `Systemd.stop`."""
        self._ask(lambda: self._systemd.stop(unit))

    def active_state(self, unit: str) -> ActiveState:
        """Return the state of a unit; see `Systemd.active_state`."""
        return self._ask(lambda: self._systemd.active_state(unit))

    def control_group(self, unit: str) -> str:
        """Return a unit's cgroup; see `Systemd.control_group`."""
        return self._ask(lambda: self._systemd.control_group(unit))

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        """Return properties; see `Systemd.unit_properties`."""
        return self._ask(lambda: self._systemd.unit_properties(unit, *names))

    def properties_of(self, asked: Sequence[tuple[str, Sequence[str]]]) -> list[Shown]:
        """Return properties of several units; see `Systemd.properties_of`."""
        return self._ask(lambda: self._systemd.properties_of(asked))

    def set_properties_of(
        self, desired: Sequence[tuple[str, Sequence[Property]]]
    ) -> list[SystemdError | None]:
        """Change properties of several units; see `Systemd.set_properties_of`."""
        return self._ask(lambda: self._systemd.set_properties_of(desired))

    def _ask(self, call: Callable[[], _Result]) -> _Result:
        if self._silence is not None:
            raise NotAskedError(self._silence)
        try:
            return call()
        except (BusTimeoutError, BusUnavailableError) as error:
            self._silence = error
            raise


# --- slices ---------------------------------------------------------------------------------------
# Slices with resource properties: created, changed, stopped.
#
# The record with systemd comes first, then the cgroup's files, then reading them back: this is the
# first part only. Properties are set only on slices that run, because on one that does not, systemd
# leaves a drop-in file and a cgroup that nothing removes.


def ensure(systemd: Systemd, name: str, properties: Sequence[Property], *, about: str = "") -> bool:
    """Start the slice with these properties, or set them if it runs; return whether it was started.

    A slice started here is transient: its properties live in /run and nothing is left of it after
    `stop`. `about` becomes its description. Raises `UnitNameError` and the bus's errors.
    """
    check_unit(name, "slice")
    described = (description(about),) if about else ()
    try:
        systemd.start_transient(name, (*described, *properties))
    except UnitExistsError:
        if not update(systemd, name, properties):
            raise
        return False
    return True


def update(systemd: Systemd, name: str, properties: Sequence[Property]) -> bool:
    """Set properties on the slice if it runs; return whether it does."""
    check_unit(name, "slice")
    if not systemd.active_state(name).running:
        return False
    if properties:
        systemd.set_properties(name, properties)
    return True


def stop(systemd: Systemd, name: str) -> bool:
    """Stop the slice, and nothing that runs in it; return whether there was anything to stop.

    The state is asked for first: systemd stops a slice that never was with success.
    """
    check_unit(name, "slice")
    if not systemd.active_state(name).running:
        return False
    systemd.stop(name)
    return True

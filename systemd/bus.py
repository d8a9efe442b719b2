"""systemd's manager over D-Bus: the few calls that resource control needs (systemd1(5)).

systemd answers a property change with success even when the kernel rejects the value (seen with
systemd 257: AllowedCPUs=100 gives no error), so callers read the cgroup's files back.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from systemd.connection import BusConnection, Call
from systemd.errors import (
    BusTimeoutError,
    BusUnavailableError,
    JobFailedError,
    NoSuchUnitError,
    ProtocolError,
    SystemdError,
    UnitNameError,
)
from systemd.escape import check_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from systemd.properties import Property, Value

    #: The values of properties in the order in which they were asked for, or why there are none.
    Shown: TypeAlias = tuple[object, ...] | SystemdError

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

"""systemd's manager over D-Bus: the few calls that resource control needs (systemd1(5)).

systemd answers a property change with success even when the kernel rejects the value (seen with
systemd 257: AllowedCPUs=100 gives no error), so callers read the cgroup's files back.

`ensure`, `update` and `stop` are for slices. Properties are set only on slices that run: on one
that does not, systemd leaves a drop-in file and a cgroup that nothing removes.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

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
    from collections.abc import Callable, Iterator, Sequence

    from systemd.units import Property

    #: What a call for one of several units returns, or would raise if it were for this unit alone.
    Shown: TypeAlias = tuple[object, ...] | SystemdError

#: jeepney has no types.
Message: TypeAlias = Any
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

SYSTEM_BUS: Final = "unix:path=/run/dbus/system_bus_socket"
#: How long systemd may take for one call. A `daemon-reload` of a large host takes seconds; while
#: a call is waited for, the agent does nothing else and cannot end.
PATIENCE_SECONDS: Final = 5.0

_NAME: Final = "org.freedesktop.systemd1"
_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = f"{_NAME}.Manager"
_ERRORS: Final[dict[str, type[BusError]]] = {
    f"{_NAME}.NoSuchUnit": NoSuchUnitError,
    f"{_NAME}.UnitExists": UnitExistsError,
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
        """Start a new unit and wait until it runs; raises `UnitExistsError` if it is loaded."""

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change properties until the next boot (`runtime`); applied to the cgroup at once."""

    def stop(self, unit: str) -> None:
        """Stop a unit by itself and wait until it is gone.

        What requires it runs on: the units in a slice require it, and nothing of theirs is ended.
        Raises `NoSuchUnitError` for one that is not loaded, except a slice: any slice can be
        loaded by its name, so stopping one that never was is a success.
        """

    def active_state(self, unit: str) -> ActiveState:
        """Return the state of a unit without loading it."""

    def control_group(self, unit: str) -> str:
        """Return a unit's cgroup relative to the root, `""` when it has none now."""

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        """Return properties of the unit's own type; raises `NoSuchUnitError` if not loaded."""

    def properties_of(self, asked: Sequence[tuple[str, Sequence[str]]]) -> list[Shown]:
        """Return the `unit_properties` of each unit; systemd is waited for twice at most.

        A systemd that does not answer raises, for all of them.
        """

    def set_properties_of(
        self, desired: Sequence[tuple[str, Sequence[Property]]]
    ) -> list[SystemdError | None]:
        """Do `set_properties` for each unit.

        A systemd that does not answer raises, for all of them: any of them may be done.
        """


class SystemBus:
    """`Systemd` over the message bus at `address`. Blocking; use it from one thread.

    Each call has `timeout` seconds, including the wait for its job; `answered` is called after
    each. A connection that broke or was silent is closed, and the next call makes another: signals
    that were half asked for do not outlive it.
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
        self._connection: DBusConnection | None = None
        self._jobs_removed: list[tuple[object, ...]] = []

    def close(self) -> None:
        """End the connection; the next call makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        auxiliary: list[object] = []
        body = (check_unit(unit), "fail", _wire(properties), auxiliary)
        self._run_job(unit, "start", _call("StartTransientUnit", "ssa(sv)a(sa(sv))", body))

    def stop(self, unit: str) -> None:
        body = (check_unit(unit), "ignore-dependencies")
        self._run_job(unit, "stop", _call("StopUnit", "ss", body))

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        (error,) = self.set_properties_of(((unit, properties),))
        if error is not None:
            raise error

    def active_state(self, unit: str) -> ActiveState:
        try:
            (state,) = _raised(self._shown(((unit, f"{_NAME}.Unit", ("ActiveState",)),))[0])
        except NoSuchUnitError:
            return ActiveState.INACTIVE
        try:
            return ActiveState(str(state))
        except ValueError as error:
            raise ProtocolError("ActiveState", state) from error

    def control_group(self, unit: str) -> str:
        return str(self.unit_properties(unit, "ControlGroup")[0]).removeprefix("/")

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        return _raised(self.properties_of(((unit, names),))[0])

    def properties_of(self, asked: Sequence[tuple[str, Sequence[str]]]) -> list[Shown]:
        kinds = [unit.rpartition(".")[2] for unit, _ in asked]
        own = [f"{_NAME}.{k.title() if k in _WITH_CGROUP else 'Unit'}" for k in kinds]
        return self._shown([(unit, i, names) for i, (unit, names) in zip(own, asked, strict=True)])

    def set_properties_of(
        self, desired: Sequence[tuple[str, Sequence[Property]]]
    ) -> list[SystemdError | None]:
        calls = [
            _unit_call(unit, "SetUnitProperties", "sba(sv)", True, _wire(properties))  # noqa: FBT003
            for unit, properties in desired
        ]
        return [reply if isinstance(reply, SystemdError) else None for reply in self._each(calls)]

    def _shown(self, asked: Sequence[tuple[str, str, Sequence[str]]]) -> list[Shown]:
        """Return properties of units, asked for by unit, interface and names."""
        paths = self._each([_unit_call(unit, "GetUnit", "s") for unit, _, _ in asked])
        gets = [
            new_method_call(
                DBusAddress(str(path[0]), _NAME, "org.freedesktop.DBus.Properties"),
                "Get",
                "ss",
                (interface, name),
            )
            for (_, interface, names), path in zip(asked, paths, strict=True)
            if isinstance(path, tuple)
            for name in names
        ]
        values = iter(self._each(gets))
        return [
            _variants([next(values) for _ in names]) if isinstance(path, tuple) else path
            for (_, _, names), path in zip(asked, paths, strict=True)
        ]

    def _run_job(self, unit: str, job: str, call: Message) -> None:
        """Make a call that queues a job, and wait until the job is removed.

        The signal is asked for before the call, so it cannot be missed, and not after it, so that
        none piles up. A connection that was silent is closed: no deadline is spent on it again.
        """
        rule = MatchRule(type="signal", interface=_MANAGER, member="JobRemoved", path=_PATH)
        rule.add_arg_condition(2, unit)
        deadline = time.monotonic() + self._timeout
        self._exchange([message_bus.AddMatch(rule)])
        self._jobs_removed = []
        try:
            queued = _raised(self._exchange([call])[0])
            with self._watched(f"the {job} of {unit}"):
                while (result := self._result(queued)) is None:
                    self._receive(deadline)
        finally:
            if self._connection is not None:
                self._exchange([message_bus.RemoveMatch(rule)])
        if result not in ("done", "skipped"):
            raise JobFailedError(unit, job, result)

    def _result(self, queued: tuple[object, ...]) -> str | None:
        """Return the result of a job, None while it runs. A signal is (id, job, unit, result)."""
        return next((str(end[3]) for end in self._jobs_removed if end[1:2] == queued), None)

    def _each(self, calls: Sequence[Message]) -> list[Shown]:
        """Make calls, `_SENT_AT_ONCE` at a time; an error among them is its own reply."""
        made = [call for call in calls if not isinstance(call, SystemdError)]
        groups = (made[at : at + _SENT_AT_ONCE] for at in range(0, len(made), _SENT_AT_ONCE))
        replies = (reply for group in groups for reply in self._exchange(group))
        return [call if isinstance(call, SystemdError) else next(replies) for call in calls]

    def _exchange(self, messages: Sequence[Message]) -> list[Shown]:
        """Send messages; return the values of each reply, or the `BusError` that it is."""
        with self._watched(_method(messages[0])):
            connection, deadline = self._connected(), time.monotonic() + self._timeout
            replies: dict[int, Message] = {}
            for message in messages:
                serial = next(connection.outgoing_serial)
                replies[serial] = None
                connection.send(message, serial=serial)
            while None in replies.values():
                reply = self._receive(deadline)
                if (serial := reply.header.fields.get(HeaderFields.reply_serial)) in replies:
                    replies[serial] = reply
        return [_values(*pair) for pair in zip(replies.values(), messages, strict=True)]

    def _receive(self, deadline: float) -> Message:
        """Return the next message; the end of a job is kept."""
        left = max(0.0, deadline - time.monotonic())
        message = self._connected().receive(timeout=left)
        if message.header.message_type is MessageType.signal and len(message.body) == 4:  # noqa: PLR2004
            self._jobs_removed.append(message.body)
        return message

    @contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """Raise `BusTimeoutError` or `BusUnavailableError` for a connection that fails."""
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise BusTimeoutError(what, self._timeout) from error
        except OSError as error:
            self.close()
            raise BusUnavailableError(self._address, str(error)) from error
        finally:
            self._answered()

    def _connected(self) -> DBusConnection:
        if self._connection is not None:
            return self._connection
        try:
            sock = prep_socket(get_bus(self._address), timeout=self._timeout)
        except TimeoutError as error:
            why = f"no connection within {self._timeout:g} s"
            raise BusSilentError(self._address, why) from error
        except (OSError, RuntimeError, ValueError) as error:
            raise BusUnavailableError(self._address, str(error) or type(error).__name__) from error
        # jeepney greets the bus without a time limit; an end of the socket ends that too.
        guard = threading.Timer(self._timeout, _cut, (sock,))
        guard.start()
        try:
            self._connection = DBusConnection(sock)
        except OSError as error:
            sock.close()
            raise BusSilentError(
                self._address, f"no greeting within {self._timeout:g} s"
            ) from error
        finally:
            guard.cancel()
        # Without a subscriber systemd sends no JobRemoved.
        _raised(self._exchange([_call("Subscribe")])[0])
        return self._connection


#: The types of units whose interface has properties of cgroups.
_WITH_CGROUP: Final = ("slice", "scope", "service")


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _call(method: str, signature: str | None = None, body: tuple[object, ...] = ()) -> Message:
    """Return the message that calls a method of the manager."""
    return new_method_call(DBusAddress(_PATH, _NAME, _MANAGER), method, signature, body)


def _unit_call(unit: str, method: str, signature: str, *more: object) -> Message:
    """Return a call about a unit, or the error that the unit's name is."""
    try:
        return _call(method, signature, (check_unit(unit), *more))
    except UnitNameError as error:
        return error


def _method(message: Message) -> str:
    return str(message.header.fields[HeaderFields.member])


def _values(reply: Message, call: Message) -> Shown:
    """Return the values of a reply, or the error that it is."""
    values = tuple(reply.body)
    if reply.header.message_type is MessageType.error:
        name = str(reply.header.fields.get(HeaderFields.error_name, ""))
        text = str(values[0]) if values else ""
        return _ERRORS.get(name, BusError)(_method(call), name, text)
    if reply.header.fields.get(HeaderFields.signature, "") not in _REPLIES.get(
        _method(call), ("",)
    ):
        return ProtocolError(_method(call), values)
    return values


#: The signatures of the replies that are read.
_REPLIES: Final = {
    "GetUnit": ("o",),
    "Get": ("v",),
    "StartTransientUnit": ("o",),
    "StopUnit": ("o",),
}


def _variants(replies: Sequence[Shown]) -> Shown:
    """Return the values of variants, or the first error among them."""
    values: list[object] = []
    for reply in replies:
        if isinstance(reply, SystemdError):
            return reply
        variant: Message = reply[0]
        values.append(variant[1])
    return tuple(values)


def _raised(shown: Shown) -> tuple[object, ...]:
    if isinstance(shown, SystemdError):
        raise shown
    return shown


def _wire(properties: Sequence[Property]) -> list[tuple[str, tuple[str, object]]]:
    return [
        (
            each.name,
            (each.signature, list(each.value) if isinstance(each.value, tuple) else each.value),
        )
        for each in properties
    ]


def _guarded(
    method: Callable[Concatenate[Any, _Parameters], _Result],
) -> Callable[Concatenate[Breaker, _Parameters], _Result]:
    def call(self: Breaker, /, *given: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        if self.silence is not None:
            raise NotAskedError(self.silence)
        try:
            result: _Result = getattr(self.systemd, method.__name__)(*given, **named)
        except (BusTimeoutError, BusUnavailableError) as error:
            self.silence = error
            raise
        return result

    return call


class Breaker:
    """A `Systemd` that is not called again after it did not answer, until `try_again`.

    Each call then raises `NotAskedError` at once. Every call of a bus that hangs takes its whole
    deadline, and there may be hundreds of calls in one comparison of the cgroups.
    """

    def __init__(self, systemd: Systemd) -> None:
        self.systemd = systemd
        self.silence: BusTimeoutError | BusUnavailableError | None = None

    def try_again(self) -> None:
        """Ask systemd again with the next call."""
        self.silence = None

    start_transient = _guarded(Systemd.start_transient)
    set_properties = _guarded(Systemd.set_properties)
    stop = _guarded(Systemd.stop)
    active_state = _guarded(Systemd.active_state)
    control_group = _guarded(Systemd.control_group)
    unit_properties = _guarded(Systemd.unit_properties)
    properties_of = _guarded(Systemd.properties_of)
    set_properties_of = _guarded(Systemd.set_properties_of)


def ensure(systemd: Systemd, name: str, properties: Sequence[Property], *, about: str = "") -> bool:
    """Start the slice with these properties, or set them if it runs; return whether it was started.

    The slice is transient: nothing is left of it after `stop`. `about` is its description.
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
    running = systemd.active_state(check_unit(name, "slice")).running
    if running and properties:
        systemd.set_properties(name, properties)
    return running


def stop(systemd: Systemd, name: str) -> bool:
    """Stop the slice, and nothing that runs in it; return whether it ran."""
    # Stopping a slice that never was is a success, so its state is asked for first.
    running = systemd.active_state(check_unit(name, "slice")).running
    if running:
        systemd.stop(name)
    return running

"""What fakes of systemd share: the calls for several units, and a systemd around another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from systemd.units import BusTimeoutError, BusUnavailableError, SystemdError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from systemd.bus import ActiveState, Shown, Systemd
    from systemd.units import Property

_Result = TypeVar("_Result")


class _Single(Protocol):
    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]: ...

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None: ...


class OneByOne:
    """`Systemd.properties_of` and `set_properties_of` by the calls for one unit each."""

    def properties_of(self: _Single, asked: Sequence[tuple[str, Sequence[str]]]) -> list[Shown]:
        return [_result(partial(self.unit_properties, unit, *names)) for unit, names in asked]

    def set_properties_of(
        self: _Single, desired: Sequence[tuple[str, Sequence[Property]]]
    ) -> list[SystemdError | None]:
        return [_result(partial(self.set_properties, unit, given)) for unit, given in desired]


class SteppedSystemd(OneByOne):
    """A `Systemd` around another, whose every call is a `step`."""

    inner: Systemd

    def step(self, act: Callable[[], _Result], name: str, unit: str) -> _Result:
        raise NotImplementedError

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        self.step(lambda: self.inner.start_transient(unit, properties), "start", unit)

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        self.step(lambda: self.inner.set_properties(unit, properties), "set", unit)

    def stop(self, unit: str) -> None:
        self.step(lambda: self.inner.stop(unit), "stop", unit)

    def active_state(self, unit: str) -> ActiveState:
        return self.step(lambda: self.inner.active_state(unit), "state", unit)

    def control_group(self, unit: str) -> str:
        return self.step(lambda: self.inner.control_group(unit), "cgroup", unit)

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        return self.step(lambda: self.inner.unit_properties(unit, *names), "properties", unit)


def _result(call: Callable[[], _Result]) -> _Result | SystemdError:
    try:
        return call()
    except (BusTimeoutError, BusUnavailableError):
        raise
    except SystemdError as error:
        return error

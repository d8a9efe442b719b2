"""The calls for several units at once of a fake systemd."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from systemd.units import BusTimeoutError, BusUnavailableError, SystemdError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from systemd.bus import Shown
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


def _result(call: Callable[[], _Result]) -> _Result | SystemdError:
    try:
        return call()
    except (BusTimeoutError, BusUnavailableError):
        raise
    except SystemdError as error:
        return error

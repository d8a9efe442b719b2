"""A systemd whose bus hangs: every call takes its deadline, and nothing comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from systemd.units import BusTimeoutError
from tests.fakes.one_by_one import OneByOne

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from systemd.bus import ActiveState, Systemd
    from systemd.units import Property

DEADLINE = 5.0


class HangingSystemd(OneByOne):
    """`Systemd` that answers as another one does, unless it is `silent`.

    `deadlines` counts the calls that ended at their deadline; each calls `wait` with its seconds.
    """

    def __init__(self, systemd: Systemd, wait: Callable[[float], None]) -> None:
        self.silent = False
        self.deadlines = 0
        self._systemd = systemd
        self._wait = wait

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        self._hang("StartTransientUnit")
        self._systemd.start_transient(unit, properties)

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        self._hang("SetUnitProperties")
        self._systemd.set_properties(unit, properties)

    def stop(self, unit: str) -> None:
        self._hang("StopUnit")
        self._systemd.stop(unit)

    def active_state(self, unit: str) -> ActiveState:
        self._hang("GetUnit")
        return self._systemd.active_state(unit)

    def control_group(self, unit: str) -> str:
        self._hang("GetUnit")
        return self._systemd.control_group(unit)

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        self._hang("GetUnit")
        return self._systemd.unit_properties(unit, *names)

    def _hang(self, call: str) -> None:
        if self.silent:
            self.deadlines += 1
            self._wait(DEADLINE)
            raise BusTimeoutError(call, DEADLINE)

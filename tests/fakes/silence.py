"""A systemd whose bus hangs: every call takes its deadline, and nothing comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from systemd.units import BusTimeoutError
from tests.fakes.one_by_one import SteppedSystemd

if TYPE_CHECKING:
    from collections.abc import Callable

    from systemd.bus import Systemd

DEADLINE = 5.0
_Result = TypeVar("_Result")


class HangingSystemd(SteppedSystemd):
    """`Systemd` that answers as another one does, unless it is `silent`.

    `deadlines` counts the calls that ended at their deadline; each calls `wait` with its seconds.
    """

    def __init__(self, systemd: Systemd, wait: Callable[[float], None]) -> None:
        self.silent = False
        self.deadlines = 0
        self.inner = systemd
        self._wait = wait

    def step(self, act: Callable[[], _Result], name: str, unit: str) -> _Result:
        del unit
        if self.silent:
            self.deadlines += 1
            self._wait(DEADLINE)
            raise BusTimeoutError(name, DEADLINE)
        return act()

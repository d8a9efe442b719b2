from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from systemd.bus import Breaker
from systemd.units import (
    BusTimeoutError,
    BusUnavailableError,
    NoSuchUnitError,
    NotAskedError,
    SystemdError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UNIT = "kubepods.slice"
CALLS: dict[str, Callable[[Breaker], object]] = {
    "start_transient": lambda systemd: systemd.start_transient(UNIT, ()),
    "set_properties": lambda systemd: systemd.set_properties(UNIT, ()),
    "stop": lambda systemd: systemd.stop(UNIT),
    "active_state": lambda systemd: systemd.active_state(UNIT),
    "control_group": lambda systemd: systemd.control_group(UNIT),
    "properties_of": lambda systemd: systemd.properties_of([(UNIT, ("AllowedCPUs",))]),
    "set_properties_of": lambda systemd: systemd.set_properties_of([(UNIT, ())]),
    "unit_properties": lambda systemd: systemd.unit_properties(UNIT, "AllowedCPUs"),
}


class Rejecting:
    """A systemd whose every call fails in the same way."""

    def __init__(self, error: SystemdError) -> None:
        self.calls: list[str] = []
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*_: object) -> object:
            self.calls.append(name)
            raise self._error

        return call


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "silence", [BusTimeoutError("GetUnit", 5), BusUnavailableError("unix:path=/bus", "gone")]
)
def test_one_that_did_not_answer_is_not_asked_again(name: str, silence: SystemdError) -> None:
    systemd = Rejecting(silence)
    breaker = Breaker(systemd)  # type: ignore[arg-type]  # every method by __getattr__
    with pytest.raises(type(silence)):
        CALLS[name](breaker)
    for call in CALLS.values():
        with pytest.raises(NotAskedError, match="asked again at the next comparison"):
            call(breaker)
    assert systemd.calls == [name]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (BusTimeoutError("GetUnit", 5), True),
        (NoSuchUnitError("GetUnit", "NoSuchUnit", UNIT), False),
    ],
    ids=["on request", "after a rejection, which is an answer"],
)
def test_it_is_asked_again(error: SystemdError, *, again: bool) -> None:
    systemd = Rejecting(error)
    breaker = Breaker(systemd)  # type: ignore[arg-type]  # every method by __getattr__
    for _ in range(3):
        if again:
            breaker.try_again()
        with pytest.raises(type(error)):
            breaker.active_state(UNIT)
    assert len(systemd.calls) == 3

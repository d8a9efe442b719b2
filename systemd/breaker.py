"""A circuit breaker for systemd: a bus that hangs costs one deadline, not one for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from systemd.errors import BusTimeoutError, BusUnavailableError, NotAskedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from systemd.bus import ActiveState, Shown, Systemd
    from systemd.errors import SystemdError
    from systemd.properties import Property

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

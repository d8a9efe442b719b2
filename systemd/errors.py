"""What can go wrong with systemd: its bus, its units, their names.

A D-Bus error keeps its name (`org.freedesktop.systemd1.NoSuchUnit`), so that a caller can
distinguish rejections.
"""

from __future__ import annotations


class SystemdError(Exception):
    """Base of this package's errors."""


class UnitNameError(SystemdError, ValueError):
    """A text that is not the name of a unit, or not of the type that was needed."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name!r} is not usable as a unit name: {why}")
        self.name = name
        self.why = why


class BusUnavailableError(SystemdError):
    """The system bus cannot be reached, or the connection to it broke."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"the system bus at {address} cannot be used: {why}; check that dbus and systemd run, "
            "or set cgroupDriver: cgroupfs where there is no systemd"
        )
        self.address = address
        self.why = why


class BusTimeoutError(SystemdError):
    """systemd did not answer, or did not finish a job, before the deadline."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(
            f"systemd did not finish {what} within {seconds:g} s; it may still do so: "
            "read the unit's state before trying again"
        )
        self.what = what
        self.seconds = seconds


class BusSilentError(BusUnavailableError):
    """The socket of the bus accepts connections but does not answer."""


class NotAskedError(SystemdError):
    """systemd did not answer (`silence`), so it was not asked again for now."""

    def __init__(self, silence: BusTimeoutError | BusUnavailableError) -> None:
        super().__init__(f"systemd is asked again at the next comparison only: {silence}")
        self.silence = silence


class BusError(SystemdError):
    """systemd answered with an error."""

    def __init__(self, what: str, name: str, message: str) -> None:
        super().__init__(f"systemd rejected {what}: {message or 'no reason given'} ({name})")
        self.what = what
        self.name = name
        self.message = message


class NoSuchUnitError(BusError):
    """The unit is not loaded (`org.freedesktop.systemd1.NoSuchUnit`)."""


class UnitExistsError(BusError):
    """The unit is loaded already (`org.freedesktop.systemd1.UnitExists`)."""


class JobFailedError(SystemdError):
    """A start or stop was queued and ended otherwise than done (systemd's job results)."""

    def __init__(self, unit: str, job: str, result: str) -> None:
        super().__init__(f"systemd could not {job} {unit}: its job ended as {result!r}")
        self.unit = unit
        self.job = job
        self.result = result


class ProtocolError(SystemdError):
    """An answer that does not have the documented form."""

    def __init__(self, what: str, answer: object) -> None:
        super().__init__(f"systemd answered {what} with {answer!r}, which was not expected")
        self.what = what
        self.answer = answer

"""What a check of a host says."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """`ERROR`: the agent must not run like this. `UNKNOWN`: the facts could not be read."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


class HostCheck(Struct, frozen=True):
    """One check: its name, the verdict, what was found and where, and what to change.

    `found` names files and endpoints. `change` is the line to change with its file, or a command,
    and "" where nothing is to be changed.
    """

    check: str
    verdict: Verdict
    found: str
    change: str = ""

    @property
    def line(self) -> str:
        """What was found, and what to change."""
        return f"{self.found}; {self.change}" if self.change else self.found

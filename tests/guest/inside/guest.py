"""What a scenario is given: its checks, and the directory whose files come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.guest.inside import commands
from tests.guest.inside.checks import Checks

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Guest:
    """One scenario's run."""

    job: Path = Path("/job")
    out: Path = Path("/out")
    work: Path = Path("/run/guest")
    checks: Checks = field(default_factory=Checks)
    _collectors: list[Callable[[], None]] = field(default_factory=list)

    def log(self, name: str, text: str) -> None:
        """Keep a text as a log that comes back from the guest."""
        directory = self.out / "logs"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)

    def at_end(self, collect: Callable[[], None]) -> None:
        """Have something done when the scenario is over, however it ended; the last comes first."""
        self._collectors.append(collect)

    def finish(self) -> None:
        """Collect the logs."""
        for collect in reversed(self._collectors):
            collect()
        journal = commands.attempt("journalctl", "--no-pager", "--boot", "-o", "short-monotonic")
        self.log("journal.log", journal.stdout)

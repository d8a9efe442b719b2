"""Programs of the guest, run to their end."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.guest.inside.checks import STUCK

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended and what it said."""

    command: str
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.status == 0

    def json(self) -> object:
        """Return its standard output, parsed; raises `ValueError` when that is not JSON."""
        loaded: object = json.loads(self.stdout)
        return loaded

    def __str__(self) -> str:
        said = f"{self.stdout.strip()}\n{self.stderr.strip()}".strip()
        return f"`{self.command}` exited with {self.status}: {said[-1500:]}"


class CommandFailed(Exception):  # noqa: N818 - reads as what happened
    """A program that a scenario stands on failed."""


def attempt(*command: str | Path, timeout: float = STUCK, stdin: str = "") -> Outcome:
    """Run a program to its end; a timeout is status 124, as `timeout` has it."""
    argv = [str(part) for part in command]
    line = shlex.join(argv)
    try:
        done = subprocess.run(
            argv,
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return Outcome(line, 124, "", f"no end within {timeout:g} seconds")
    return Outcome(line, done.returncode, done.stdout, done.stderr)


def run(*command: str | Path, timeout: float = STUCK, stdin: str = "") -> str:
    """Run a program and return its standard output; raises `CommandFailed`."""
    outcome = attempt(*command, timeout=timeout, stdin=stdin)
    if not outcome.ok:
        raise CommandFailed(str(outcome))
    return outcome.stdout

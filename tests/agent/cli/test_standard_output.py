"""A command says with its exit code what it found, whatever becomes of its output."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from agent.cli.errors import ExitCode

#: Prints more than a pipe holds, and then says no.
_LONG: Final = (
    "from agent.cli.errors import open_standard_output, reader_is_gone\n"
    "open_standard_output()\n"
    "for _ in range(1000): print('x' * 1000, flush=True)\n"
    "raise SystemExit(7 if reader_is_gone() else 0)\n"
)


def shell(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script, "bash", *arguments], capture_output=True, text=True, check=False
    )


def test_a_reader_that_went_away_leaves_the_commands_own_exit_code() -> None:
    done = shell('set -o pipefail; "$@" | head -n 1', sys.executable, "-c", _LONG)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("arguments", [("--help",), ("nosuch",)])
def test_neither_does_a_short_answer_that_nothing_reads(arguments: tuple[str, ...]) -> None:
    command = (sys.executable, "-m", "agent.cli.main", *arguments)
    read, unread = (
        shell('"$@" >/dev/null', *command),
        shell('"$@" | true; exit ${PIPESTATUS[0]}', *command),
    )
    assert (unread.returncode, unread.stderr) == (read.returncode, read.stderr)


def test_a_full_disk_is_named_as_that_of_standard_output() -> None:
    done = shell('"$@" > /dev/full', sys.executable, "-m", "agent.cli.main", "completion", "bash")
    assert done.returncode == ExitCode.ENVIRONMENT
    assert done.stderr == "numawarden: error: standard output: No space left on device\n"


def test_standard_output_may_be_closed() -> None:
    done = shell('"$@" >&-', sys.executable, "-m", "agent.cli.main", "completion", "bash")
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")

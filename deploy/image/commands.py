"""The programs that the build runs, and what is said when one is missing or fails."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: How much of a failed program's output is shown, in characters.
TAIL: Final = 4000


class ImageError(Exception):
    """The image cannot be built here; the text says what is missing."""


def run(command: Sequence[str | Path], epoch: int | None = None) -> str:
    """Run a program to its end and return what it printed to its standard output.

    `epoch` is its SOURCE_DATE_EPOCH, in seconds. Raises `ImageError`, with what the program
    printed, where it is not there or fails.
    """
    argv = [str(part) for part in command]
    dated = {} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)}
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and arguments of the build's own
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **dated},
        )
    except OSError as error:
        raise ImageError(f"cannot run {argv[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stdout + done.stderr)[-TAIL:]
        raise ImageError(f"{shlex.join(argv)} exited with {done.returncode}:\n{said}")
    return done.stdout

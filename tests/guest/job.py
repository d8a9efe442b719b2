"""One guest's work: the tar it gets, and what comes back."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.guest import wheel
from tests.guest.errors import GuestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Room for everything a scenario brings back; the file is sparse.
OUT_SIZE: Final = 256 << 20

#: Sources that the scenarios import, besides the agent's own environment.
SOURCES: Final = ("tests/__init__.py", "tests/guest", "tests/cgroupfs")
#: Files a user installs beside the agent.
DEPLOY: Final = "deploy"

RUN: Final = """#!/bin/sh
[ -d /job/environment ] && { mkdir -p /opt; mv /job/environment /opt/numawarden; }
exec python3 -m tests.guest.inside "$(cat scenario)"
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a job carries besides the sources: the agent's environment and wheels, or None."""

    environment: Path | None = None
    wheels: wheel.Wheels | None = None


def pack(file: Path, scenario: str, nonce: str, contents: Contents) -> None:
    """Write the tar that the guest unpacks into /job."""
    with tarfile.open(file, "w") as tar:
        for name, text in {"run": RUN, "scenario": scenario, "nonce": nonce}.items():
            _add_text(tar, name, text)
        for source in SOURCES:
            if (wheel.PROJECT / source).exists():
                tar.add(wheel.PROJECT / source, source, filter=_without_caches)
        tar.add(wheel.PROJECT / DEPLOY, DEPLOY, filter=_without_caches)
        if contents.environment:
            tar.add(contents.environment, "environment", filter=_owned_by_root)
        if contents.wheels:
            for directory in (contents.wheels.agent, contents.wheels.dependencies):
                for file_ in sorted(directory.glob("*.whl")):
                    tar.add(file_, f"wheels/{file_.name}", filter=_owned_by_root)


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


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.endswith("__pycache__"):
        return None
    return _owned_by_root(member)

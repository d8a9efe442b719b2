"""The Debian part of the image: packages unpacked into an empty root, and what they are."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.building import BuildError, run

if TYPE_CHECKING:
    from collections.abc import Sequence

SUITE: Final = "trixie"
RELEASE: Final = "13"
ARCHITECTURE: Final = "amd64"
HERE: Final = Path(__file__).parent

#: Where mmdebstrap leaves the packages it unpacked, below the root.
ARCHIVES: Final = "var/cache/apt/archives"
#: Where scanners of images without dpkg look for what is installed: a control file a package.
STATUS: Final = "var/lib/dpkg/status.d"


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package: name, version, architecture, SHA-256 of its file in hex, control file."""

    name: str
    version: str
    architecture: str
    sha256: str
    control: str


def entries(name: str) -> list[str]:
    """Return the lines of a list beside this file, without comments."""
    lines = (HERE / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def bootstrap(root: Path, sources: Sequence[str], epoch: int) -> tuple[Package, ...]:
    """Unpack the listed packages and what they depend on into an empty root; return them by name.

    No maintainer script runs, which would need a shell and dpkg in the image. `sources` are apt's
    source lines; empty: Debian's own mirror. Needs root. Raises `BuildError`.
    """
    if shutil.which("mmdebstrap") is None:
        raise BuildError("mmdebstrap is missing; install it: apt-get install mmdebstrap")
    run(
        [
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--format=directory"),
            f"--architectures={ARCHITECTURE}",
            '--aptopt=Acquire::Languages "none"',
            '--aptopt=APT::Install-Recommends "false"',
            "--skip=cleanup/apt",  # the packages are read below, then removed
            f"--include={','.join(entries('packages'))}",
            SUITE,
            root,
            *sources,
        ],
        epoch,
    )
    packages = tuple(sorted(map(describe, (root / ARCHIVES).glob("*.deb")), key=lambda p: p.name))
    for pattern in entries("removed"):
        for path in list(root.glob(pattern)):
            remove(path)
    for document in root.glob("usr/share/doc/*/*"):
        if document.name != "copyright":
            remove(document)
    (root / STATUS).mkdir(parents=True)
    for package in packages:
        (root / STATUS / package.name).write_text(package.control)
    return packages


def sources(suite: str) -> list[str]:
    """Return apt source lines for a Debian suite from the mirrors this host is set up with.

    Empty where the host's apt knows no Debian mirror (Ubuntu): mmdebstrap has a default. Raises
    `BuildError`.
    """
    if shutil.which("apt-get") is None:
        return []
    listing = run(
        [
            *("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"),
            "Created-By: Packages",
        ]
    )
    lines: dict[str, None] = {}
    for target in listing.splitlines():
        match target.split():
            case ["Debian", "Debian", uri]:
                lines[f"deb {uri} {suite} main"] = None
                lines[f"deb {uri} {suite}-updates main"] = None
            case ["Debian", "Debian-Security", uri]:
                lines[f"deb {uri} {suite}-security main"] = None
            case _:
                pass
    return list(lines)


def describe(file: Path) -> Package:
    """Return what a package file is. Raises `BuildError` where it is none."""
    control = run(["dpkg-deb", "--field", file])
    fields = dict(line.split(": ", 1) for line in control.splitlines() if ": " in line)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Package(fields["Package"], fields["Version"], fields["Architecture"], digest, control)


def remove(path: Path) -> None:
    """Remove a file, a link, or a directory with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()

"""Programs of Debian packages that are unpacked and not installed, with their own C library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest import host
from tests.guest.image import LIBRARIES
from tests.guest.scenarios import SUITE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def unpack(directory: Path, packages: Sequence[str]) -> None:
    """Unpack packages and what they depend on into an empty directory; raises `GuestError`."""
    host.provide(host.BUILD_NEEDS)
    host.run(
        [
            *("mmdebstrap", "--quiet", "--variant=extract", "--architectures=amd64"),
            f"--include={','.join(packages)}",
            *host.debian_options(),
            *(SUITE, directory),
            *host.debian_sources(SUITE),
        ]
    )


def command(tree: Path, program: str) -> list[str]:
    """Return the command that runs a program below `usr/bin` of an unpacked tree."""
    libraries = tree / LIBRARIES
    loader = (libraries / "ld-linux-x86-64.so.2", "--library-path", libraries)
    return [str(part) for part in (*loader, tree / "usr/bin" / program)]

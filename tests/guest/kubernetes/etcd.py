"""etcd, unpacked from Debian's package: the API server stands on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest import cache, host
from tests.guest.image import SUITE

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE: Final = "etcd-server"


def provide(store: cache.Cache) -> list[str]:
    """Return the command that starts etcd; it runs with the C library of its own suite."""
    key = cache.key_of(SUITE.encode(), PACKAGE.encode())
    tree = store.entry("etcd", key, _unpack)
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    loader = (libraries / "ld-linux-x86-64.so.2", "--library-path", libraries)
    return [*map(str, loader), str(tree / "usr/bin/etcd")]


def _unpack(directory: Path) -> None:
    host.provide(host.BUILD_NEEDS)
    host.run(
        [
            *("mmdebstrap", "--quiet", "--variant=extract", "--architectures=amd64"),
            f"--include={PACKAGE}",
            *(SUITE, directory),
            *host.debian_sources(SUITE),
        ]
    )

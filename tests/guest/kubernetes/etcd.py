"""etcd, unpacked from Debian's package: the API server stands on it."""

from __future__ import annotations

from typing import Final

from tests.guest import cache, unpacked
from tests.guest.scenarios import SUITE

PACKAGE: Final = "etcd-server"


def provide(store: cache.Cache) -> list[str]:
    """Return the command that starts etcd; it runs with the C library of its own suite."""
    key = cache.key_of(SUITE.encode(), PACKAGE.encode())
    tree = store.entry("etcd", key, lambda where: unpacked.unpack(where, [PACKAGE]))
    return unpacked.command(tree, "etcd")

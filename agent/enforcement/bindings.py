"""Bindings: which cgroup an operator said a container runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Container, Iterator


class Binding(Struct, frozen=True, order=True):
    """One container and its cgroup.

    `cgroup` is its path below the cgroup root, without a leading slash.
    """

    pod_uid: str
    container: str
    cgroup: str


class Bindings(Struct, frozen=True):
    """All explicit bindings: at most one per container and one per cgroup, in a stable order."""

    entries: tuple[Binding, ...] = ()

    def __iter__(self) -> Iterator[Binding]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def with_binding(self, new: Binding) -> Bindings:
        """Return the bindings with `new`; it replaces one of the same container or cgroup."""
        kept = (old for old in self.entries if not _collide(old, new))
        return Bindings(tuple(sorted((*kept, new))))

    def without(self, gone: Container[Binding]) -> Bindings:
        """Return the bindings without some of them."""
        return Bindings(tuple(entry for entry in self.entries if entry not in gone))

    def without_pod(self, pod_uid: str) -> Bindings:
        """Return the bindings without those of one pod."""
        return Bindings(tuple(entry for entry in self.entries if entry.pod_uid != pod_uid))

    def of_pod(self, pod_uid: str) -> tuple[Binding, ...]:
        """Return the bindings of one pod."""
        return tuple(entry for entry in self.entries if entry.pod_uid == pod_uid)


NO_BINDINGS: Final = Bindings()


def _collide(old: Binding, new: Binding) -> bool:
    same_container = (old.pod_uid, old.container) == (new.pod_uid, new.container)
    return same_container or old.cgroup == new.cgroup

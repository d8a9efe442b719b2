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
    """All explicit bindings: at most one per container and one per cgroup, in a stable order.

    `released` are cgroups, sorted, that were bound to a container which was then bound to another
    one. They have the sets of that container until something else is written there, so they are
    remembered until that was done and what runs in them has ended.
    """

    entries: tuple[Binding, ...] = ()
    released: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Binding]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def with_binding(self, new: Binding) -> Bindings:
        """Return the bindings with `new`; it replaces one of the same container or cgroup.

        The cgroup that the container had before is released, and `new.cgroup` is no longer.
        """
        kept = (old for old in self.entries if not _collide(old, new))
        lost = (old.cgroup for old in self.entries if _collide(old, new))
        released = {*self.released, *lost} - {new.cgroup}
        return Bindings(tuple(sorted((*kept, new))), tuple(sorted(released)))

    def of_container(self, pod_uid: str, container: str) -> Binding | None:
        """Return the binding of a container, None without one."""
        named = (pod_uid, container)
        return next((b for b in self.entries if (b.pod_uid, b.container) == named), None)

    def without_binding(self, old: Binding) -> Bindings:
        """Return the bindings without one of them, whose cgroup is released."""
        kept = tuple(entry for entry in self.entries if entry != old)
        return Bindings(kept, tuple(sorted({*self.released, old.cgroup})))

    def of_containers(self, pod_uid: str, names: Container[str]) -> Bindings:
        """Return the bindings as they are once the containers of a pod are those of `names`.

        A pod that was recovered has containers by the names of their cgroups until it is admitted.
        The cgroups of others are released.
        """
        stale = {b for b in self.entries if b.pod_uid == pod_uid and b.container not in names}
        if not stale:
            return self
        kept = tuple(entry for entry in self.entries if entry not in stale)
        return Bindings(kept, tuple(sorted({*self.released, *(old.cgroup for old in stale)})))

    def without(self, ended: Container[str], living: Container[str]) -> Bindings:
        """Return the bindings without the cgroups `ended`.

        A binding of a pod (uid) that is `living` stays: its container may start again.
        """
        kept = (b for b in self.entries if b.pod_uid in living or b.cgroup not in ended)
        return Bindings(tuple(kept), tuple(path for path in self.released if path not in ended))

    def given_up(self, living: Container[str]) -> tuple[str, ...]:
        """Return the cgroups, sorted, that have no container any more.

        These are the released ones, and those bound to containers of pods (uids) that are not
        `living`.
        """
        gone = (entry.cgroup for entry in self.entries if entry.pod_uid not in living)
        return tuple(sorted({*self.released, *gone}))

    def without_pod(self, pod_uid: str) -> Bindings:
        """Return the bindings without those of one pod."""
        kept = tuple(entry for entry in self.entries if entry.pod_uid != pod_uid)
        return Bindings(kept, self.released)

    def of_pod(self, pod_uid: str) -> tuple[Binding, ...]:
        """Return the bindings of one pod."""
        return tuple(entry for entry in self.entries if entry.pod_uid == pod_uid)


NO_BINDINGS: Final = Bindings()


def _collide(old: Binding, new: Binding) -> bool:
    same_container = (old.pod_uid, old.container) == (new.pod_uid, new.container)
    return same_container or old.cgroup == new.cgroup

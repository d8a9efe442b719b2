"""Bindings: the cgroups of containers that a caller has named, as the checkpoint keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.values import Name, Saved

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from agent.managers.allocation import PodAllocation


class Binding(Saved, frozen=True, order=True):
    """One container and its cgroup."""

    pod_uid: Name
    container: Name
    #: The path below the cgroup root, without a leading slash.
    cgroup: Name

    def is_of(self, living: Mapping[str, PodAllocation]) -> bool:
        """Return whether one of the pods, by uid, has the container.

        The containers of a recovered pod are named after their cgroups until it is admitted.
        """
        pod = living.get(self.pod_uid)
        return pod is not None and pod.container(self.container) is not None


class Bindings(Saved, frozen=True):
    """All explicit bindings: at most one per container and one per cgroup."""

    #: Sorted.
    entries: tuple[Binding, ...] = ()
    #: The cgroups, sorted, that lost their container. Each keeps the cpuset of the container until
    #: another set is written, and is listed until then and until its processes have ended.
    released: tuple[Name, ...] = ()

    def __iter__(self) -> Iterator[Binding]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def with_binding(self, new: Binding) -> Bindings:
        """Return the bindings with `new` in place of those of the same container or cgroup.

        The previous cgroup of the container becomes released; `new.cgroup` is no longer released.
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
        """Return the bindings without `old`, whose cgroup becomes released."""
        kept = tuple(entry for entry in self.entries if entry != old)
        return Bindings(kept, tuple(sorted({*self.released, old.cgroup})))

    def of_containers(self, pod_uid: str, names: Container[str]) -> Bindings:
        """Return the bindings, of one pod only those of the containers in `names`.

        The cgroups of the removed bindings become released.
        """
        stale = {b for b in self.entries if b.pod_uid == pod_uid and b.container not in names}
        if not stale:
            return self
        kept = tuple(entry for entry in self.entries if entry not in stale)
        return Bindings(kept, tuple(sorted({*self.released, *(old.cgroup for old in stale)})))

    def without(self, ended: Container[str], living: Container[str]) -> Bindings:
        """Return the bindings without the cgroups `ended`; nor are these released any longer.

        The bindings of the pods `living` (uids) stay: their containers may start again.
        """
        kept = (b for b in self.entries if b.pod_uid in living or b.cgroup not in ended)
        return Bindings(tuple(kept), tuple(path for path in self.released if path not in ended))

    def given_up(self, living: Mapping[str, PodAllocation]) -> tuple[str, ...]:
        """Return the cgroups, sorted, that no longer have a container.

        These are the released cgroups, and the cgroups of containers that no pod of `living` has.
        """
        gone = (entry.cgroup for entry in self.entries if not entry.is_of(living))
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

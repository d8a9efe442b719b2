"""What runs in the pods' cgroups as the kernel shows it, whether the ledger has the pods or not.

In go the tree and the files of a runtime; out come the uids of the pods that have a cgroup, and at
a start without a usable checkpoint the pods from which the ledger is recovered.
"""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.recovery import ObservedContainer, ObservedPod
from agent.pods.model import QosClass
from agent.runtimes import RuntimeName
from cgroupfs.names import Tier, containers
from cgroupfs.settings import MEMORY_MAX
from cgroupfs.state import GONE, CgroupState, effective_sets, is_populated, read_state
from cgroupfs.tree import join, parent
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from agent.runtimes import ContainerIdentifier
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree

_QOS: Final = {tier: QosClass(str(tier)) for tier in Tier if tier is not Tier.SHARED} | {
    Tier.SHARED: QosClass.GUARANTEED
}


def pod_uids(tree: CgroupTree, layout: Layout, doubted: Collection[str] = ()) -> frozenset[str]:
    """Return the uids of all pods that have a cgroup.

    One of those `doubted` counts only if processes are in its cgroup.
    Pods of the kubelet's system partition are among them. Raises `OSError` as the tree does.
    """
    above = [layout.tier(tier) for tier in Tier]
    if tree.exists(layout.tier(Tier.GUARANTEED, system=True)):
        above += [layout.tier(tier, system=True) for tier in Tier]
    paths = (path for each in above for path in _pod_paths(tree, each))
    named = ((path, layout.parse_pod(path)) for path in paths)
    return frozenset(
        name.uid
        for path, name in named
        if name is not None and (name.uid not in doubted or is_populated(tree, path))
    )


def seen_pods(
    tree: CgroupTree, layout: Layout, finder: ContainerIdentifier | None = None
) -> tuple[ObservedPod, ...]:
    """Return every pod cgroup in which processes live. Raises `OSError` as the tree does.

    Those of the kubelet's system partition are left out: their CPUs are not the agent's.
    Containers that `finder` identifies have their own names, others those of their directories.
    A cgroup that inherits the shared pool from its QoS class is shown with the pool.
    """
    whole, _ = effective_sets(tree, parent(layout.pods()))
    found = (each for tier in Tier for each in _of_tier(tree, layout, tier, whole))
    return tuple(pod if finder is None else _as_named(finder, path, pod) for path, pod in found)


class _Unnamed(Struct, frozen=True):
    """A pod with only the uid known (an `agent.pods.model.Named`)."""

    uid: str
    name: str = ""
    namespace: str = ""


def _as_named(finder: ContainerIdentifier, path: str, pod: ObservedPod) -> ObservedPod:
    """Use the names that the runtime knows, and leave out the sandbox, which has no allocation."""
    named = [finder.container_of(_Unnamed(pod.uid), join(path, c.name)) for c in pod.containers]
    times = Counter(each.container for each in named if each is not None)
    containers = (
        replace(seen, name=known.container)
        if known is not None and known.container and times[known.container] == 1
        else seen
        for seen, known in zip(pod.containers, named, strict=True)
        if known != RuntimeName(None)
    )
    return replace(pod, containers=tuple(containers))


def _of_tier(
    tree: CgroupTree, layout: Layout, tier: Tier, whole: Mask
) -> Iterator[tuple[str, ObservedPod]]:
    pool = EMPTY
    if tier is not Tier.GUARANTEED:
        of_class = _state(tree, layout.tier(tier))
        pool = EMPTY if of_class is None else _own_cpus(of_class, whole)
    for path in _pod_paths(tree, layout.tier(tier)):
        named, own = layout.parse_pod(path), _state(tree, path)
        if named is not None and own is not None and own.populated:
            inside = ((each, _state(tree, each)) for each in containers(tree, path))
            seen = _seen(tree, path, own, whole, pool)
            # A container of a Guaranteed pod that inherits is one that has no allocation.
            above = EMPTY if tier is Tier.GUARANTEED else seen.cpus
            running = tuple(
                _seen(tree, each, state, whole, above)
                for each, state in inside
                if state is not None and state.populated
            )
            yield path, ObservedPod(named.uid, _QOS[tier], seen, running)


def _pod_paths(tree: CgroupTree, above: str) -> tuple[str, ...]:
    """Return the children of the cgroup of a tier, in which the pods are."""
    try:
        return tuple(join(above, name) for name in tree.children(above))
    except FileNotFoundError:
        return ()


def _state(tree: CgroupTree, path: str) -> CgroupState | None:
    """Return what a cgroup shows, None when it is gone or being removed (ENODEV)."""
    try:
        return read_state(tree, path)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return None


def _own_cpus(state: CgroupState, whole: Mask) -> Mask:
    """Return the CPUs of a cgroup's own; with all CPUs as with none it has what its parent has."""
    cpus = state.cpus or EMPTY
    return EMPTY if whole and whole <= cpus else cpus


def _seen(
    tree: CgroupTree, path: str, state: CgroupState, whole: Mask, above: Mask
) -> ObservedContainer:
    """Return what a cgroup shows; without CPUs of its own it has those of the cgroup `above`."""
    own = _own_cpus(state, whole)
    cpus = own or above
    return ObservedContainer(
        path.rpartition("/")[2],
        cpus,
        state.mems or EMPTY,
        cpus == (state.cpus_effective or cpus),
        _memory_limit(tree, path),
        inherits=not own,
    )


def _memory_limit(tree: CgroupTree, path: str) -> int:
    """Return `memory.max` in bytes, 0 for "max" and where the controller is not enabled."""
    limit = (_read(tree, path, MEMORY_MAX) or "").strip()
    return int(limit) if limit.isdecimal() else 0


def _read(tree: CgroupTree, path: str, file: str) -> str | None:
    """Return a file of a cgroup, None where either is gone or being removed."""
    try:
        (text,) = tree.read_many(path, (file,))
    except OSError as error:
        if error.errno not in GONE:
            raise
        return None
    return text

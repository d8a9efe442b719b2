"""Controllers along a path: which cgroups have `cpuset` and `cpu`, which lack them, enabling them.

A cgroup has a controller's files when its parent lists it in `cgroup.subtree_control`, and the
parent may list it only when it has it itself (`cgroup.controllers`;
Documentation/admin-guide/cgroup-v2.rst, "Enabling and Disabling").
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from cgroupfs.errors import ControllerRejectedError, ControllerUnavailableError
from cgroupfs.settings import KernelController
from cgroupfs.tree import ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cgroupfs.tree import CgroupTree

CPUSET: Final = KernelController.CPUSET.value
HUGETLB: Final = KernelController.HUGETLB.value
#: Every cgroup of a pod needs these.
NEEDED: Final = tuple(each.value for each in KernelController if each.threaded)
AVAILABLE: Final = "cgroup.controllers"
ENABLED: Final = "cgroup.subtree_control"


def enable(tree: CgroupTree, path: str, needed: Sequence[str] = NEEDED) -> tuple[str, ...]:
    """Enable controllers for the cgroup `path` in every ancestor, from the root down.

    Writes only where something is missing and reads back. Returns the ancestors that were
    written. Raises `ControllerUnavailableError` naming the first ancestor that does not have the
    controller itself, `ControllerRejectedError` when the kernel rejects (processes in it, gone).
    """
    return tuple(above for above in ancestors(path) if _enable_in(tree, path, above, needed))


def lacking(tree: CgroupTree, path: str, needed: Iterable[str] = NEEDED) -> tuple[str, ...]:
    """Return the ancestors of `path`, root first, that do not pass on all of `needed`.

    An ancestor that is gone counts as lacking.
    """
    desired = set(needed)
    return tuple(above for above in ancestors(path) if not desired <= enabled(tree, above))


def enabled(tree: CgroupTree, path: str) -> frozenset[str]:
    """Return what `path` passes on to its children, nothing when it is gone."""
    try:
        return frozenset(tree.read(path, ENABLED).split())
    except FileNotFoundError:
        return frozenset()


def available(tree: CgroupTree) -> frozenset[str]:
    """Return the controllers that the root has: what the kernel offers here."""
    return frozenset(tree.read("", AVAILABLE).split())


def _enable_in(tree: CgroupTree, path: str, above: str, needed: Sequence[str]) -> bool:
    have, on = _words(tree, path, above, AVAILABLE), _words(tree, path, above, ENABLED)
    missing = [name for name in needed if name not in on]
    if not missing:
        return False
    absent = [name for name in missing if name not in have]
    if absent:
        raise ControllerUnavailableError(path, above, absent, _why_absent(above))
    try:
        tree.write(above, ENABLED, " ".join(f"+{name}" for name in missing))
    except OSError as error:
        raise ControllerRejectedError(path, above, error, _remedy(error)) from error
    still = [name for name in missing if name not in _words(tree, path, above, ENABLED)]
    if still:
        raise ControllerUnavailableError(path, above, still, "another writer removed it at once")
    return True


def _words(tree: CgroupTree, path: str, above: str, file: str) -> list[str]:
    try:
        return tree.read(above, file).split()
    except OSError as error:
        raise ControllerRejectedError(path, above, error, _remedy(error)) from error


def _why_absent(above: str) -> str:
    if above:
        return "something removed it from the ancestor's parent while it was being enabled"
    return "the kernel has it disabled (cgroup_disable=), in cgroup v1, or not delegated here"


_REMEDIES: Final = {
    errno.EBUSY: "processes live in that cgroup itself: move them into a child of it",
    errno.ENOENT: "that cgroup is gone, or lost the controller meanwhile: create it and try again",
    errno.EACCES: "run as root, or have the subtree delegated",
    errno.EPERM: "run as root, or have the subtree delegated",
    errno.EROFS: "mount the cgroup file system writable (ProtectControlGroups=no)",
    errno.EOPNOTSUPP: "that cgroup is threaded, which cannot host pods",
}


def _remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "see the kernel log")

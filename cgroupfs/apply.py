"""Applying a plan: each write is followed by a read-back.

A write that succeeds may have no effect, so after every write the file and its `.effective` are
read back (`cgroupfs.plan` says why). Nothing is raised for what the kernel rejects; every write has
a `WriteOutcome`, so that the caller can report all of them and decide.

A file can be written only where its controller is enabled. A cgroup has a controller's files when
its parent lists it in `cgroup.subtree_control`, and the parent may list it only when it has it
itself (`cgroup.controllers`; Documentation/admin-guide/cgroup-v2.rst, "Enabling and Disabling").
`lacking` returns which cgroups along a path lack controllers, `enable` enables them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.errors import ControllerRejectedError, ControllerUnavailableError
from cgroupfs.plan import WriteStage
from cgroupfs.settings import CPUS, EFFECTIVE, MEMS, KernelController
from cgroupfs.state import EVENTS, GONE, MEMS_EFFECTIVE, POPULATED
from cgroupfs.tree import ancestors, is_within
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cgroupfs.plan import Plan, Write
    from cgroupfs.tree import CgroupTree


class WriteResult(StrEnum):
    """The result of one write."""

    OK = "ok"
    NOT_EFFECTIVE = "not effective"
    FAILED = "failed"
    GONE = "gone"
    SKIPPED = "skipped"


class WriteOutcome(Struct, frozen=True):
    """One write and what the kernel shows after it.

    `shown` is the file's text, `effective` that of its `.effective` (None where there is none).
    `error` is the errno of a rejection. `detail` is one sentence, empty on success. Why a set is
    not effective is found by comparing all cgroups, since the reason may lie above this one.
    """

    write: Write
    result: WriteResult
    shown: str | None = None
    effective: str | None = None
    error: int | None = None
    detail: str = ""


class Applied(Struct, frozen=True):
    """The outcomes of a plan, in its order."""

    outcomes: tuple[WriteOutcome, ...]

    @property
    def ok(self) -> bool:
        """Whether the kernel shows everything as planned."""
        return all(outcome.result is WriteResult.OK for outcome in self.outcomes)

    @property
    def failures(self) -> tuple[WriteOutcome, ...]:
        """The outcomes that are not OK."""
        return tuple(outcome for outcome in self.outcomes if outcome.result is not WriteResult.OK)


def apply(tree: CgroupTree, plan: Plan, of_host: Collection[str] = ()) -> Applied:
    """Write the plan in its order and read everything back.

    No CPU is given to a cgroup while another pod's still uses it:

    1. When a cgroup that should shrink or be confined still uses more than its new set, the later
       stages are skipped.
    2. When one that should get other CPUs keeps former ones, whether its write failed, had no
       effect or was skipped, each later write is skipped that would give these away.

    Cgroups of `of_host` are no pod's: what they keep stops no write. All other failures are only
    recorded.
    """
    outcomes: list[WriteOutcome] = []
    blocker: WriteOutcome | None = None
    blocked_after = WriteStage.SETTLE
    kept: list[tuple[WriteOutcome, Mask]] = []
    for write in plan.writes:
        late = blocker is not None and write.stage > blocked_after
        cause = blocker if late else _taken_from(tree, write, kept)
        outcome = apply_write(tree, write) if cause is None else _skipped(write, cause)
        outcomes.append(outcome)
        if outcome.result in (WriteResult.OK, WriteResult.GONE) or write.cgroup in of_host:
            continue
        if blocker is None and _blocks(outcome):
            blocker, blocked_after = outcome, write.stage
        if write.file == CPUS:
            kept.append((outcome, _used(tree, write.cgroup) - Mask.parse(write.value)))
    return Applied(tuple(outcomes))


def _taken_from(
    tree: CgroupTree, write: Write, kept: Sequence[tuple[WriteOutcome, Mask]]
) -> WriteOutcome | None:
    """Return the failure after which another cgroup has CPUs that this write would give away."""
    if not kept or write.file != CPUS:
        return None
    gains = Mask.parse(write.value) - _used(tree, write.cgroup)
    for outcome, cpus in kept:
        holder = outcome.write.cgroup
        related = is_within(holder, (write.cgroup,)) or is_within(write.cgroup, (holder,))
        if not related and not gains.isdisjoint(cpus):
            return outcome
    return None


def _used(tree: CgroupTree, path: str) -> Mask:
    """Return the CPUs that a cgroup uses: where it does not show them, those of one above it."""
    for at in (path, *reversed(ancestors(path))):
        with suppress(OSError):
            (text,) = tree.read_many(at, (EFFECTIVE[CPUS],))
            if text is not None:
                return Mask.parse(text)
    return EMPTY


def apply_write(tree: CgroupTree, write: Write) -> WriteOutcome:
    """Write one file and read it back; does not raise when the kernel rejects the write."""
    try:
        if write.file == MEMS:
            _write_mems(tree, write)
        else:
            tree.write(write.cgroup, write.file, write.value or "\n")
    except OSError as error:
        return _failed(tree, write, error)
    try:
        return _read_back(tree, write)
    except OSError as error:
        return _failed(tree, write, error)


def _write_mems(tree: CgroupTree, write: Write) -> None:
    """Write memory nodes so that the pages of the processes in the cgroup are migrated.

    The kernel (6.12) migrates pages from the nodes that the cgroup had before. It has no such nodes
    for a cgroup whose processes were cloned into it (CLONE_INTO_CGROUP, as runtimes start
    containers): the first write migrates nothing. Writing the former nodes and then the new ones
    again migrates the pages.
    """
    texts = tree.read_many(write.cgroup, (MEMS, MEMS_EFFECTIVE, EVENTS))
    written, effective, events = ((text or "").strip() for text in texts)
    tree.write(write.cgroup, MEMS, write.value)
    if not written and effective not in ("", write.value) and POPULATED in events:
        tree.write(write.cgroup, MEMS, effective)
        tree.write(write.cgroup, MEMS, write.value)


def _read_back(tree: CgroupTree, write: Write) -> WriteOutcome:
    effective_file = EFFECTIVE.get(write.file)
    files = (write.file,) if effective_file is None else (write.file, effective_file)
    texts = [None if text is None else text.strip() for text in tree.read_many(write.cgroup, files)]
    shown, effective = texts[0], texts[1] if len(texts) > 1 else None
    if shown is None:
        return _controller_lost(write)
    if shown != write.value:
        detail = (
            f"{write.file} of /{write.cgroup} shows {shown!r} after {write.value!r} was written"
        )
        return WriteOutcome(write, WriteResult.FAILED, shown, effective, detail=detail)
    if effective is None or effective == write.value:
        return WriteOutcome(write, WriteResult.OK, shown, effective)
    detail = f"the kernel uses {effective} instead of {write.value}"
    return WriteOutcome(write, WriteResult.NOT_EFFECTIVE, shown, effective, detail=detail)


def _failed(tree: CgroupTree, write: Write, error: OSError) -> WriteOutcome:
    number = error.errno or 0
    if number in GONE:  # between planning and writing: no process uses its CPUs
        return _controller_lost(write) if tree.exists(write.cgroup) else _gone(write, number)
    remedy = _REMEDIES.get(number, "see the kernel log")
    detail = (
        f"writing {write.value!r} to {write.file} of /{write.cgroup} failed: "
        f"{os.strerror(number)}; {remedy}"
    )
    return WriteOutcome(write, WriteResult.FAILED, error=number, detail=detail)


def _gone(write: Write, number: int) -> WriteOutcome:
    detail = f"/{write.cgroup} is gone, so {write.file} need not be written"
    return WriteOutcome(write, WriteResult.GONE, error=number, detail=detail)


def _controller_lost(write: Write) -> WriteOutcome:
    detail = (
        f"/{write.cgroup} has no {write.file}: its controller was disabled in "
        "cgroup.subtree_control of an ancestor; enable it again"
    )
    return WriteOutcome(write, WriteResult.FAILED, detail=detail)


def _skipped(write: Write, blocker: WriteOutcome) -> WriteOutcome:
    first = blocker.write
    detail = (
        f"not written because {first.file} of /{first.cgroup} could not be set to "
        f"{first.value}: {blocker.detail}"
    )
    return WriteOutcome(write, WriteResult.SKIPPED, detail=detail)


def _blocks(outcome: WriteOutcome) -> bool:
    write = outcome.write
    if write.stage > WriteStage.CONFINE:
        return False
    if outcome.result is WriteResult.NOT_EFFECTIVE and outcome.effective is not None:
        return not Mask.parse(outcome.effective) <= Mask.parse(write.value)
    return outcome.result is WriteResult.FAILED


_REMEDIES: Final = {
    errno.ERANGE: "the list names a CPU or node the kernel cannot have; check the host's topology",
    errno.EINVAL: "the kernel does not take this value; check that the CPUs and nodes exist",
    errno.ENOSPC: "tasks live in the cgroup, so its set cannot be cleared; write a full set",
    errno.EBUSY: "the cgroup is in use; stop what runs in it first",
    errno.EACCES: "run as root, or have the subtree delegated",
    errno.EPERM: "run as root, or have the subtree delegated",
    errno.EROFS: "the cgroup file system is mounted read-only (ProtectControlGroups=no)",
    errno.ENOMEM: "the kernel has no memory for it; free some and try again",
    errno.EIO: "the kernel took only a part of the value; read it back and try again",
}

CPUSET: Final = KernelController.CPUSET.value
HUGETLB: Final = KernelController.HUGETLB.value
#: Every cgroup of a pod needs these.
NEEDED: Final = tuple(each.value for each in KernelController if each.needed)
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


_CONTROLLER_REMEDIES: Final = {
    errno.EBUSY: "processes live in that cgroup itself: move them into a child of it",
    errno.ENOENT: "that cgroup is gone, or lost the controller meanwhile: create it and try again",
    errno.EACCES: "run as root, or have the subtree delegated",
    errno.EPERM: "run as root, or have the subtree delegated",
    errno.EROFS: "mount the cgroup file system writable (ProtectControlGroups=no)",
    errno.EOPNOTSUPP: "that cgroup is threaded, which cannot host pods",
}


def _remedy(error: OSError) -> str:
    return _CONTROLLER_REMEDIES.get(error.errno or 0, "see the kernel log")

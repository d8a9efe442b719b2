"""What can be wrong with a cgroup tree, a path in it, or a value for it.

A rejection of the kernel itself stays an `OSError` with its errno; these are the errors that need
more words. Every message says what was asked, what was found and what to do next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class CgroupError(Exception):
    """Base of this package's errors."""


def rejection(number: int) -> OSError:
    """Return the `OSError` with which the kernel rejects a write, by its errno."""
    return OSError(number, os.strerror(number))


class CgroupPathError(CgroupError):
    """A cgroup path that may not be used: it could leave the root or names no cgroup."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"cgroup path {path!r} is rejected: {why}; give a path relative to the cgroup root, "
            "such as kubepods.slice/kubepods-pod1.slice"
        )
        self.why = why


class CgroupRootError(CgroupError):
    """The root directory is not a usable cgroup v2 mount."""

    def __init__(self, root: Path, found: str, remedy: str) -> None:
        super().__init__(f"{root} cannot be used as the cgroup root: {found}; {remedy}")
        self.found = found
        self.remedy = remedy


class TreeLockedError(CgroupError):
    """Another agent has this cgroup tree; `holder` is its process where that can be seen."""

    def __init__(self, root: Path, holder: str | None) -> None:
        who = "a process that cannot be seen from here" if holder is None else f"process {holder}"
        super().__init__(
            f"the cgroup tree at {root} belongs to another agent, {who}: two would give the same "
            "CPUs to different pods; stop that one first"
        )


class ControllerUnavailableError(CgroupError):
    """A controller cannot be enabled because an ancestor does not have it itself."""

    def __init__(self, path: str, ancestor: str, missing: Iterable[str], remedy: str) -> None:
        self.ancestor = ancestor
        self.missing = tuple(missing)
        names = " and ".join(self.missing)
        super().__init__(
            f"cannot enable {names} for /{path}: /{ancestor} does not offer it "
            f"in cgroup.controllers; {remedy}"
        )


class ControllerRejectedError(CgroupError):
    """The kernel rejected a write to `cgroup.subtree_control` of an ancestor."""

    def __init__(self, path: str, ancestor: str, error: OSError, remedy: str) -> None:
        self.ancestor = ancestor
        self.errno = error.errno
        super().__init__(
            f"cannot enable controllers for /{path}: writing cgroup.subtree_control of "
            f"/{ancestor} failed: {error.strerror}; {remedy}"
        )


class CgroupNameError(CgroupError):
    """A pod uid, container id or cgroup root that cannot become part of a cgroup name."""

    def __init__(self, what: str, value: str, why: str) -> None:
        super().__init__(f"{what} {value!r} cannot be used in a cgroup name: {why}")


class CgroupValueError(CgroupError, ValueError):
    """A value that the kernel would reject, or text that it would not have written."""

    def __init__(self, what: str, value: str, why: str) -> None:
        super().__init__(f"{what} {value!r} is not valid: {why}")

"""Is this directory a cgroup v2 mount that can be written? One line says why not."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

from cgroupfs.errors import CgroupRootError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: statfs(2) f_type of cgroup2 (CGROUP2_SUPER_MAGIC in linux/magic.h).
CGROUP2_MAGIC: Final = 0x63677270
#: What this project cannot do without, see `cgroupfs.controllers`.
NEEDED_CONTROLLERS: Final = ("cpuset", "cpu")

_UNIFIED: Final = (
    "boot with the unified hierarchy (kernel command line systemd.unified_cgroup_hierarchy=1 and "
    "no cgroup_no_v1)"
)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def check_root(root: Path, *, require_kernel: bool = True) -> None:
    """Raise `CgroupRootError` unless `root` is a cgroup v2 root.

    With `require_kernel` the file system's magic must be cgroup2's; without, a directory with
    `cgroup.controllers` is enough (an emulated tree).
    """
    if not root.is_dir():
        raise CgroupRootError(root, "no such directory", "mount cgroup2 there or name its mount")
    if require_kernel and _magic(root) != CGROUP2_MAGIC:
        raise CgroupRootError(root, *_why_not_v2(root))
    if not (root / "cgroup.controllers").is_file():
        raise CgroupRootError(root, "it has no cgroup.controllers", "name a cgroup v2 mount")


def check_usable(root: Path, needed: Iterable[str] = NEEDED_CONTROLLERS) -> None:
    """Raise `CgroupRootError` unless the checked root can be written and has the controllers.

    Call this after `check_root`, once at the start: missing root rights, a read-only mount or a
    disabled controller would otherwise fail the first admission.
    """
    available = (root / "cgroup.controllers").read_text().split()
    missing = [name for name in needed if name not in available]
    if missing:
        names = " and ".join(missing)
        raise CgroupRootError(
            root,
            f"the kernel does not offer the {names} controller here",
            "it is disabled (cgroup_disable=), mounted as cgroup v1, or not delegated to this "
            "container",
        )
    _check_writable(root)


def _check_writable(root: Path) -> None:
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        raise CgroupRootError(
            root,
            "it is mounted read-only",
            "run with a writable cgroup mount (ProtectControlGroups=no)",
        )
    if not os.access(root / "cgroup.subtree_control", os.W_OK):
        raise CgroupRootError(root, "it cannot be written by this user", "run as root")


def _why_not_v2(root: Path) -> tuple[str, str]:
    if (root / "unified" / "cgroup.controllers").exists():
        return "it is a hybrid of cgroup v1 and v2", _UNIFIED
    if any((root / name).is_dir() for name in ("cpuset", "cpu", "systemd")):
        return "it is cgroup v1", _UNIFIED
    if (root / "tasks").exists():
        return "it is one hierarchy of cgroup v1", _UNIFIED
    return "it is not a cgroup2 file system", "mount cgroup2 there or name its mount"


def _magic(root: Path) -> int:
    # struct statfs begins with f_type, a word (long) on every architecture that has systemd.
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.statfs(os.fsencode(root), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(root))
    return ctypes.c_long.from_buffer(buffer).value

"""Pages of running processes move to other NUMA nodes, one process after the other.

The kernel moves the pages of a cgroup before a write to `cpuset.mems` returns; meanwhile the agent
makes no other change. migrate_pages(2) moves those of one process as fast, whatever its cpuset
allows, and leaves almost nothing to that write (256 MiB in a guest: 0.8 to 1.1 s, then 0.02 s
instead of 1.1 to 1.5 s). It needs CAP_SYS_NICE.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cgroupfs.tree import descendants

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgroupfs.tree import CgroupTree
    from sysfs.mask import Mask

#: The number of migrate_pages(2), by machine; all are little-endian.
_NUMBERS: Final = {"x86_64": 256, "aarch64": 238, "riscv64": 238, "ppc64le": 258}


def processes(tree: CgroupTree, cgroups: Iterable[str]) -> tuple[int, ...]:
    """Return the processes in cgroups and their descendants; a cgroup that is gone has none."""
    found: set[int] = set()
    for cgroup in cgroups:
        for path in (cgroup, *descendants(tree, cgroup)):
            with suppress(FileNotFoundError):
                found.update(tree.procs(path))
    return tuple(sorted(found))


def migrate(pid: int, old: Mask, new: Mask) -> None:
    """Move what a process has on `old` nodes to `new` ones; nothing if it has ended.

    Pages that the kernel cannot move stay. Raises `OSError`.
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    size = 8 * (max(old.bits, new.bits).bit_length() // 64 + 1)
    masks = [mask.bits.to_bytes(size, "little") for mask in (old, new)]
    # The kernel reads maxnode - 1 bits (get_nodes in mm/mempolicy.c).
    numbers = (ctypes.c_long(each) for each in (number, pid, 8 * size + 1))
    if _syscall(*numbers, *masks) < 0 and (code := ctypes.get_errno()) != errno.ESRCH:
        raise OSError(code, os.strerror(code))


def _syscall(*arguments: ctypes.c_long | bytes) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return int(call(*arguments))

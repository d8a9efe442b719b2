"""System calls about the memory of processes by NUMA node, for which Python has no functions.

`migrate` moves pages of a running process, `set_numa_policy` says where the calling process takes
new ones. Both raise `OSError`.

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
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.managers.numa_policy import NumaMode
from cgroupfs.tree import descendants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.numa_policy import NumaPolicy
    from cgroupfs.tree import CgroupTree
    from sysfs.mask import Mask

#: The numbers of the calls, by machine; all are little-endian.
_MIGRATE_PAGES: Final = {"x86_64": 256, "aarch64": 238, "riscv64": 238, "ppc64le": 258}
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
#: MPOL_INTERLEAVE with MPOL_F_RELATIVE_NODES, MPOL_PREFERRED_MANY with MPOL_F_STATIC_NODES
#: (linux/mempolicy.h).
_MODES: Final = MappingProxyType(
    {NumaMode.INTERLEAVE: 3 | 1 << 14, NumaMode.PREFERRED: 5 | 1 << 15}
)


def processes(tree: CgroupTree, cgroups: Iterable[str]) -> Iterator[int]:
    """Yield the processes in cgroups and their descendants, each if it is still there then.

    An id may be another process' by now. What a process starts meanwhile is left out. Raises
    `OSError` and `CgroupError` as the tree does.
    """
    paths = (path for cgroup in cgroups for path in (cgroup, *descendants(tree, cgroup)))
    for path in dict.fromkeys(paths):
        for pid in _processes_in(tree, path):
            if pid in _processes_in(tree, path):
                yield pid


def _processes_in(tree: CgroupTree, path: str) -> tuple[int, ...]:
    """Return the processes of a cgroup; of one that is gone, or threaded, none.

    The processes of threads in threaded cgroups are listed by the cgroup above these.
    """
    try:
        return tree.procs(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return ()
        raise


def migrate(pid: int, old: Mask, new: Mask) -> None:
    """Move what a process has on `old` nodes to `new` ones; nothing if it has ended.

    Pages that the kernel cannot move stay.
    """
    bits, *sets = _sets(old, new)
    with suppress(ProcessLookupError):
        _call(_MIGRATE_PAGES, pid, bits, *sets)


def set_numa_policy(policy: NumaPolicy) -> None:
    """Set the NUMA policy of the calling thread, which all that it starts or becomes inherits."""
    bits, nodes = _sets(policy.nodes)
    _call(_SET_MEMPOLICY, _MODES[policy.mode], nodes, bits)


def _sets(*nodes: Mask) -> tuple[int | bytes, ...]:
    """Return sets of nodes in whole words, after the number of bits that the kernel is to read."""
    size = 8 * (max(mask.bits for mask in nodes).bit_length() // 64 + 1)
    # It reads one less (get_nodes in mm/mempolicy.c).
    return 8 * size + 1, *(mask.bits.to_bytes(size, "little") for mask in nodes)


def _call(numbers: Mapping[str, int], *arguments: int | bytes) -> None:
    number = numbers.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    given = [each if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments]
    if _syscall(ctypes.c_long(number), *given) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _syscall(*arguments: ctypes.c_long | bytes) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return int(call(*arguments))

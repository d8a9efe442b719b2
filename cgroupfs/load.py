"""What makes the tasks of a cgroup wait, as the kernel counts it: quota, pressure, reclaim, kills.

In go a tree and the path of a cgroup; out come the numbers of four files, by file and key. A file
that is absent (its controller is not enabled, the kernel runs with `psi=0`), that cannot be read or
that lacks one of its `LOAD_KEYS` is left out: what it would show is not known.

Source: Documentation/admin-guide/cgroup-v2.rst and Documentation/accounting/psi.rst of Linux 6.12.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgroupfs.tree import CgroupTree

    CgroupLoad: TypeAlias = Mapping[str, Mapping[str, float]]

CPU_STAT: Final = "cpu.stat"
CPU_PRESSURE: Final = "cpu.pressure"
MEMORY_PRESSURE: Final = "memory.pressure"
MEMORY_EVENTS: Final = "memory.events"
MEMORY_NODES: Final = "memory.numa_stat"
#: The keys that are needed of each file. Those of pressure are percentages of the last 10 and 60
#: seconds in which at least one task waited (`some`); all others count from when the cgroup was
#: made, `throttled_usec` in microseconds of all CPUs together.
LOAD_KEYS: Final = MappingProxyType(
    {
        CPU_STAT: {"nr_periods", "nr_throttled", "throttled_usec"},
        CPU_PRESSURE: {"avg10", "avg60"},
        MEMORY_PRESSURE: {"avg10", "avg60"},
        MEMORY_EVENTS: {"high", "max", "oom_kill"},
    }
)


def read_load(tree: CgroupTree, path: str, *, own_events: bool = False) -> CgroupLoad:
    """Read one cgroup; nothing is known of one that is gone.

    With `own_events` the memory events of the cgroups below do not count (Linux 5.2).
    """
    found = {}
    for file, needed in LOAD_KEYS.items():
        local = own_events and file == MEMORY_EVENTS
        try:
            text = tree.read(path, f"{file}.local" if local else file)
        except (OSError, UnicodeDecodeError):  # EOPNOTSUPP: the kernel runs with psi=0
            continue
        numbers = _numbers(text)
        if needed <= numbers.keys():
            found[file] = numbers
    return found


#: The pages of a cgroup that may migrate: those of processes and of files, shared memory included.
MOVABLE: Final = frozenset({"anon", "file"})
PROCESSES: Final = frozenset({"anon"})
#: Those that the kernel cannot reclaim without swap, its own for these processes among them.
HELD: Final = frozenset(
    {"anon", "shmem", "kernel_stack", "pagetables", "sec_pagetables", "slab_unreclaimable"}
)


def read_node_memory(
    tree: CgroupTree, path: str, kinds: frozenset[str]
) -> Mapping[int, int] | None:
    """Return the bytes of some kinds of pages of a cgroup, by NUMA node; None: not known.

    `kinds` are names of lines in `memory.numa_stat` (Linux 5.9). Counters alone are read:
    /proc/PID/numa_maps walks the page tables of a process, which waits meanwhile.
    """
    found: dict[int, int] = {}
    try:
        for line in tree.read(path, MEMORY_NODES).splitlines():
            name, *nodes = line.split()
            for entry in nodes if name in kinds else ():
                node, _, size = entry.partition("=")
                number = int(node.removeprefix("N"))
                found[number] = found.get(number, 0) + int(size)
    except (OSError, ValueError):
        return None
    return found


def _numbers(text: str) -> Mapping[str, float]:
    """Return the numbers of lines such as `nr_throttled 12`, and of `some avg10=0.00 avg60=0.87`.

    The line `full` of a file of pressure is left out.
    """
    found = {}
    for line in text.splitlines():
        first, *rest = line.split() or [""]
        pairs = [word.partition("=")[::2] for word in rest] if first == "some" else [(first, *rest)]
        for pair in pairs:
            try:
                key, value = pair
                found[key] = float(value)
            except ValueError:
                continue
    return found

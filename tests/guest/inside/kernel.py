"""What the kernel says, read from its files: cgroups, processes, memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tests.guest.inside.checks import wait_until

CGROUPS: Final = Path("/sys/fs/cgroup")


def ids(text: str) -> frozenset[int]:
    """Return the members of a kernel list such as `0-3,8`."""
    members: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            members.update(range(int(first), int(last or first) + 1))
    return frozenset(members)


def version() -> tuple[int, ...]:
    """Return the first two numbers of its version."""
    return tuple(int(number) for number in os.uname().release.split(".")[:2])


def keeps_partitions() -> bool:
    """Return whether a partition stays when a cgroup beside lists its CPUs (from Linux 7.0 on)."""
    return version() >= (7, 0)


class Cgroup:
    """One cgroup v2 directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = (
            CGROUPS / str(path).lstrip("/") if not str(path).startswith("/sys/") else Path(path)
        )

    def __repr__(self) -> str:
        return f"Cgroup({self.path.relative_to(CGROUPS)})"

    def read(self, name: str) -> str:
        """Return one of its files, stripped."""
        return (self.path / name).read_text().strip()

    def write(self, name: str, value: str) -> None:
        """Write one of its files; raises `OSError` as the kernel answers, with what was written."""
        file = self.path / name
        try:
            with file.open("w") as handle:
                handle.write(value)
        except OSError as error:  # of a write it does not know the file
            said = f"{error.strerror}, writing {value!r}"
            raise OSError(error.errno, said, str(file)) from error

    @property
    def exists(self) -> bool:
        """Whether the directory is there."""
        return self.path.is_dir()

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs its processes may use (`cpuset.cpus.effective`)."""
        return ids(self.in_effect("cpuset.cpus.effective"))

    @property
    def mems(self) -> frozenset[int]:
        """The nodes its processes may use memory of (`cpuset.mems.effective`)."""
        return ids(self.in_effect("cpuset.mems.effective"))

    def in_effect(self, name: str) -> str:
        """Return a file of its own, or of the nearest cgroup above that has the controller."""
        around = next(path for path in (self.path, *self.path.parents) if (path / name).exists())
        return Cgroup(around).read(name) if self.exists else self.read(name)

    @property
    def quota(self) -> tuple[int | None, int]:
        """`cpu.max`: microseconds of CPU time in a period (None: no limit), and the period.

        A cgroup without the cpu controller has no limit of its own.
        """
        if self.exists and not (self.path / "cpu.max").exists():
            return None, 100_000
        limit, period = self.read("cpu.max").split()
        return (None if limit == "max" else int(limit)), int(period)

    @property
    def millicores(self) -> int | None:
        """`cpu.max` in thousandths of a CPU; None: no limit."""
        limit, period = self.quota
        return None if limit is None else round(limit * 1000 / period)

    def millicores_within(self, top: Cgroup) -> int | None:
        """Return the tightest quota from here up to, but not of, a cgroup around this one.

        Some runtimes keep the process in a cgroup of its own below the container's.
        """
        inside = [self.path, *self.path.parents]
        limits = [Cgroup(path).millicores for path in inside[: inside.index(top.path)]]
        return min((limit for limit in limits if limit is not None), default=None)

    def memory_within(self, top: Cgroup) -> int | None:
        """Return the tightest limit of memory from here up to, but not of, a cgroup around."""
        inside = [self.path, *self.path.parents]
        files = [path / "memory.max" for path in inside[: inside.index(top.path)]]
        texts = [file.read_text().strip() for file in files if file.exists()]
        return min((int(text) for text in texts if text != "max"), default=None)

    @property
    def processes(self) -> list[int]:
        """The processes of this cgroup and of those below it."""
        return sorted(
            int(pid) for file in self.path.rglob("cgroup.procs") for pid in file.read_text().split()
        )

    @property
    def throttled(self) -> int:
        """How many periods in which its processes were throttled (`cpu.stat`).

        A cgroup without the cpu controller has no such line.
        """
        shown = dict(line.split() for line in self.read("cpu.stat").splitlines())
        return int(shown.get("nr_throttled", 0))


def slice_path(name: str) -> Path:
    """Return where systemd puts a slice: `a-b.slice` is in `a.slice` (systemd.slice(5))."""
    parts = name.removesuffix(".slice").split("-")
    return Path(*("-".join(parts[:count]) + ".slice" for count in range(1, len(parts) + 1)))


def cgroup_of(pid: int) -> Cgroup:
    """Return the cgroup a process is in."""
    line = Path(f"/proc/{pid}/cgroup").read_text().strip()
    return Cgroup(line.removeprefix("0::"))


def affinity(pid: int) -> frozenset[int]:
    """Return the CPUs a process may run on, as the scheduler has it (sched_getaffinity)."""
    return frozenset(os.sched_getaffinity(pid))


def pages_by_node(pid: int) -> dict[int, int]:
    """Return the anonymous pages of a process by node."""
    found = dict[int, int]()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        for word in line.split() if " anon=" in line else ():
            name, _, count = word.partition("=")
            if name.startswith("N") and name[1:].isdigit():
                found[int(name[1:])] = found.get(int(name[1:]), 0) + int(count)
    return found


def numa_policy(pid: int) -> str:
    """Return what the first line of a process' maps says of its NUMA policy."""
    line = Path(f"/proc/{pid}/numa_maps").read_text().partition("\n")[0]
    return line.partition(" ")[2].partition(" file=")[0]


def memory_nodes(pid: int) -> frozenset[int]:
    """Return the nodes a process may use memory of (`Mems_allowed_list`)."""
    found = re.search(
        r"^Mems_allowed_list:\s*(\S*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return ids(found[1]) if found else frozenset()


def anonymous_pages(pid: int) -> dict[int, int]:
    """Return a process's anonymous pages by node (`numa_maps`)."""
    pages: dict[int, int] = {}
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if " anon=" in line:
            for node, count in re.findall(r" N(\d+)=(\d+)", line):
                pages[int(node)] = pages.get(int(node), 0) + int(count)
    return pages


def parent_of(pid: int) -> int:
    """Return a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by SIGSTOP."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks: with its pid, its identity."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def only_process(cgroup: Cgroup, name: str) -> int:
    """Return the one process called `name` in a cgroup, waiting for it to come."""

    def found() -> list[int]:
        return [pid for pid in cgroup.processes if _comm(pid) == name] if cgroup.exists else []

    if not wait_until(lambda: len(found()) == 1):
        raise LookupError(f"{cgroup} has {len(found())} processes called {name!r}, not one")
    return found()[0]


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""

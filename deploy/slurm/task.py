#!/opt/numawarden/bin/python3 -I
"""What `TaskProlog=` calls by sudo, with the id of the task's process: binds the task.

The first task of a job is bound to the pod of its job, until its cgroup has no process. Prints what
TaskProlog has to print for the task's environment. Any user may call it, with any process: it acts
for processes of the caller's alone, and only for those in a cgroup that slurmstepd made.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMAWARDEN: Final = str(Path(sys.executable).with_name("numawarden"))
PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
#: An exit status of the command (docs/cli.md).
NOT_ENFORCED: Final = 7
LOCK: Final = Path("/run/numawarden-slurm.lock")
#: The cgroup of a task. Anchored at both ends: users may make cgroups of such names in their own.
TASK: Final = re.compile(
    r"/system\.slice/(?:[A-Za-z0-9.-]+_)?slurmstepd\.scope"
    r"/job_([0-9]+)/step_(?:[0-9]+|batch|interactive)/user/task_[0-9]+",
    re.ASCII,
)


class NotBoundError(Exception):
    """Why a process is not bound."""


def main(arguments: list[str]) -> int:
    """Bind the process that is named; return the exit status."""
    if len(arguments) != 1 or re.fullmatch("[0-9]{1,10}", arguments[0], re.ASCII) is None:
        sys.stderr.write("numawarden: not bound: name the id of a task's process\n")
        return 1
    # sudo sets SUDO_UID, whatever the caller's environment says.
    owner = int(os.environ.get("SUDO_UID", os.getuid()))
    try:
        lines = list(bind(int(arguments[0]), owner))
    except (NotBoundError, OSError, ValueError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"numawarden: not bound: {error}\n")
        return 1
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def bind(pid: int, owner: int) -> Iterator[str]:
    """Bind the task that process `pid` of user `owner` is; yield the lines for TaskProlog.

    Raises `NotBoundError`, `OSError` and what `subprocess.run` raises.
    """
    cgroup = task_of(pid, owner)
    found = TASK.fullmatch(cgroup)
    if found is None:
        raise NotBoundError(f"process {pid} is in {cgroup}, not in that of a Slurm task")
    pod = f"slurm-{found[1]}"
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tasks of a job that start at once
        shown = json.loads(numawarden("show", pod, "--output", "json"))
        for other in (one["cgroup"] for one in shown["containers"][0]["kernel"]):
            if other != cgroup and TASK.fullmatch(other) and lives(other):
                raise NotBoundError(f"{pod} is bound to {other}, where processes run")
        # The path, not the process: a path of slurmstepd's cannot become another job's.
        numawarden("bind", pod, "main", "--cgroup", cgroup)
    status = (PROC / str(pid) / "status").read_text()
    yield f"export NUMAWARDEN_POD_UID={pod}"
    yield f"export NUMAWARDEN_CPUS={field(status, 'Cpus_allowed_list')}"
    yield f"export NUMAWARDEN_MEMORY_NODES={field(status, 'Mems_allowed_list')}"


def task_of(pid: int, owner: int) -> str:
    """Return the cgroup of a process of user `owner`; raises `NotBoundError` and `OSError`."""
    handle = os.pidfd_open(pid)
    try:
        status = (PROC / str(pid) / "status").read_text()
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
        # A process that still lives has not given its id to another: both files were its own.
        if select.select([handle], [], [], 0)[0]:
            raise NotBoundError(f"process {pid} has ended")
    finally:
        os.close(handle)
    if set(field(status, "Uid").split()) != {str(owner)}:
        raise NotBoundError(f"process {pid} is not user {owner}'s")
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def lives(cgroup: str) -> bool:
    """Return whether a cgroup has processes."""
    try:
        return bool((CGROUPS / cgroup.lstrip("/") / "cgroup.procs").read_text())
    except FileNotFoundError:
        return False


def field(status: str, name: str) -> str:
    """Return a field of a process's status."""
    return next(
        (line.partition("\t")[2] for line in status.splitlines() if line.startswith(f"{name}:\t")),
        "",
    )


def numawarden(*arguments: str) -> str:
    """Return what a command of numawarden's printed; raises `NotBoundError` where it fails.

    A pod that is not completely enforced may be right: its environment says what it has.
    """
    done = subprocess.run(  # noqa: S603 - no shell, and what is named was checked
        [NUMAWARDEN, *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode not in (0, NOT_ENFORCED):
        raise NotBoundError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

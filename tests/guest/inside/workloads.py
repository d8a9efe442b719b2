"""Containers that do nothing but hold some memory, started the ways a bare host starts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.guest.inside import kernel
from tests.guest.inside.commands import attempt, run

#: What each workload keeps in memory, in bytes.
ALLOCATED: Final = 1 << 19

#: A shell that holds memory and waits for ever.
SCRIPT: Final = (
    f"memory=$(head -c {ALLOCATED} /dev/zero | tr '\\0' x); while :; do sleep 1000000; done"
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A running container: its cgroup and the shell that holds its memory."""

    name: str
    cgroup: kernel.Cgroup
    pid: int
    started: int

    @classmethod
    def found(cls, name: str, cgroup: kernel.Cgroup) -> Workload:
        """Return the workload that runs in a cgroup, once its shell holds its memory."""
        pid = kernel.only_process(cgroup, "sleep")
        shell = kernel.parent_of(pid)
        return cls(name, cgroup, shell, kernel.start_time(shell))

    @property
    def untouched(self) -> bool:
        """Whether the same process still runs in the same cgroup."""
        try:
            same = kernel.start_time(self.pid) == self.started
            return same and kernel.cgroup_of(self.pid).path.is_relative_to(self.cgroup.path)
        except OSError:
            return False


def systemd_run(name: str, pod_slice: str) -> Workload:
    """Start a workload as a transient service below a pod's slice; it leaves no failed unit."""
    unit = f"{name}.service"
    shell = ("/bin/busybox", "sh", "-c", SCRIPT)
    options = ("--quiet", "--collect", "--expand-environment=no", f"--slice={pod_slice}")
    run("systemd-run", *options, f"--unit={unit}", *shell)
    return Workload.found(name, kernel.Cgroup(kernel.slice_path(pod_slice) / unit))


def podman_run(name: str, parent: str, driver: str, root: Path) -> Workload:
    """Start a workload in a podman container below a pod's slice (systemd) or path (cgroupfs)."""
    pid = Path(f"/run/{name}.pid")
    options = (f"--cgroup-parent={parent}", "--network=host", f"--name={name}", "--log-driver=none")
    shell = ("/bin/sh", "-c", SCRIPT)
    podman = ("podman", f"--cgroup-manager={driver}")
    detached = ("run", "--detach", f"--pidfile={pid}", *options)
    run(*podman, *detached, "--rootfs", root, *shell)
    return Workload.found(name, kernel.cgroup_of(int(pid.read_text())))


def stop_unit(*names: str) -> None:
    """Stop workloads that `systemd_run` started."""
    attempt("systemctl", "stop", *(f"{name}.service" for name in names))


def podman_remove(*names: str) -> None:
    """Kill and remove workloads that `podman_run` started."""
    run("podman", "rm", "--force", "--time=0", *names)

"""A process enters the cgroup of its container, and checks where the kernel lets it run.

Below a slice the cgroup is a scope, which systemd makes around the process; elsewhere it is a
directory. Whatever the process starts or becomes (execve) stays there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.managers.allocations.allocation import Isolation
from agent.tools.run.pod import CONTAINER
from cgroupfs.tree import join
from sysfs.mask import Mask
from systemd.properties import description, in_slice, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.api.documents import ContainerDocument
    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd

_SLICE: Final = ".slice"
#: Where the kernel says on what a process may run (proc(5), status).
_FILES: Final = {"CPUs": "Cpus_allowed_list", "memory nodes": "Mems_allowed_list"}


def enter(
    pid: int,
    pod_cgroup: str,
    uid: str,
    tree: Callable[[], CgroupTree],
    systemd: Callable[[], Systemd],
) -> str:
    """Move a process into a new cgroup in the pod's, and return its path below the root.

    `uid` is the pod's. Only one of `tree` and `systemd` is opened. Raises `OSError` and
    `SystemdError`, both where the caller is not root.
    """
    slice_name = pod_cgroup.rpartition("/")[2]
    if slice_name.endswith(_SLICE):
        scope = f"{uid}-{CONTAINER}.scope"
        about = description(f"Command of pod {uid} of Numawarden")
        systemd().start_transient(scope, (about, in_slice(slice_name), processes((pid,))))
        return join(pod_cgroup, scope)
    opened, path = tree(), join(pod_cgroup, CONTAINER)
    if not opened.exists(path):
        opened.mkdir(path)
    opened.write(path, "cgroup.procs", str(pid))
    return path


def why_elsewhere(status: str, container: ContainerDocument) -> str:
    """Return where a process may run instead of where its container should, "" if it is right.

    `status` is the text of its `/proc/PID/status`. The node's shared pool is not compared: it
    changes with every other pod.
    """
    shown = _allowed(status)
    own = container.cpus if container.isolation != Isolation.HOST else None
    desired = {"CPUs": own, "memory nodes": container.mems}
    differing = [
        f"{what} {shown[file] or 'none'} instead of {text}"
        for what, text in desired.items()
        if text is not None and Mask.parse(shown[file := _FILES[what]]) != Mask.parse(text)
    ]
    return ", ".join(differing)


def _allowed(status: str) -> Mapping[str, str]:
    lines = (line.partition(":") for line in status.splitlines())
    return {name: text.strip() for name, _, text in lines if name in _FILES.values()}

"""Reads the host: its CPUs and nodes, and which online CPUs pods cannot have.

In go sysfs, proc and the cgroup tree, out comes a `Host`. Nothing is written. All calls block. What
is unexpected in sysfs is logged when it is first read, and not again as long as it stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.reconcile.withheld import read_withheld
from sysfs.discover import discover

if TYPE_CHECKING:
    from pathlib import Path

    from cgroupfs.tree import CgroupTree
    from sysfs.host import Host, WithheldCpus
    from sysfs.mask import Mask

log = structlog.get_logger(__name__)

_ONLINE_FILES: Final = ("sys/devices/system/cpu/online", "sys/devices/system/node/online")


class HostReader:
    """Reads the host below `sysfs_root`; `all_pods` is the cgroup of all pods.

    `made_by_another`: a neighbour makes that cgroup, so that its set of CPUs limits pods, too.
    """

    def __init__(
        self, sysfs_root: Path, tree: CgroupTree, all_pods: str, *, made_by_another: bool
    ) -> None:
        self._sysfs_root = sysfs_root
        self._tree = tree
        self._all_pods = all_pods
        self._made_by_another = made_by_another
        self._warned: frozenset[str] = frozenset()

    def read(self, withheld_before: tuple[WithheldCpus, ...] = ()) -> Host:
        """Return the host; raises `SysfsError`."""
        # Devices of pods are listed in the configuration; the host's own list is for display only.
        host = discover(self._sysfs_root, devices=False)
        for warning in sorted({*host.warnings} - self._warned):
            log.warning("unexpected host data", why=warning)
        self._warned = frozenset(host.warnings)
        return replace(host, withheld=self.withheld(host.online, withheld_before))

    def withheld(self, online: Mask, before: tuple[WithheldCpus, ...]) -> tuple[WithheldCpus, ...]:
        """Return which of the online CPUs pods cannot have; as `before` if no cgroup can be read.

        The comparison reads all cgroups, and reports an error.
        """
        try:
            return read_withheld(
                self._tree, self._all_pods, online, beside_kubelet=self._made_by_another
            )
        except OSError:
            return before

    def fingerprint(self) -> str:
        """Return the online CPUs and nodes as text; cheap enough for every comparison."""
        return "\n".join(_text(self._sysfs_root / file) for file in _ONLINE_FILES)


def most_processes(proc: Path) -> int:
    """Return how many processes the kernel allows (the kubelet's pidlimit.Stats); 0: not known."""
    kernel = proc / "sys/kernel"
    texts = (_text(kernel / name).strip() for name in ("pid_max", "threads-max"))
    return min((int(text) for text in texts if text.isdigit()), default=0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

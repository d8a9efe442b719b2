"""Removing the cgroups of pods that ended, and unsetting those that were bound to their containers.

No process is ever killed: a cgroup with processes stays, and the next enforcement confines them to
the node's shared pool.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.reconcile.identify import subgroups
from agent.reconcile.orphans import given_up
from agent.reconcile.placement import pod_cgroup
from agent.reconcile.report import ReleaseReport
from cgroupfs.errors import CgroupNameError
from cgroupfs.settings import CPUS, MEMBER, MEMS, PARTITION, partition_fault
from cgroupfs.state import is_populated
from cgroupfs.tree import descendants
from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.drivers import PodCgroups
    from agent.reconcile.observe import ObservationCache
    from agent.reconcile.target import Desired
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree


_SETS: Final = (CPUS, MEMS)


class Releaser:
    """Removes cgroups by a driver (`pods`); `cache` is that of the enforcer of the same tree."""

    def __init__(
        self, tree: CgroupTree, layout: Layout, pods: PodCgroups, cache: ObservationCache
    ) -> None:
        self._tree = tree
        self._layout = layout
        self._pods = pods
        self._memory = cache

    def pod(self, pod: PodAllocation) -> ReleaseReport:
        """Remove the cgroup of a pod that is no longer in the ledger.

        A cgroup with processes stays. Raises `OSError` only when the tree itself fails.
        """
        try:
            return self._remove(pod.uid, pod_cgroup(self._tree, self._layout, pod))
        except CgroupNameError:
            # The pod never had a cgroup.
            return ReleaseReport("", removed=True)

    def orphaned(self, cgroups: Iterable[str]) -> tuple[ReleaseReport, ...]:
        """Remove the empty cgroups of pods that are not in the ledger; report those that stay.

        `cgroups` are those that were found, with what is in them (`CgroupReports.orphaned`).
        """
        of_pods = (path for path in cgroups if self._layout.parse_pod(path) is not None)
        return tuple(self._remove("", path) for path in of_pods)

    def bound(self, target: Desired) -> frozenset[str]:
        """Clear the cpusets of cgroups that were bound and in which no process runs now.

        A process that starts there later belongs to no container of a pod, so it must not start on
        the CPUs of one. Returns the cgroups that need not be remembered: the cleared ones, and
        those that no longer exist.
        """
        bindings, living = target.bindings, target.ledger.allocations
        elsewhere = given_up(self._layout, target.ledger, bindings)
        return frozenset(
            path
            for path in bindings.given_up(living)
            if (path in elsewhere and not is_populated(self._tree, path) and self._clear(path))
            or (path not in elsewhere and not self._tree.exists(path))
        )

    def _clear(self, cgroup: str) -> bool:
        """Unset the cpusets of a cgroup and its subgroups; return whether that was possible."""
        try:
            with suppress(FileNotFoundError):
                for path in (cgroup, *(each.cgroup for each in subgroups(self._tree, cgroup))):
                    for file, text in zip(_SETS, self._tree.read_many(path, _SETS), strict=True):
                        if (text or "").strip():
                            self._tree.write(path, file, "\n")
            self._pods.forget(cgroup)
        except (OSError, SystemdError):
            # A process started there meanwhile (the kernel does not clear a set under processes),
            # or systemd would write the set again: the cgroup is confined, and cleared later.
            return False
        return True

    def _end_invalid(self, cgroup: str) -> None:
        """End invalid partitions before they are removed (`HostPlaces.lost` says why)."""
        for path in (cgroup, *descendants(self._tree, cgroup)):
            with suppress(OSError):  # it has ended; what stays is found by the next comparison
                (shown,) = self._tree.read_many(path, (PARTITION,))
                if partition_fault(shown or "") is not None:
                    self._tree.write(path, PARTITION, MEMBER)

    def _remove(self, uid: str, cgroup: str) -> ReleaseReport:
        if not self._tree.exists(cgroup):
            report = ReleaseReport(cgroup, removed=True)
        elif self._pods.makes:
            self._end_invalid(cgroup)
            report = self._pods.remove(cgroup)
        else:
            report = ReleaseReport(cgroup, removed=False)
        if report.removed or self._pods.makes:  # the kubelet's unit keeps what was recorded
            self._memory.forget_recorded(uid, cgroup)
        return report

"""Pod cgroups that the kubelet makes and removes: the agent only writes into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.reconcile.report import ReleaseReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.reconcile.drivers.pod_cgroups import PodCgroups, ToRecord, UnitState
    from cgroupfs.state import WriterRecord
    from cgroupfs.tree import CgroupTree
    from systemd.errors import SystemdError


class MadeByKubelet:
    """A driver (`PodCgroups`) that neither creates nor removes cgroups; `driver` does the rest.

    A cgroup that exists before its pod does would be taken by the kubelet for one of its own, with
    limits that were never set (kubelet, podContainerManagerImpl.EnsureExists).
    """

    makes = False

    def __init__(self, tree: CgroupTree, driver: PodCgroups) -> None:
        self._tree = tree
        self._driver = driver
        self.records = driver.records

    def check(self) -> None:
        """Check the driver; see `PodCgroups.check`."""
        self._driver.check()

    def try_again(self) -> None:
        """Ask systemd again; see `PodCgroups.try_again`."""
        self._driver.try_again()

    def create(self, cgroup: str) -> tuple[str, ...]:
        """Create nothing; see `PodCgroups.create`."""
        _ = cgroup
        return ()

    def record(self, records: Sequence[ToRecord]) -> list[str | SystemdError | None]:
        """Record settings in systemd; see `PodCgroups.record`."""
        return self._driver.record(records)

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return what systemd may write; see `PodCgroups.remembered`."""
        return self._driver.remembered(cgroup)

    def forget(self, cgroup: str) -> None:
        """Reset recorded sets; see `PodCgroups.forget`."""
        self._driver.forget(cgroup)

    def unit(self, name: str) -> UnitState | None:
        """Return the state of a unit; see `PodCgroups.unit`."""
        return self._driver.unit(name)

    def remove(self, cgroup: str) -> ReleaseReport:
        """Remove nothing; a cgroup that exists still is the kubelet's to remove."""
        return ReleaseReport(cgroup, removed=not self._tree.exists(cgroup))

"""What the enforcer makes of a runtime's containers and of what the runtime changes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.reconcile.diff import Cause
from agent.reconcile.drivers import DirectoryCgroups, SliceCgroups
from agent.reconcile.enforcer import Enforcer
from agent.runtimes import RuntimeFiles
from cgroupfs.names import Driver
from sysfs.mask import Mask
from systemd.units import allowed_cpus, cpu_quota
from tests.agent.bundles import ID, OTHER_ID, bundle, cri, runc_state
from tests.agent.reconcile.pods import FakeSystemd, kernel, layout, mixed, path_of, run, target

if TYPE_CHECKING:
    from pathlib import Path

    from cgroupfs.emulated.kernel import EmulatedKernel

SANDBOX_ID = "c" * 64


class Host:
    """An emulated kernel with one driver's enforcer that reads the files of runtimes."""

    def __init__(self, root: Path, driver: Driver) -> None:
        self.root = root
        self.driver = driver
        self.tree: EmulatedKernel = kernel()
        self.systemd = FakeSystemd(self.tree)
        cgroups = (
            SliceCgroups(self.tree, self.systemd)
            if driver is Driver.SYSTEMD
            else DirectoryCgroups(self.tree)
        )
        self.reported: list[str] = []
        finder = RuntimeFiles(root, self.reported.append)
        self.enforcer = Enforcer(self.tree, layout(driver), cgroups, finder)
        assert self.enforcer.prepare().ok

    def start(self, parent: str, container: str | None, id_: str, pid: int) -> str:
        """Start a container as containerd does with this driver."""
        bundle(self.root, cri(container), id_=id_)
        if self.driver is Driver.SYSTEMD:
            return self.systemd.start_scope(parent, f"cri-containerd-{id_}.scope", pid)
        return run(self.tree, f"{parent}/{id_}", pid)

    def update(self, cgroup: str, cpus: str) -> None:
        """Change a container's CPUs as runc does: systemd's record, the file, its own state."""
        if self.driver is Driver.SYSTEMD:
            properties = (allowed_cpus(Mask.parse(cpus)), *cpu_quota(None))
            self.systemd.set_properties(cgroup.rpartition("/")[2], properties)
        self.tree.write(cgroup, "cpuset.cpus", cpus)
        runc_state(self.root, {"cpuset_cpus": cpus})


@pytest.fixture(params=list(Driver))
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param)


def test_containers_of_a_runtime_are_pinned_without_being_bound(host: Host) -> None:
    above = path_of(mixed(), host.driver)
    assert host.enforcer.enforce(target(mixed())).ok
    for number, (container, name) in enumerate((("db", ID), ("backup", OTHER_ID)), 1):
        host.start(above, container, name, number)
    host.start(above, None, SANDBOX_ID, 3)
    report = host.enforcer.enforce(target(mixed()))
    assert report.ok
    assert report.notes == ()
    assert [str(host.tree.allowed(pid)[0]) for pid in (1, 2, 3)] == ["2-5", "6-7", "6-7"]


def test_what_a_runtime_changed_is_reported_so_and_repaired(host: Host) -> None:
    assert host.enforcer.enforce(target(mixed())).ok
    cgroup = host.start(path_of(mixed(), host.driver), "db", ID, 1)
    assert host.enforcer.enforce(target(mixed())).ok
    host.update(cgroup, "6-7")
    report = host.enforcer.repair(target(mixed()))
    (difference,) = report.drift
    assert (difference.cause, difference.container) == (Cause.RUNTIME_UPDATE, "db")
    assert difference.detail.endswith(
        "that is what the container runtime has on record for the container"
    )
    assert report.repaired == {"runtime update": 1}
    assert host.tree.allowed(1)[0] == Mask.parse("2-5")
    assert host.enforcer.repair(target(mixed())).drift == ()
    host.tree.write(cgroup, "cpuset.cpus", "7")  # as another process does
    (difference,) = host.enforcer.repair(target(mixed())).drift
    assert difference.cause is Cause.UNKNOWN

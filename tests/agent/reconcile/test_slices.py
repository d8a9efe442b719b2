"""The systemd driver, against a service manager that rewrites files from its own properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from agent.reconcile.diff import Cause
from agent.reconcile.drivers import SliceCgroups, read_record
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.report import EnforcementStartError
from cgroupfs.names import Driver
from cgroupfs.state import WriterRecord
from sysfs.mask import Mask
from systemd.units import Property
from tests.agent.reconcile.pods import (
    FakeSystemd,
    exclusive,
    kernel,
    layout,
    mixed,
    on_host,
    path_of,
    pod,
    run,
    slices,
    target,
)
from tests.fakes.kernel import Died, quota

if TYPE_CHECKING:
    from cgroupfs.emulated.kernel import EmulatedKernel

#: What systemd has of a unit without reserved memory and without a limit of tasks.
UNSET = {"memory.min": "0", "memory.low": "0", "memory.high": "max", "pids.max": "max"}
SLICE = path_of(mixed(), Driver.SYSTEMD)
UNIT = SLICE.rpartition("/")[2]


def admitted() -> tuple[EmulatedKernel, Enforcer, FakeSystemd]:
    """Return a host on which the mixed pod has its slice."""
    tree = kernel()
    enforcer, systemd = slices(tree)
    enforcer.enforce(target(mixed()))
    return tree, enforcer, systemd


def test_the_pods_cgroup_is_a_slice_and_systemd_knows_its_settings() -> None:
    tree = kernel()
    enforcer, systemd = slices(tree)
    report = enforcer.enforce(target(mixed()))
    assert report.ok
    assert report.created == (SLICE,)
    assert report.recorded == ("kubepods.slice", UNIT)
    assert ("start", UNIT) in systemd.calls
    assert read_record(systemd, UNIT) == WriterRecord(
        Mask.parse("2-7"), Mask.of(0), quota() | {"cpu.weight": "235", "memory.max": "max"} | UNSET
    )
    assert tree.read(SLICE, "cpuset.cpus.effective") == "2-7\n"


def test_scopes_are_recorded_so_that_systemd_writes_the_same() -> None:
    tree, enforcer, systemd = admitted()
    scope = systemd.start_scope(SLICE, "backup.scope", 2)
    report = enforcer.enforce(target(mixed()))
    assert report.ok
    assert report.recorded == ("backup.scope",)
    systemd.realize("backup.scope")
    assert tree.read(scope, "cpuset.cpus") == "6-7\n"
    assert tree.read(scope, "cpu.max") == "600000 100000\n"
    assert not enforcer.enforce(target(mixed())).changed


def test_a_quota_that_is_not_ours_survives_being_recorded() -> None:
    tree = kernel()
    enforcer, systemd = slices(tree)
    allocation = pod(on_host("web"))
    enforcer.enforce(target(allocation))
    path = path_of(allocation, Driver.SYSTEMD)
    scope = systemd.start_scope(path, "web.scope", 2)
    tree.write(path, "cgroup.subtree_control", "+cpu")
    tree.write(scope, "cpu.max", "140000 100000")
    assert enforcer.enforce(target(allocation)).ok
    assert tree.read(scope, "cpu.max") == "140000 100000\n"


def test_what_systemd_reverts_is_reported_so_and_repaired() -> None:
    tree, enforcer, systemd = admitted()
    systemd.start_scope(SLICE, "db.scope", 1)
    enforcer.enforce(target(mixed()))
    systemd.set_properties("db.scope", [Property("AllowedCPUs", "ay", b"\x0c")])
    report = enforcer.repair(target(mixed()))
    assert [(p.cause, p.container) for p in report.drift] == [(Cause.REVERTED_BY_SYSTEMD, "db")]
    assert report.ok
    assert tree.allowed(1)[0] == Mask.parse("2-5")
    systemd.realize("db.scope")
    assert tree.allowed(1)[0] == Mask.parse("2-5")


def test_plain_directories_in_a_slice_are_not_recorded_in_systemd() -> None:
    tree, enforcer, _ = admitted()
    run(tree, f"{SLICE}/db", 1)
    report = enforcer.enforce(target(mixed()))
    assert report.ok
    assert report.recorded == ()


def test_a_slice_with_processes_is_never_stopped() -> None:
    tree, enforcer, systemd = admitted()
    systemd.start_scope(SLICE, "db.scope", 1)
    released = enforcer.releaser.pod(mixed())
    assert (released.removed, released.processes) == (False, (1,))
    assert ("stop", UNIT) not in systemd.calls
    assert enforcer.enforce(target()).ok
    assert tree.allowed(1)[0] == Mask.parse("0-15")


def test_a_slices_directory_that_systemd_has_forgotten_is_removed() -> None:
    tree, enforcer, systemd = admitted()
    del systemd.active[UNIT]
    assert enforcer.releaser.pod(mixed()).removed
    assert not tree.exists(SLICE)


def test_without_a_bus_the_start_fails_in_one_line() -> None:
    tree = kernel()
    broken = FakeSystemd(tree, broken=True)
    enforcer = Enforcer(tree, layout(Driver.SYSTEMD), SliceCgroups(tree, broken))
    with pytest.raises(EnforcementStartError, match="cgroupDriver") as caught:
        enforcer.prepare()
    assert "\n" not in str(caught.value)


def test_a_bus_that_breaks_later_costs_the_record_and_not_the_settings() -> None:
    tree, enforcer, systemd = admitted()
    systemd.start_scope(SLICE, "db.scope", 1)
    systemd.broken = True
    report = enforcer.enforce(target(mixed()))
    assert tree.allowed(1)[0] == Mask.parse("2-5")
    assert [p.cause for p in report.remaining] == [Cause.REVERTED_BY_SYSTEMD]
    assert "may revert" in report.remaining[0].detail
    assert not enforcer.releaser.pod(mixed()).removed
    systemd.broken = False
    assert enforcer.enforce(target(mixed())).recorded == ("db.scope",)


@dataclass
class MortalSystemd(FakeSystemd):
    """The agent dies at its `at`-th question to systemd."""

    at: int = -1
    asked: int = 0

    def _answer(self) -> None:
        self.asked += 1
        if self.asked - 1 == self.at:
            raise Died


def start_and_admit(systemd: FakeSystemd) -> None:
    tree = systemd.tree
    enforcer = Enforcer(tree, layout(Driver.SYSTEMD), SliceCgroups(tree, systemd))
    enforcer.prepare()
    enforcer.enforce(target(mixed()))
    systemd.start_scope(SLICE, "db.scope", 1)
    assert enforcer.enforce(target(mixed())).ok


def test_dying_at_any_call_to_systemd_is_repaired_by_the_next_start() -> None:
    everything = MortalSystemd(kernel())
    start_and_admit(everything)
    assert everything.asked >= 10
    for at in range(everything.asked):
        tree = kernel()
        mortal = MortalSystemd(tree, at=at)
        with pytest.raises(Died):
            start_and_admit(mortal)
        restarted = Enforcer(tree, layout(Driver.SYSTEMD), SliceCgroups(tree, mortal))
        restarted.prepare()
        assert restarted.repair(target(mixed())).ok
        if "db.scope" not in mortal.active:
            mortal.start_scope(SLICE, "db.scope", 1)
        assert restarted.repair(target(mixed())).ok
        assert tree.allowed(1)[0] == Mask.parse("2-5")
        assert read_record(mortal, "db.scope").cpus == Mask.parse("2-5")
        assert not restarted.repair(target(mixed())).changed


def test_a_scope_of_the_same_name_elsewhere_is_not_changed() -> None:
    tree = kernel()
    enforcer, systemd = slices(tree)
    own, other = pod(exclusive("a", "8-9"), uid="own"), pod(on_host("a"), uid="other")
    enforcer.enforce(target(own, other))
    systemd.start_scope(path_of(own, Driver.SYSTEMD), "a.scope", 1)
    assert enforcer.enforce(target(own, other)).ok
    # systemd knows this one by the name now, while the cgroup of the first one still exists.
    stray = systemd.start_scope(path_of(other, Driver.SYSTEMD), "a.scope", 2)
    moved = pod(exclusive("a", "10-11"), uid="own")
    enforcer.enforce(target(moved, other))
    enforcer.enforce(target(moved, other))
    assert systemd.properties.get("a.scope", {}).get("AllowedCPUs") != b"\x00\x0c"
    assert tree.allowed(2)[0] == target(moved, other).shared_pool
    assert (tree.read_many(stray, ("cpuset.cpus",))[0] or "").strip() == ""

"""Slices, and the imitation of systemd's reverting that other tests build on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgroupfs.apply import enable
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from systemd import bus as slices
from systemd.bus import ActiveState
from systemd.units import (
    Property,
    UnitExistsError,
    UnitNameError,
    allowed_cpus,
    allowed_memory_nodes,
    cpu_quota,
    cpu_weight,
)
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Sequence

POD = "kubepods-pod1.slice"
PATH = "kubepods.slice/kubepods-pod1.slice"
PINNED = (allowed_cpus(Mask.parse("2-3")), allowed_memory_nodes(Mask.of(1)))


@pytest.fixture
def kernel() -> EmulatedKernel:
    return EmulatedKernel(Mask.parse("0-7"), Mask.parse("0-1"))


@pytest.fixture
def systemd(kernel: EmulatedKernel) -> FakeSystemd:
    return FakeSystemd(kernel)


def shown(kernel: EmulatedKernel, path: str, file: str) -> str:
    return kernel.read(path, file).strip()


def test_a_slice_is_started_with_its_properties(
    systemd: FakeSystemd, kernel: EmulatedKernel
) -> None:
    assert slices.ensure(systemd, POD, (*PINNED, *cpu_quota(150_000)), about="pod 1") is True
    assert systemd.control_group(POD) == PATH
    assert shown(kernel, PATH, "cpuset.cpus.effective") == "2-3"
    assert shown(kernel, PATH, "cpuset.mems.effective") == "1"
    assert shown(kernel, PATH, "cpu.max") == "150000 100000"
    assert systemd.unit_properties(POD, "Description")[0] == "pod 1"


def test_a_running_slice_is_only_changed(systemd: FakeSystemd, kernel: EmulatedKernel) -> None:
    slices.ensure(systemd, POD, ())
    assert slices.ensure(systemd, POD, PINNED) is False
    assert shown(kernel, PATH, "cpuset.cpus") == "2-3"
    # Starting a slice that runs is rejected, which costs less than asking before each start.
    assert systemd.calls == [("start", POD), ("start", POD), ("set", POD)]


def test_a_slice_that_does_not_run_is_not_touched(systemd: FakeSystemd) -> None:
    assert slices.update(systemd, POD, PINNED) is False
    assert systemd.calls == []
    assert systemd.drop_ins == set()
    systemd.set_properties(POD, PINNED)  # what setting it blindly would leave behind
    assert systemd.drop_ins == {POD}


def test_a_slice_that_appears_meanwhile_is_changed(kernel: EmulatedKernel) -> None:
    class Racing(FakeSystemd):
        def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
            assert properties == PINNED
            super().start_transient(unit, ())
            raise UnitExistsError("StartTransientUnit", "UnitExists", unit)

    racing = Racing(kernel)
    assert slices.ensure(racing, POD, PINNED) is False
    assert shown(kernel, PATH, "cpuset.cpus") == "2-3"


def test_what_runs_in_a_stopped_slice_runs_on(systemd: FakeSystemd, kernel: EmulatedKernel) -> None:
    slices.ensure(systemd, POD, PINNED)
    systemd.start_scope("app.scope", POD, 5)
    assert slices.stop(systemd, POD) is True
    assert kernel.procs(f"{PATH}/app.scope") == (5,)
    assert systemd.active_state("app.scope") is ActiveState.ACTIVE


def test_a_stopped_slice_is_gone(systemd: FakeSystemd, kernel: EmulatedKernel) -> None:
    slices.ensure(systemd, POD, PINNED)
    assert slices.stop(systemd, POD) is True
    assert not kernel.exists(PATH)
    assert slices.stop(systemd, POD) is False
    assert systemd.calls.count(("stop", POD)) == 1


@pytest.mark.parametrize("act", [slices.ensure, slices.update])
def test_only_slices_are_accepted(systemd: FakeSystemd, act: object) -> None:
    assert callable(act)
    with pytest.raises(UnitNameError, match=r"a \.slice is needed"):
        act(systemd, "app.scope", ())




def pinned_by_hand(systemd: FakeSystemd, kernel: EmulatedKernel, *record: Property) -> str:
    """Start a pod slice with two delegated scopes and pin one of them by its files alone."""
    slices.ensure(systemd, POD, ())
    systemd.start_scope("side.scope", POD, 6, delegate=True)
    path = systemd.start_scope("app.scope", POD, 5, *record, delegate=True)
    kernel.write(path, "cpuset.cpus", "2-3")
    kernel.write(path, "cpu.max", "50000 100000")
    return path


def test_only_a_new_sibling_after_a_reload_rewrites_every_unit_from_its_record(
    systemd: FakeSystemd, kernel: EmulatedKernel
) -> None:
    record = (allowed_cpus(Mask.parse("0-1")), *cpu_quota(140_000))
    path = pinned_by_hand(systemd, kernel, *record)
    kernel.write(PATH, "cpu.max", "70000 100000")
    systemd.start_scope("third.scope", POD, 7, delegate=True)
    systemd.daemon_reload()
    assert shown(kernel, path, "cpu.max") == "50000 100000"
    assert shown(kernel, path, "cpuset.cpus") == "2-3"
    systemd.start_scope("fourth.scope", POD, 8, delegate=True)
    assert shown(kernel, path, "cpu.max") == "140000 100000"
    assert shown(kernel, path, "cpuset.cpus") == "0-1"
    assert shown(kernel, PATH, "cpu.max") == "max 100000"


def test_without_a_record_a_set_in_use_survives_but_the_quota_does_not(
    systemd: FakeSystemd, kernel: EmulatedKernel
) -> None:
    path = pinned_by_hand(systemd, kernel)
    systemd.set_properties("app.scope", (cpu_weight(50),))
    assert shown(kernel, path, "cpu.max") == "max 100000"
    assert shown(kernel, path, "cpuset.cpus") == "2-3"
    assert any("cpuset.cpus: No space left" in line for line in systemd.journal)


def test_controllers_that_no_unit_asked_for_are_switched_off(
    systemd: FakeSystemd, kernel: EmulatedKernel
) -> None:
    slices.ensure(systemd, POD, ())
    systemd.start_scope("app.scope", POD, 5)
    enable(kernel, PATH + "/app.scope")
    kernel.write(PATH, "cpuset.cpus", "2-3")
    slices.ensure(systemd, "kubepods-pod2.slice", (cpu_weight(50),))
    assert kernel.read_many(PATH, ("cpuset.cpus",)) != (None,)  # -cpuset: EBUSY, a child has it
    kernel.write(PATH, "cgroup.subtree_control", "-cpuset")
    systemd.daemon_reload()
    systemd.start_scope("other.scope", "kubepods-pod2.slice", 6)
    assert kernel.read_many(PATH, ("cpuset.cpus",)) == (None,)


def test_a_value_that_the_kernel_rejects_is_a_success_to_the_caller(
    systemd: FakeSystemd, kernel: EmulatedKernel
) -> None:
    slices.ensure(systemd, POD, PINNED)
    systemd.set_properties(POD, (allowed_cpus(Mask.of(100)),))
    assert shown(kernel, PATH, "cpuset.cpus") == "2-3"
    assert any("out of range" in line for line in systemd.journal)

"""Slices are started, changed and stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from systemd import bus as slices
from systemd.units import (
    Property,
    UnitExistsError,
    UnitNameError,
    allowed_cpus,
    allowed_memory_nodes,
    cpu_quota,
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


def test_a_slice_that_appears_meanwhile_is_changed(kernel: EmulatedKernel) -> None:
    class Racing(FakeSystemd):
        def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
            assert properties == PINNED
            super().start_transient(unit, ())
            raise UnitExistsError("StartTransientUnit", "UnitExists", unit)

    racing = Racing(kernel)
    assert slices.ensure(racing, POD, PINNED) is False
    assert shown(kernel, PATH, "cpuset.cpus") == "2-3"


def test_a_slice_that_does_not_run_is_not_touched(systemd: FakeSystemd) -> None:
    assert slices.update(systemd, POD, PINNED) is False
    assert (systemd.calls, systemd.drop_ins) == ([], set())


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

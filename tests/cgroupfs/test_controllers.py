from __future__ import annotations

import errno

import pytest

from cgroupfs.apply import enable, lacking
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.errors import ControllerRejectedError, ControllerUnavailableError
from sysfs.mask import Mask
from tests.fakes.kernel import FaultyTree, reject_writes

PATH = "pods/a/app"


def kernel_with(*controllers: str) -> EmulatedKernel:
    kernel = EmulatedKernel(Mask.parse("0-3"), Mask.of(0), controllers=controllers)
    for path in ("pods", "pods/a", PATH):
        kernel.mkdir(path)
    return kernel


@pytest.fixture
def kernel() -> EmulatedKernel:
    return kernel_with("cpuset", "cpu", "memory")


def test_controllers_are_enabled_from_the_root_down(kernel: EmulatedKernel) -> None:
    assert lacking(kernel, PATH) == ("", "pods", "pods/a")
    assert enable(kernel, PATH) == ("", "pods", "pods/a")
    assert lacking(kernel, PATH) == ()
    assert kernel.read(PATH, "cpuset.cpus") == "\n"
    assert kernel.read(PATH, "cpu.max") == "max 100000\n"


def test_only_what_is_missing_is_written(kernel: EmulatedKernel) -> None:
    kernel.write("", "cgroup.subtree_control", "+cpuset")
    tree = FaultyTree(kernel)
    assert enable(tree, "pods") == ("",)
    assert tree.writes == [("", "cgroup.subtree_control", "+cpu")]


def test_a_lost_controller_is_found_at_its_ancestor(kernel: EmulatedKernel) -> None:
    enable(kernel, PATH)
    kernel.write("pods/a", "cgroup.subtree_control", "-cpuset")
    assert lacking(kernel, PATH) == ("pods/a",)
    assert lacking(kernel, PATH, ("cpu",)) == ()
    assert lacking(kernel, "gone/x") == ("gone",)


def test_a_controller_the_kernel_does_not_offer_is_named_with_its_ancestor() -> None:
    kernel = kernel_with("cpu")
    with pytest.raises(
        ControllerUnavailableError, match=r"enable cpuset for /pods/a.*: / does"
    ) as e:
        enable(kernel, "pods/a")
    assert (e.value.ancestor, e.value.missing) == ("", ("cpuset",))
    assert "cgroup_disable=" in str(e.value)


def test_a_rejection_is_named_with_its_ancestor_and_a_remedy(kernel: EmulatedKernel) -> None:
    tree = FaultyTree(kernel, reject_writes("pods", "cgroup.subtree_control", errno.EBUSY))
    with pytest.raises(ControllerRejectedError, match="move them into a child") as caught:
        enable(tree, PATH)
    assert (caught.value.ancestor, caught.value.errno) == ("pods", errno.EBUSY)


def test_a_controller_that_vanishes_at_once_is_noticed(kernel: EmulatedKernel) -> None:
    class Fought(FaultyTree):
        def write(self, path: str, file: str, value: str) -> None:
            super().write(path, file, value)
            kernel.write(path, file, "-cpuset")

    with pytest.raises(ControllerUnavailableError, match="another writer removed it at once"):
        enable(Fought(kernel), "pods")


def test_an_ancestor_that_is_gone_is_named(kernel: EmulatedKernel) -> None:
    with pytest.raises(ControllerRejectedError, match=r"/gone failed.*create it and try again"):
        enable(kernel, "gone/x")

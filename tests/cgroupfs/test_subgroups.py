from __future__ import annotations

from cgroupfs.apply import apply
from cgroupfs.controllers import enable
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.plan import Setting, make_plan
from cgroupfs.state import read_states
from cgroupfs.subgroups import with_subgroups
from cgroupfs.values import CpuMax
from sysfs.mask import Mask

SCOPE = "pod/cri-containerd-1.scope"
INNER = SCOPE + "/container"
CPUS = Mask.parse("2-3")


def kernel_with(*paths: str, inner_controllers: bool = True) -> EmulatedKernel:
    kernel = EmulatedKernel(Mask.parse("0-7"), Mask.of(0))
    for path in paths:
        kernel.mkdir(path)
    enable(kernel, INNER if inner_controllers else SCOPE)
    return kernel


def test_the_runtimes_inner_cgroup_gets_the_sets_but_not_the_quota() -> None:
    kernel = kernel_with("pod", SCOPE, INNER, SCOPE + "/other")
    wanted = Setting(SCOPE, cpus=CPUS, mems=Mask.of(0), cpu_max=CpuMax(9_000), exclusive=True)
    assert list(with_subgroups(kernel, (wanted,))) == [
        wanted,
        Setting(INNER, cpus=CPUS, mems=Mask.of(0), exclusive=True),
    ]


def test_an_inner_cgroup_without_the_controller_follows_anyway() -> None:
    kernel = kernel_with("pod", SCOPE, INNER, inner_controllers=False)
    wanted = Setting(SCOPE, cpus=CPUS)
    assert list(with_subgroups(kernel, (wanted,))) == [wanted]


def test_an_inner_cgroup_pinned_elsewhere_is_brought_along() -> None:
    kernel = kernel_with("pod", SCOPE, INNER)
    kernel.write(SCOPE, "cpuset.cpus", "0-1")
    kernel.write(INNER, "cpuset.cpus", "0-1")
    wanted = tuple(with_subgroups(kernel, (Setting(SCOPE, cpus=CPUS),)))
    assert apply(kernel, make_plan(read_states(kernel, (SCOPE, INNER)), wanted)).ok
    assert kernel.read(INNER, "cpuset.cpus.effective") == "2-3\n"

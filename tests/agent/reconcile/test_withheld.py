"""What is withheld from pods, and by which cgroup, of trees as an administrator made them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import pytest

from agent.reconcile.withheld import read_withheld
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from tests.fakes.kernel import FaultyTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.fakes.kernel import Operation

ONLINE: Final = Mask.parse("0-15")
_SETS: Final = {
    "cpus": "cpuset.cpus",
    "exclusive": "cpuset.cpus.exclusive",
    "partition": "cpuset.cpus.partition",
}


def tree_of(lines: Sequence[str], pods: str = "kubepods", has: str = "0-15") -> EmulatedKernel:
    """Return a tree with cgroups of lines `PATH SET=VALUE ...`, in their order."""
    kernel = EmulatedKernel(Mask.parse(has), Mask.of(0))
    kernel.write("", "cgroup.subtree_control", "+cpuset")
    for line in (pods, *lines):
        path, *settings = line.split()
        above = ""
        for name in path.split("/"):
            at = f"{above}/{name}".lstrip("/")
            if not kernel.exists(at):
                kernel.mkdir(at)
                kernel.write(at, "cgroup.subtree_control", "+cpuset")
            above = at
        for setting in settings:
            name, _, value = setting.partition("=")
            kernel.write(path, _SETS[name], value)
    return kernel


#: What the tree is, and what is withheld of CPUs 0-15 from kubepods, or from a/kubepods.
TREES: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "a slice with a set, and without a partition": (("system.slice cpus=0-3",), ()),
    "a remote partition": (
        (
            "openshift.slice exclusive=1-4",
            "openshift.slice/ovs.slice cpus=1-4 exclusive=1-4 partition=root",
        ),
        ("CPUs 1-4 belong to the partition /openshift.slice/ovs.slice",),
    ),
    "two partitions, one with another inside": (
        (
            "a.slice cpus=1-4 partition=root",
            "a.slice/b.slice cpus=3-4 partition=isolated",
            "c.slice cpus=6 partition=isolated",
        ),
        ("CPUs 1-4 belong to the partition /a.slice", "CPUs 6 belong to the partition /c.slice"),
    ),
    "a partition that is invalid": (("ovs.slice cpus=0-15 partition=root",), ()),
    "a partition that ended": (
        ("ovs.slice cpus=1-4 partition=root", "ovs.slice partition=member"),
        (),
    ),
    "pods that are partitions": (
        (
            "kubepods exclusive=1-4",
            "kubepods/poda cpus=1-2 exclusive=1-2 partition=root",
            "kubepods/podb cpus=3-4 exclusive=3-4 partition=isolated",
        ),
        (),
    ),
    "pods that are partitions beside another": (
        (
            "ovs.slice cpus=6-7 partition=root",
            "kubepods exclusive=1-2",
            "kubepods/poda cpus=1-2 exclusive=1-2 partition=root",
        ),
        ("CPUs 6-7 belong to the partition /ovs.slice",),
    ),
    "all pods in a partition of their own": (
        ("kubepods cpus=4-7 partition=root",),
        ("CPUs 0-3,8-15 are outside of /kubepods, which allows only 4-7",),
    ),
    "a set of the cgroup of all pods, which the agent writes": (("kubepods cpus=4-7",), ()),
    "a narrowed cgroup above": (
        ("a cpus=0-7", "a/kubepods"),
        ("CPUs 8-15 are outside of /a, which allows only 0-7",),
    ),
    "a narrowed cgroup above, beside a partition": (
        ("a cpus=0-7", "a/kubepods", "ovs.slice cpus=8-9 partition=root"),
        (
            "CPUs 8-9 belong to the partition /ovs.slice",
            "CPUs 10-15 are outside of /a, which allows only 0-7",
        ),
    ),
    "a cgroup above that is a partition": (
        ("a cpus=0-7 partition=root", "a/kubepods", "a/ovs.slice cpus=2-3 partition=root"),
        (
            "CPUs 2-3 belong to the partition /a/ovs.slice",
            "CPUs 8-15 are outside of /a, which allows only 0-1,4-7",
        ),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_the_cgroup_that_withholds_cpus_is_named(name: str) -> None:
    lines, expected = TREES[name]
    pods = "a/kubepods" if any(line.startswith("a/kubepods") for line in lines) else "kubepods"
    found = read_withheld(tree_of(lines, pods), pods, ONLINE)
    assert tuple(map(str, found)) == tuple(expected)


def test_a_root_that_has_fewer_cpus_than_the_host_withholds_the_others() -> None:
    (withheld,) = read_withheld(tree_of((), has="0-3"), "kubepods", ONLINE)
    assert str(withheld) == (
        "CPUs 4-15 are outside of the root of the cgroup tree, which allows only 0-3"
    )
    assert withheld.remedy == "widen the root of the cgroup tree"


def test_beside_a_kubelet_the_set_that_the_kubelet_wrote_for_all_pods_counts() -> None:
    tree = tree_of(("kubepods cpus=0-7",))
    (withheld,) = read_withheld(tree, "kubepods", ONLINE, beside_kubelet=True)
    assert str(withheld) == "CPUs 8-15 are outside of /kubepods, which allows only 0-7"


@pytest.mark.parametrize("pods", ["kubepods", "there/is/none/kubepods"])
def test_cgroups_that_do_not_exist_yet_withhold_nothing(pods: str) -> None:
    kernel = EmulatedKernel(ONLINE, Mask.of(0))
    assert read_withheld(kernel, pods, ONLINE) == ()


def test_a_tree_that_has_none_of_the_hosts_cpus_is_not_its_own() -> None:
    assert read_withheld(tree_of((), has="0-3"), "kubepods", Mask.parse("8-15")) == ()


def test_cgroups_that_vanish_while_they_are_read_change_nothing_else() -> None:
    """Another program's cgroups come and go at any step: each read finds one of them gone."""
    lines = (
        "gone.slice exclusive=1-2",
        "gone.slice/in.slice cpus=1-2 exclusive=1-2 partition=root",
        "ovs.slice cpus=6-7 partition=root",
    )
    steps = FaultyTree(tree_of(lines))
    read_withheld(steps, "kubepods", ONLINE)
    for number in range(1, len(steps.log) + 1):

        def vanish(operation: Operation, at: int = number) -> None:
            if operation.number == at and operation.path.startswith("gone.slice"):
                raise FileNotFoundError(errno.ENOENT, "it has ended", operation.path)

        found = read_withheld(FaultyTree(tree_of(lines), vanish), "kubepods", ONLINE)
        assert "CPUs 6-7 belong to the partition /ovs.slice" in map(str, found)

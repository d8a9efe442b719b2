from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.api.documents.admissions import BindRequest
from agent.managers.allocation import ContainerAllocation, Isolation, PodAllocation
from agent.managers.bindings import NO_BINDINGS
from agent.pods.model import ContainerKind, QosClass
from agent.reconcile.report import BindingError, count_causes
from agent.reconcile.start_checks import make_enforcer, make_layout
from agent.reconcile.target import Desired
from agent.server.errors import KernelUnreadableError
from agent.server.kernel import KernelEnforcement
from cgroupfs.apply import enable
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.tree import ancestors
from sysfs.mask import Mask
from tests.agent.managers.ledgers import ledger_with
from tests.fakes.kernel import FaultyTree

if TYPE_CHECKING:
    from agent.reconcile.report import EnforcementReport
    from cgroupfs.tree import CgroupTree
    from tests.fakes.kernel import Operation

POD = "kubepods/podu-1"


def allocation(*names: str) -> PodAllocation:
    containers = tuple(
        ContainerAllocation(name, ContainerKind.APP, Isolation.CONTAINER, Mask.of(number))
        for number, name in enumerate(names, start=1)
    )
    return PodAllocation("u-1", "web", "shop", QosClass.GUARANTEED, "", containers)


def target(*allocations: PodAllocation) -> Desired:
    exclusive = Mask.from_ids(cpu for each in allocations for cpu in each.exclusive_cpus)
    return Desired(ledger_with(*allocations), Mask.parse("0-7") - exclusive, NO_BINDINGS)


def kernel_of(tree: CgroupTree) -> KernelEnforcement:
    layout = make_layout("cgroupfs")
    return KernelEnforcement(
        make_enforcer(tree, layout, None), tree, layout, Path("/sys/fs/cgroup"), Path("/proc")
    )


def drift(outcome: EnforcementReport) -> dict[str, int]:
    return dict(count_causes(outcome.drift))


@pytest.fixture
def tree() -> EmulatedKernel:
    kernel = EmulatedKernel(Mask.parse("0-7"), Mask.of(0, 1))
    kernel.write("", "cgroup.subtree_control", "+cpuset +cpu +memory")
    return kernel


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_container_that_appears_is_settled_which_is_not_drift(
    tree: EmulatedKernel, *, taken_back: bool
) -> None:
    """When the first unit of a slice starts, systemd takes controllers back."""
    kernel, desired = kernel_of(tree), target(allocation("a", "b"))
    kernel.enforce(desired, "u-1")
    if taken_back:
        tree.write(POD, "cgroup.subtree_control", "-cpuset -cpu")
    tree.mkdir(f"{POD}/a")
    outcome = kernel.reconcile(desired)
    assert (drift(outcome), outcome.first_set) == ({}, (f"{POD}/a",))
    assert tree.read(f"{POD}/a", "cpuset.cpus") == "1\n"
    tree.write(f"{POD}/a", "cpuset.cpus", "2")
    outcome = kernel.reconcile(desired)
    assert (drift(outcome), outcome.first_set) == ({"unknown": 1}, ())
    tree.write(POD, "cgroup.subtree_control", "-cpuset")
    outcome = kernel.reconcile(desired)
    assert drift(outcome)["controller lost"] == 2
    # The files below are new ones, which are not watched yet.
    assert POD in outcome.renewed
    assert tree.read(f"{POD}/a", "cpuset.cpus") == "1\n"


def test_what_changed_while_no_agent_ran_is_drift(tree: EmulatedKernel) -> None:
    desired = target(allocation("a"))
    kernel_of(tree).enforce(desired, "u-1")
    tree.write(POD, "cpuset.cpus", "0-7")
    assert drift(kernel_of(tree).reconcile(desired)) == {"unknown": 1}


def test_the_cgroup_of_a_class_that_was_made_again_is_not_drift(tree: EmulatedKernel) -> None:
    """As the kubelet and systemd do it when the first pod of the class starts."""
    app = ContainerAllocation("a", ContainerKind.APP, Isolation.HOST)
    web = PodAllocation("u-2", "web", "shop", QosClass.BURSTABLE, "", (app,))
    desired, kernel, of_class = target(allocation("b"), web), kernel_of(tree), "kubepods/burstable"
    for path in ("kubepods", of_class, f"{of_class}/podu-2", f"{of_class}/podu-2/a"):
        tree.mkdir(path)
    for _ in range(2):
        kernel.reconcile(desired)
    before = tree.read(of_class, "cpuset.cpus")
    for path in (f"{of_class}/podu-2", of_class, POD):
        tree.write(path, "cgroup.subtree_control", "-cpuset")
    for sign in "-+":
        tree.write("kubepods", "cgroup.subtree_control", f"{sign}cpuset")
    assert (before.strip(), tree.read(of_class, "cpuset.cpus").strip()) == ("0,2-7", "")
    report = kernel.enforce(desired, "u-2")
    assert [each for each in report.drift if each.file == "cpuset.cpus"] == []
    assert tree.read(of_class, "cpuset.cpus") == before


def test_what_inherits_from_a_cgroup_without_a_set_of_its_own_is_not_drift(
    tree: EmulatedKernel,
) -> None:
    """Pods run before there is an agent."""
    pod = "kubepods/burstable/podu-2"
    app = ContainerAllocation("a", ContainerKind.APP, Isolation.HOST)
    web = PodAllocation("u-2", "web", "shop", QosClass.BURSTABLE, "", (app,))
    for path in (*ancestors(pod)[1:], pod, f"{pod}/a"):
        tree.mkdir(path)
    enable(tree, f"{pod}/a")
    tree.spawn(f"{pod}/a", 7)
    outcome = kernel_of(tree).reconcile(target(allocation("b"), web))
    assert count_causes(outcome.found)["inherited"] == 2
    assert not [each for each in outcome.drift if each.file.startswith("cpuset")]
    assert tree.read(f"{pod}/a", "cpuset.cpus.effective") == "0,2-7\n"


def test_a_tree_that_fails_is_a_difference_and_no_exception() -> None:
    kernel = kernel_of(Unsearchable(EmulatedKernel(Mask.parse("0-7"), Mask.of(0))))
    desired = target(allocation("a"))
    assert "Input/output error" in kernel.enforce(desired, "u-1").of_pod("u-1")[0].detail
    both = kernel.enforce(target(allocation("a")), "u-1", "u-2").differences
    assert [each.pod for each in both] == ["u-1", "u-2"]
    assert "Input/output error" in kernel.reconcile(desired).of_pod("")[0].detail
    assert "Input/output error" in kernel.release(target(), allocation("a")).of_pod("")[0].detail


def test_a_process_that_does_not_run_cannot_be_bound(tree: EmulatedKernel) -> None:
    kernel, pod = kernel_of(tree), allocation("a")
    with pytest.raises(BindingError, match="no such process"):
        kernel.locate(target(pod), pod, "a", BindRequest(pid=2**30))


def test_a_tree_that_cannot_be_read_is_said_to_be_that(tree: EmulatedKernel) -> None:
    def broken(operation: Operation) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), operation.path)

    faulty = FaultyTree(tree)
    kernel, desired = kernel_of(faulty), target(allocation("a"))
    kernel.enforce(desired, "u-1")
    faulty.fault = broken
    request = BindRequest(cgroup=f"/{POD}/x")
    tree.mkdir(f"{POD}/x")
    for ask in (
        lambda: kernel.verify(desired, Mask.parse("0-7")),
        lambda: kernel.observe(desired, allocation("a")),
    ):
        with pytest.raises(KernelUnreadableError, match=r"at /kubepods\S*: Input/output error"):
            ask()
    kernel = kernel_of(Unsearchable(tree))
    with pytest.raises(KernelUnreadableError, match="Input/output error; see the kernel log"):
        kernel.locate(desired, allocation("a"), "a", request)


class Unsearchable(FaultyTree):
    """A tree that cannot be searched."""

    def exists(self, path: str) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def shared(uid: str) -> PodAllocation:
    container = ContainerAllocation("a", ContainerKind.APP)
    return PodAllocation(uid, uid, "shop", QosClass.GUARANTEED, "", (container,))


def test_a_container_in_a_pod_that_was_not_looked_at_is_settled_by_the_next_comparison(
    tree: EmulatedKernel,
) -> None:
    kernel = kernel_of(tree)
    kernel.enforce(target(shared("u-1")), "u-1")
    tree.mkdir(f"{POD}/a")
    outcome = kernel.enforce(target(shared("u-1"), shared("u-2")), "u-2")
    assert (outcome.pods, outcome.cgroups.paths) == (
        frozenset({"u-2"}),
        frozenset({"kubepods/podu-2"}),
    )
    tree.mkdir("kubepods/podu-2/a")
    both = target(shared("u-1"), shared("u-2"))
    outcome = kernel.reconcile(both)
    assert outcome.cgroups.paths >= {f"{POD}/a", "kubepods/podu-2/a"}
    assert (drift(outcome), outcome.first_set) == ({}, ())  # they inherit the pod's set


def test_a_pod_that_went_and_came_again_is_not_drift(tree: EmulatedKernel) -> None:
    kernel, both = kernel_of(tree), target(shared("u-1"), shared("u-2"))
    kernel.enforce(target(shared("u-1")), "u-1")
    kernel.enforce(both, "u-2")
    tree.mkdir("kubepods/podu-2/a")
    kernel.reconcile(both)
    kernel.release(target(shared("u-1")), shared("u-2"))
    kernel.enforce(both, "u-2")
    tree.mkdir("kubepods/podu-2/a")
    outcome = kernel.reconcile(both)
    assert "kubepods/podu-2/a" in outcome.cgroups.paths
    assert drift(outcome) == {}

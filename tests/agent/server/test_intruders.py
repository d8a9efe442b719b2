from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.reconcile.report import EnforcementReport
from agent.reconcile.start_checks import make_enforcer, make_layout
from agent.reconcile.tasks import IntruderKind, Task
from agent.server.intruders import COUNT_SECONDS, COUNT_SHARE, IntruderCount
from agent.server.kernel import HostProbes, KernelEnforcement
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from tests.agent.server.test_enforced import allocation, target

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.reconcile.target import Desired

ONLINE = Mask.parse("0-7")
NOTHING = EnforcementReport()


class Host:
    """Tasks that take a while to read."""

    def __init__(self, *tasks: Task, seconds: float = 0.0) -> None:
        self.tasks = tasks
        self.seconds = seconds
        self.now = 1000.0
        self.read = 0

    def reading(self) -> tuple[Task, ...]:
        self.read += 1
        self.now += self.seconds
        return self.tasks

    def beside(self) -> tuple[tuple[Task, ...], Mask]:
        return self.reading(), ONLINE

    def counter(self) -> IntruderCount:
        return IntruderCount(lambda: self.now)

    def threads(self, desired: Desired) -> Mapping[str, int]:
        found = self.counter().count(desired, NOTHING, self.beside)
        assert found is not None
        return found.threads


def test_threads_are_counted_by_kind_and_kinds_without_any_are_0() -> None:
    host = Host(
        Task(7, "placed", Mask.parse("1-2"), "system.slice", threads=3),
        Task(8, "kworker", ONLINE, threads=2, kernel=True),
    )
    assert host.threads(target(allocation("c0"))) == {"confined": 3, "unconfined": 0, "kernel": 2}


def test_all_kinds_are_0_on_a_host_without_exclusive_cpus_and_no_task_is_read() -> None:
    host = Host(Task(7, "placed", Mask.of(1)))
    assert host.threads(target()) == dict.fromkeys(IntruderKind, 0)
    assert host.read == 0


@pytest.mark.parametrize("seconds", [0.0, 0.1, 3.0])
def test_counting_takes_no_more_than_its_share_of_the_time(seconds: float) -> None:
    host = Host(Task(7, "any", ONLINE), seconds=seconds)
    counter, desired = host.counter(), target(allocation("c0"))
    assert counter.count(desired, NOTHING, host.beside) is not None
    host.now += max(COUNT_SECONDS, seconds / COUNT_SHARE) - 1
    assert counter.count(desired, NOTHING, host.beside) is None
    assert host.read == 1
    host.now += 1
    assert counter.count(desired, NOTHING, host.beside) is not None


def test_a_count_that_fails_takes_no_more_of_the_time_than_one_that_does_not() -> None:
    host = Host(seconds=3.0)
    counter, desired = host.counter(), target(allocation("c0"))

    def fail() -> tuple[tuple[Task, ...], Mask]:
        host.reading()
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        counter.count(desired, NOTHING, fail)
    host.now += 3.0 / COUNT_SHARE - 1
    assert counter.count(desired, NOTHING, fail) is None
    assert host.read == 1


def test_a_task_that_was_placed_is_looked_for_at_each_comparison_until_it_is_gone() -> None:
    host = Host(Task(7, "placed", Mask.of(1), "system.slice", threads=3))
    counter, desired = host.counter(), target(allocation("c0"))
    for tasks in (host.tasks, host.tasks, ()):
        host.tasks = tasks
        host.now += 10
        found = counter.count(desired, NOTHING, host.beside)
        assert found is not None
        assert [each.task for each in found.confined] == list(tasks)
    host.now += COUNT_SECONDS - 1
    assert counter.count(desired, NOTHING, host.beside) is None


def test_tasks_of_one_cgroup_with_the_same_cpus_are_kept_once() -> None:
    tasks = (Task(pid, "placed", Mask.of(1), f"system.slice/{pid % 2}") for pid in range(100))
    host = Host(*tasks)
    found = host.counter().count(target(allocation("c0")), NOTHING, host.beside)
    assert found is not None
    assert found.threads["confined"] == 100
    assert sorted(each.task.pid for each in found.confined) == [0, 1]


def test_a_sibling_that_stays_idle_is_nobodys_to_run_on() -> None:
    host = Host(Task(7, "placed", Mask.of(5), "system.slice"))
    desired = target(replace(allocation("c0"), idle=Mask.of(5)))
    assert host.threads(desired) == {"confined": 1, "unconfined": 0, "kernel": 0}


@pytest.mark.parametrize("moment", ["never", "before", "while they are read"])
def test_a_task_that_has_all_but_the_cpus_of_a_partition_was_not_placed(
    tmp_path: Path, moment: str
) -> None:
    tree = EmulatedKernel(ONLINE, Mask.of(0, 1))
    tree.write("", "cgroup.subtree_control", "+cpuset +cpu +memory")
    tree.mkdir("ovs")
    tree.write("ovs", "cpuset.cpus", "5")
    layout, desired = make_layout("cgroupfs"), target(allocation("c0"))
    host = Host(Task(7, "service", ONLINE - Mask.of(5), "system.slice"))

    def tasks() -> tuple[Task, ...]:
        if moment == "while they are read":
            tree.write("ovs", "cpuset.cpus.partition", "root")
        return host.reading()

    probes = HostProbes(tasks, lambda: host.now)
    kernel = KernelEnforcement(
        make_enforcer(tree, layout, None), tree, layout, tmp_path, tmp_path, probes=probes
    )
    outcome = kernel.reconcile(desired)
    if moment == "before":
        tree.write("ovs", "cpuset.cpus.partition", "root")
    counted = kernel.count_intruders(desired, outcome, ONLINE)
    assert counted is not None
    assert bool(counted.confined) is (moment == "never")
    assert counted.threads["unconfined"] == (moment != "never")
    if moment == "while they are read":
        tree.write("ovs", "cpuset.cpus.partition", "member")
    assert bool(kernel.verify(desired, ONLINE).intruding) is (moment == "never")

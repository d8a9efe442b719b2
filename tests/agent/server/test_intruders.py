from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.reconcile.report import EnforcementReport
from agent.reconcile.tasks import IntruderKind, Task
from agent.server.kernel import COUNT_SECONDS, COUNT_SHARE, IntruderCount
from sysfs.mask import Mask
from tests.agent.server.test_enforced import allocation, target

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

    def counter(self) -> IntruderCount:
        return IntruderCount(self.reading, lambda: self.now)


def test_threads_are_counted_by_kind_and_kinds_without_any_are_0() -> None:
    host = Host(
        Task(7, "placed", Mask.parse("1-2"), "system.slice", threads=3),
        Task(8, "kworker", ONLINE, threads=2, kernel=True),
    )
    counted = host.counter().count(target(allocation("c0")), NOTHING, ONLINE)
    assert counted == {"confined": 3, "unconfined": 0, "kernel": 2}


def test_all_kinds_are_0_on_a_host_without_exclusive_cpus_and_no_task_is_read() -> None:
    host = Host(Task(7, "placed", Mask.of(1)))
    assert host.counter().count(target(), NOTHING, ONLINE) == dict.fromkeys(IntruderKind, 0)
    assert host.read == 0


@pytest.mark.parametrize("seconds", [0.0, 0.1, 3.0])
def test_counting_takes_no_more_than_its_share_of_the_time(seconds: float) -> None:
    host = Host(Task(7, "placed", Mask.of(1)), seconds=seconds)
    counter, desired = host.counter(), target(allocation("c0"))
    assert counter.count(desired, NOTHING, ONLINE) is not None
    pause = max(COUNT_SECONDS, seconds / COUNT_SHARE)
    host.now += pause - 1
    assert counter.count(desired, NOTHING, ONLINE) is None
    assert host.read == 1
    host.now += 1
    assert counter.count(desired, NOTHING, ONLINE) is not None


def test_a_sibling_that_stays_idle_is_nobodys_to_run_on() -> None:
    host = Host(Task(7, "placed", Mask.of(5), "system.slice"))
    desired = target(replace(allocation("c0"), idle=Mask.of(5)))
    assert host.counter().count(desired, NOTHING, ONLINE) == {
        "confined": 1,
        "unconfined": 0,
        "kernel": 0,
    }

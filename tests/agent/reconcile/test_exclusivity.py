from __future__ import annotations

from typing import Final

import pytest

from agent.reconcile.diff import Cause, Difference
from agent.reconcile.exclusivity import intrusions
from agent.reconcile.tasks import IntrudingTask, Task
from sysfs.mask import EMPTY, Mask
from tests.agent.reconcile.pods import exclusive, on_host, pod

ALLOCATIONS: Final = {
    each.uid: each
    for each in (
        pod(exclusive("main", "2-3"), uid="a"),
        pod(exclusive("main", "4"), exclusive("side", "5"), uid="b"),
        pod(on_host("main"), uid="c"),
    )
}


def wide(cgroup: str, uid: str, beyond: str) -> Difference:
    cpus = Mask.parse(beyond)
    return Difference(cgroup, "is wide", Cause.UNKNOWN, uid, None, "cpuset.cpus", beyond=cpus)


def placed(
    pid: int, cgroup: str | None, cpus: str, *pods: str, confined: bool = True
) -> IntrudingTask:
    mask = Mask.parse(cpus)
    return IntrudingTask(Task(pid, "busy", mask, cgroup), mask, pods, confined)


#: What differs, and by the uid of each pod whose CPUs are concerned: the cgroup and the CPUs.
CASES: Final[dict[str, tuple[tuple[Difference, ...], dict[str, list[tuple[str, str]]]]]] = {
    "nothing differs": ((), {}),
    "what differs has no more than it should": ((wide("pods/a", "a", ""),), {}),
    "CPUs of no pod": ((wide("pods/a", "a", "0-1,6"),), {}),
    "CPUs of one other pod": ((wide("pods/a", "a", "0-1,4"),), {"b": [("pods/a", "4")]}),
    "CPUs of all other pods": (
        (wide("pods/c", "c", "0-7"),),
        {"a": [("pods/c", "2-3")], "b": [("pods/c", "4-5")]},
    ),
    "its own pod's": ((wide("pods/b/main", "b", "5"),), {}),
    "a cgroup of no pod": ((wide("pods/gone", "", "3"),), {"a": [("pods/gone", "3")]}),
    "two cgroups": (
        (wide("pods/a", "a", "4"), wide("pods/c", "c", "5")),
        {"b": [("pods/a", "4"), ("pods/c", "5")]},
    ),
    "a cgroup inside has no more than the one above": (
        (wide("pods/c/main", "c", "2"), wide("pods/c", "c", "2-3"), wide("pods/c/m/n", "c", "3")),
        {"a": [("pods/c", "2-3")]},
    ),
    "a class above all of its pods": (
        (wide("pods/low", "", "4"), wide("pods/low/c", "c", "4")),
        {"b": [("pods/low", "4")]},
    ),
    "a cgroup of another pod inside": (
        (wide("pods/a", "a", "4"), wide("pods/a/bound", "c", "2,4")),
        {"a": [("pods/a/bound", "2")], "b": [("pods/a", "4"), ("pods/a/bound", "4")]},
    ),
}


@pytest.mark.parametrize(("differences", "expected"), CASES.values(), ids=list(CASES))
def test_whose_cpus_a_cgroup_may_use_that_is_not_theirs(
    differences: tuple[Difference, ...], expected: dict[str, list[tuple[str, str]]]
) -> None:
    found = intrusions(ALLOCATIONS, differences)
    assert {
        uid: [(each.cgroup, str(each.cpus)) for each in one] for uid, one in found.items()
    } == expected


@pytest.mark.parametrize(
    ("difference", "says"),
    [
        (wide("pods/a", "a", "4"), "narrows it until its writer is stopped: 'numawarden history'"),
        (
            Difference("pods/a", "widen /pods first", Cause.PARENT_TOO_NARROW, "a", None,
                       "cpuset.cpus.effective", beyond=Mask.of(4)),
            "CPUs 4 may be used by /pods/a of pod default/pod-a: widen /pods first",
        ),
    ],
)  # fmt: skip
def test_an_intrusion_says_who_may_use_what_and_what_to_do(
    difference: Difference, says: str
) -> None:
    (found,) = intrusions(ALLOCATIONS, (difference,))["b"]
    assert str(found).endswith(says)
    assert found.cpus != EMPTY


#: Tasks, and of which cgroup and process each pod is reported for, by its uid.
PLACED: Final[dict[str, tuple[tuple[IntrudingTask, ...], dict[str, list[tuple[str, int]]]]]] = {
    "none": ((), {}),
    "one of no pod": ((placed(7, "user.slice", "3", "a"),), {"a": [("user.slice", 7)]}),
    "one on the CPUs of two pods": (
        (placed(7, "user.slice", "3-4", "a", "b"),),
        {"a": [("user.slice", 7)], "b": [("user.slice", 7)]},
    ),
    "several in one cgroup": (
        (placed(7, "user.slice", "2", "a"), placed(8, "user.slice", "3", "a")),
        {"a": [("user.slice", 7)]},
    ),
    "one in an unknown cgroup beside others": (
        (placed(7, None, "2", "a"), placed(8, "user.slice", "2", "a")),
        {"a": [("", 7), ("user.slice", 8)]},
    ),
    "one that nothing confines": ((placed(7, "user.slice", "0-7", "a", confined=False),), {}),
    "one of a pod that was removed": ((placed(7, "user.slice", "9", "gone"),), {}),
    "one in a cgroup that is wide": ((placed(7, "wide/inside", "2", "a"),), {}),
}


@pytest.mark.parametrize(("tasks", "expected"), PLACED.values(), ids=list(PLACED))
def test_whose_cpus_a_task_was_placed_on(
    tasks: tuple[IntrudingTask, ...], expected: dict[str, list[tuple[str, int]]]
) -> None:
    found = intrusions(ALLOCATIONS, (wide("wide", "", "2"),), tasks)
    named = {
        uid: [(each.cgroup, int(each.why.split()[1])) for each in one if each.cgroup != "wide"]
        for uid, one in found.items()
    }
    assert {uid: one for uid, one in named.items() if one} == expected

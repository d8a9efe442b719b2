from __future__ import annotations

import errno

import pytest

from cgroupfs.apply import WriteResult, apply, apply_write
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.plan import Plan, Setting, Write, WriteStage, make_plan
from sysfs.mask import Mask
from tests.fakes.kernel import Died, FaultyTree, die_at, quota, read_states, reject_writes


@pytest.fixture
def kernel() -> EmulatedKernel:
    kernel = EmulatedKernel(Mask.parse("0-7"), Mask.parse("0-1"))
    for path in ("", "pods", "pods/a", "pods/b"):
        if path:
            kernel.mkdir(path)
        kernel.write(path, "cgroup.subtree_control", "+cpuset +cpu")
    return kernel


def write(path: str, file: str, value: str, stage: WriteStage = WriteStage.GIVE) -> Write:
    return Write(stage, path, file, value)


def test_a_plan_is_carried_out_and_shown(kernel: EmulatedKernel) -> None:
    desired = (
        Setting("pods/a", cpus=Mask.parse("2-3"), mems=Mask.of(1), exclusive=True),
        Setting("pods/b", cpus=Mask.parse("0-1,4-7"), values=quota(150_000)),
    )
    plan = make_plan(read_states(kernel, ("pods/a", "pods/b")), desired)
    done = apply(kernel, plan)
    assert done.ok
    assert done.failures == ()
    assert [outcome.write for outcome in done.outcomes] == list(plan.writes)
    assert kernel.read("pods/a", "cpuset.mems.effective") == "1\n"
    assert kernel.read("pods/b", "cpu.max") == "150000 100000\n"


@pytest.mark.parametrize(
    ("above", "file", "value", "effective"),
    [
        ("4-5", "cpuset.cpus", "1-2", "4-5"),
        ("0", "cpuset.mems", "1", "0"),
        ("0-2,4-7", "online", "2-3", "2"),
        ("0-2,4-7", "online", "3", "0-2,4-7"),
    ],
    ids=["CPUs of no parent", "nodes of no parent", "partly offline", "wholly offline"],
)
def test_a_set_that_is_not_in_effect_is_reported_with_what_is(
    kernel: EmulatedKernel, above: str, file: str, value: str, effective: str
) -> None:
    if file == "online":
        file = "cpuset.cpus"
        kernel.set_online(Mask.parse(above))
    else:
        kernel.write("pods", file, above)
    outcome = apply_write(kernel, write("pods/a", file, value))
    assert outcome.result is WriteResult.NOT_EFFECTIVE
    assert (outcome.shown, outcome.effective) == (value, effective)
    assert outcome.detail == f"the kernel uses {effective} instead of {value}"


@pytest.mark.parametrize(
    ("file", "value", "number", "remedy"),
    [
        ("cpuset.cpus", "64", errno.ERANGE, "check the host's topology"),
        ("cpuset.mems", "5", errno.EINVAL, "check that the CPUs and nodes exist"),
        ("cpu.max", "10 100000", errno.EINVAL, "does not take this value"),
    ],
)
def test_a_rejection_has_its_errno_and_a_remedy(
    kernel: EmulatedKernel, file: str, value: str, number: int, remedy: str
) -> None:
    outcome = apply_write(kernel, write("pods/a", file, value))
    assert (outcome.result, outcome.error) == (WriteResult.FAILED, number)
    assert remedy in outcome.detail
    assert "/pods/a failed: " in outcome.detail


def test_clearing_a_set_in_use_is_explained(kernel: EmulatedKernel) -> None:
    kernel.mkdir("pods/a/app")
    kernel.write("pods/a", "cpuset.cpus", "1")
    kernel.spawn("pods/a/app", 7)
    outcome = apply_write(kernel, write("pods/a", "cpuset.cpus", "\n"))
    assert outcome.error == errno.ENOSPC
    assert "write a full set" in outcome.detail


def test_a_cgroup_without_the_controller_says_so(kernel: EmulatedKernel) -> None:
    kernel.write("pods", "cgroup.subtree_control", "+cpuset")
    for path in ("pods/a", "pods/b"):
        kernel.write(path, "cgroup.subtree_control", "-cpuset -cpu")
    kernel.write("pods", "cgroup.subtree_control", "-cpuset -cpu")
    outcome = apply_write(kernel, write("pods/a", "cpuset.cpus", "1"))
    assert outcome.result is WriteResult.FAILED
    assert "its controller was disabled" in outcome.detail


def test_nothing_is_given_while_a_cgroup_could_not_be_shrunk(kernel: EmulatedKernel) -> None:
    tree = FaultyTree(kernel, reject_writes("pods/b", "cpuset.cpus", errno.EINVAL))
    desired = (
        Setting("pods/a", cpus=Mask.parse("2-3"), exclusive=True),
        Setting("pods/b", cpus=Mask.parse("0-1")),
    )
    done = apply(tree, make_plan(read_states(kernel, ("pods/a", "pods/b")), desired))
    assert not done.ok
    assert [outcome.result for outcome in done.outcomes] == [
        WriteResult.FAILED,
        WriteResult.SKIPPED,
    ]
    assert kernel.read("pods/a", "cpuset.cpus") == "\n"
    assert "could not be set to 0-1" in done.failures[1].detail


@pytest.mark.parametrize(
    ("of_host", "results"),
    [(False, ["ok", "failed", "skipped"]), (True, ["ok", "failed", "ok"])],
)
def test_cpus_that_a_cgroup_could_not_leave_are_not_given_away(
    kernel: EmulatedKernel, results: list[str], *, of_host: bool
) -> None:
    """`a` moves to other CPUs in one write, and `b` gets its former ones."""
    kernel.mkdir("pods/pool")
    before = {"pods/a": "1", "pods/b": "2", "pods/pool": "0,3-7"}
    for path, cpus in before.items():
        kernel.write(path, "cpuset.cpus", cpus)
    tree = FaultyTree(kernel, reject_writes("pods/a", "cpuset.cpus", errno.EBUSY))
    desired = (
        Setting("pods/a", cpus=Mask.of(7), exclusive=True),
        Setting("pods/b", cpus=Mask.parse("1-2"), exclusive=True),
        Setting("pods/pool", cpus=Mask.parse("0,3-6")),
    )
    plan = make_plan(read_states(kernel, before), desired)
    done = apply(tree, plan, ("pods/a",) if of_host else ())
    assert [outcome.write.cgroup for outcome in done.outcomes] == ["pods/pool", "pods/a", "pods/b"]
    assert [str(outcome.result) for outcome in done.outcomes] == results
    if not of_host:
        assert "/pods/a could not be set to 7: " in done.failures[1].detail
        assert kernel.read("pods/b", "cpuset.cpus") == "2\n"
        assert apply(kernel, make_plan(read_states(kernel, before), desired)).ok


def test_cpus_are_not_passed_on_along_a_chain(kernel: EmulatedKernel) -> None:
    """Each gets what the one before leaves; the first keeps its own, and so do all others."""
    before = {"pods/a": "0", "pods/b": "2", "pods/c": "3"}
    kernel.mkdir("pods/c")
    for path, cpus in before.items():
        kernel.write(path, "cpuset.cpus", cpus)
    tree = FaultyTree(kernel, reject_writes("pods/a", "cpuset.cpus", errno.EBUSY))
    desired = [
        Setting(path, cpus=Mask.parse(cpus), exclusive=True)
        for path, cpus in (("pods/a", "1"), ("pods/b", "0"), ("pods/c", "2"))
    ]
    done = apply(tree, make_plan(read_states(kernel, before), desired))
    assert [str(outcome.result) for outcome in done.outcomes] == ["failed", "skipped", "skipped"]
    assert {path: kernel.read(path, "cpuset.cpus").strip() for path in before} == before


def test_a_container_whose_pod_could_not_be_widened_keeps_the_pods_cpus(
    kernel: EmulatedKernel,
) -> None:
    """The write to the container succeeds, and the kernel uses what the pod has."""
    kernel.mkdir("pods/a/app")
    before = {"pods/a": "0", "pods/a/app": "0", "pods/b": "2"}
    for path, cpus in before.items():
        kernel.write(path, "cpuset.cpus", cpus)
    tree = FaultyTree(kernel, reject_writes("pods/a", "cpuset.cpus", errno.EBUSY))
    desired = [
        Setting(path, cpus=Mask.parse(cpus), exclusive=True)
        for path, cpus in (("pods/a", "1"), ("pods/a/app", "1"), ("pods/b", "0"))
    ]
    done = apply(tree, make_plan(read_states(kernel, before), desired))
    results = {(each.write.cgroup, str(each.result)) for each in done.outcomes}
    assert ("pods/a/app", "not effective") in results
    assert ("pods/b", "skipped") in results
    assert kernel.read("pods/b", "cpuset.cpus").strip() == "2"


def test_a_container_that_lost_its_controller_keeps_the_pods_cpus(kernel: EmulatedKernel) -> None:
    """Its processes run where the pod's may, so no write gives these away."""
    kernel.mkdir("pods/a/app")
    before = {"pods/a": "0-1", "pods/a/app": "0", "pods/b": "2"}
    for path, cpus in before.items():
        kernel.write(path, "cpuset.cpus", cpus)
    plan = Plan(
        (
            write("pods/a/app", "cpuset.cpus", "1", WriteStage.GIVE),
            write("pods/b", "cpuset.cpus", "0", WriteStage.GIVE),
        )
    )
    kernel.write("pods/a", "cgroup.subtree_control", "-cpuset")
    results = [outcome.result for outcome in apply(kernel, plan).outcomes]
    assert results == [WriteResult.FAILED, WriteResult.SKIPPED]


def test_what_is_above_and_inside_a_cgroup_that_keeps_its_cpus_is_written(
    kernel: EmulatedKernel,
) -> None:
    kernel.mkdir("pods/a/app")
    for path in ("pods/a", "pods/a/app"):
        kernel.write(path, "cpuset.cpus", "1")
    kernel.write("pods", "cpuset.cpus", "0-6")
    tree = FaultyTree(kernel, reject_writes("pods/a", "cpuset.cpus", errno.EBUSY))
    plan = Plan(
        (
            write("pods/a", "cpuset.cpus", "2", WriteStage.GIVE),
            write("pods/a/app", "cpuset.cpus", "1", WriteStage.GIVE),
            write("pods", "cpuset.cpus", "0-7", WriteStage.GIVE),
        )
    )
    results = [outcome.result for outcome in apply(tree, plan).outcomes]
    assert results == [WriteResult.FAILED, WriteResult.OK, WriteResult.OK]


@pytest.mark.parametrize(
    ("path", "shrunk", "results"),
    [
        ("pods/b", "7", (WriteResult.NOT_EFFECTIVE, WriteResult.SKIPPED)),
        ("pods/b", "6-7", (WriteResult.NOT_EFFECTIVE, WriteResult.OK)),
        ("pods/gone", "1", (WriteResult.GONE, WriteResult.OK)),
    ],
    ids=["into offline CPUs only", "with an offline CPU", "of a cgroup that is gone"],
)
def test_a_shrinking_blocks_others_only_where_it_spills(
    kernel: EmulatedKernel, path: str, shrunk: str, results: tuple[WriteResult, ...]
) -> None:
    kernel.set_online(Mask.parse("0-6"))
    plan = Plan(
        (
            write(path, "cpuset.cpus", shrunk, WriteStage.SHRINK),
            write("pods/a", "cpuset.cpus", "2", WriteStage.CONFINE),
        )
    )
    assert tuple(outcome.result for outcome in apply(kernel, plan).outcomes) == results


def test_a_crash_at_any_write_is_repaired_by_the_next_plan(kernel: EmulatedKernel) -> None:
    paths = ("pods/a", "pods/b")
    desired = (
        Setting("pods/a", cpus=Mask.parse("2-3"), exclusive=True),
        Setting("pods/b", cpus=Mask.parse("0-1,4-7"), values=quota(10_000)),
    )
    for number in range(1, 10):
        tree = FaultyTree(kernel, die_at(number))
        for path in paths:
            kernel.write(path, "cpuset.cpus", "0-7")
        try:
            apply(tree, make_plan(read_states(kernel, paths), desired))
        except Died:
            assert apply(kernel, make_plan(read_states(kernel, paths), desired)).ok
        assert kernel.read("pods/a", "cpuset.cpus.effective") == "2-3\n"
        assert kernel.read("pods/b", "cpuset.cpus.effective") == "0-1,4-7\n"


@pytest.mark.parametrize(
    ("own", "runs", "written"),
    [("", True, ["0", "0-1", "0"]), ("", False, ["0"]), ("1", True, ["0"])],
    ids=["a process without nodes of its own", "no process", "nodes of its own"],
)
def test_nodes_are_left_and_taken_again_where_memory_would_not_move_along(
    kernel: EmulatedKernel, own: str, *, runs: bool, written: list[str]
) -> None:
    """The kernel moves no pages at the first write when the processes were cloned into it."""
    if own:
        kernel.write("pods/a", "cpuset.mems", own)
    if runs:
        kernel.spawn("pods/a", 1)
    tree = FaultyTree(kernel)
    assert apply_write(tree, write("pods/a", "cpuset.mems", "0")).result is WriteResult.OK
    assert [value for _, file, value in tree.writes if file == "cpuset.mems"] == written

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocation import ContainerAllocation, Isolation
from agent.managers.bindings import Binding, Bindings
from agent.pods.model import ContainerKind, QosClass
from agent.reconcile.desired import DesiredCgroup, Role, desired_cgroups, no_partitions
from agent.reconcile.diff import Cause
from agent.reconcile.drivers import DirectoryCgroups
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.target import Desired
from sysfs.mask import EMPTY, Mask
from tests.agent.reconcile.pods import (
    ONLINE,
    OTHER,
    UID,
    by_pod,
    directories,
    exclusive,
    kernel,
    layout,
    ledger,
    memory_on,
    mixed,
    on_host,
    path_of,
    pod,
    release_orphaned,
    run,
    target,
)
from tests.fakes.kernel import Died, FaultyTree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.desired import PartitionWords
    from cgroupfs.emulated.kernel import EmulatedKernel
    from cgroupfs.tree import CgroupTree
    from tests.fakes.kernel import Operation

POD = path_of(mixed())
WEB = pod(on_host("web"), uid=OTHER)
WEB_POD = path_of(WEB)
FREE = ONLINE - Mask.parse("2-7")


def started() -> tuple[EmulatedKernel, Enforcer]:
    """Admit the mixed pod and a shared one, start their containers, enforce."""
    tree = kernel()
    enforcer = directories(tree)
    assert enforcer.enforce(target(mixed(), WEB)).ok
    for pid, name in enumerate(("db", "backup", "metrics"), start=1):
        run(tree, f"{POD}/{name}", pid)
    run(tree, f"{WEB_POD}/web", 4)
    assert enforcer.enforce(target(mixed(), WEB)).ok
    return tree, enforcer


def shown(tree: CgroupTree, cgroup: str) -> tuple[str, str, str]:
    files = ("cpuset.cpus.effective", "cpuset.mems.effective", "cpu.max")
    cpus, mems, cpu_max = tree.read_many(cgroup, files)
    return (cpus or "").strip(), (mems or "").strip(), (cpu_max or "").strip()


def test_running_processes_get_what_the_ledger_says() -> None:
    tree, _ = started()
    assert tree.allowed(1) == (Mask.parse("2-5"), Mask.of(0))
    assert tree.allowed(2) == tree.allowed(3) == (Mask.parse("6-7"), Mask.of(0))
    assert tree.allowed(4) == (FREE, Mask.parse("0-1"))
    assert shown(tree, POD) == ("2-7", "0", "max 100000")
    assert shown(tree, f"{POD}/db") == ("2-5", "0", "max 100000")
    assert shown(tree, f"{POD}/backup") == ("6-7", "0", "600000 100000")
    assert shown(tree, f"{POD}/metrics") == ("6-7", "0", "50000 100000")


def test_a_pod_that_still_runs_is_confined_to_the_shared_pool_until_it_is_empty() -> None:
    tree, enforcer = started()
    released = enforcer.releaser.pod(mixed())
    assert (released.removed, released.processes) == (False, (1, 2, 3))
    assert "processes live in it (1, 2, 3)" in released.reason
    newcomer = pod(exclusive("db", "2-7"), uid="newcomer")
    report = enforcer.enforce(target(WEB, newcomer))
    assert report.ok
    of_none = [each.desired.role for each in report.cgroups if each.desired.pod == ""]
    assert of_none == [Role.ALL_PODS, *[Role.ORPHANED] * 4]
    assert any("no admitted pod" in note for note in report.notes)
    assert all(tree.allowed(pid)[0] == FREE for pid in (1, 2, 3, 4))
    assert [r.removed for r in release_orphaned(enforcer, target(WEB))] == [False, True]
    for pid in (1, 2, 3):
        tree.exit(pid)
    assert [r.removed for r in release_orphaned(enforcer, target(WEB))] == [True]
    assert release_orphaned(enforcer, target(WEB)) == ()
    assert (tree.exists(POD), tree.exists(WEB_POD)) == (False, True)


def test_a_plan_says_what_will_be_written_and_writes_nothing() -> None:
    tree, enforcer = started()
    tree.exit(4)
    own = pod(exclusive("db", "8-9", node=1), uid="newcomer", limit=2000)
    first = pod(on_host("a"), uid="first", qos=QosClass.BURSTABLE)
    above = {own.uid: (), first.uid: ("kubepods/burstable",)}
    for newcomer, pods in ((own, (own,)), (first, (own, first))):
        aim = target(mixed(), WEB, *pods)
        plan = enforcer.plan(aim, newcomer.uid)
        assert not tree.exists(path_of(newcomer))
        done = enforcer.enforce_change(aim, newcomer.uid)
        assert [(w.cgroup, w.file, w.value) for w in plan.writes] == [
            (w.cgroup, w.file, w.value) for w in done.writes
        ]
        assert plan.writes
        assert plan.created == done.created == (*above[newcomer.uid], path_of(newcomer))


def test_what_a_changed_ledger_changes_is_not_drift() -> None:
    tree = kernel()
    enforcer = directories(tree)
    enforcer.enforce(target(WEB))
    run(tree, f"{WEB_POD}/web", 4)
    assert enforcer.enforce(target(WEB)).drift == ()
    admitted = enforcer.enforce(target(mixed(), WEB))
    assert {difference.cgroup for difference in admitted.found} == {POD}
    assert WEB_POD in {write.cgroup for write in admitted.writes}
    assert admitted.drift == ()
    tree.write(f"{WEB_POD}/web", "cpuset.cpus", "3")
    assert [p.cgroup for p in enforcer.repair(target(mixed(), WEB)).drift] == [f"{WEB_POD}/web"]


def test_memory_is_migrated_by_a_repair_only() -> None:
    tree, enforcer = started()
    tree.write(POD, "cpuset.mems", "0-1")
    tree.write(f"{POD}/db", "cpuset.mems", "1")
    report = enforcer.enforce(target(mixed(), WEB))
    assert not report.ok
    assert any("migrate" in note for note in report.notes)
    assert tree.allowed(1)[1] == Mask.of(1)
    assert enforcer.repair(target(mixed(), WEB)).ok
    assert tree.allowed(1)[1] == Mask.of(0)


def test_a_lost_controller_is_enabled_again_and_the_settings_with_it() -> None:
    tree, enforcer = started()
    for cgroup in (POD, WEB_POD, "kubepods", ""):
        tree.write(cgroup, "cgroup.subtree_control", "-cpuset -cpu")
    aim = target(mixed(), WEB)
    assert Cause.CONTROLLER_LOST in {p.cause for p in enforcer.verify(aim).remaining}
    report = enforcer.repair(aim)
    assert report.ok
    assert report.repaired["controller lost"] > 0
    assert set(report.enabled) == {"", "kubepods", POD, WEB_POD}
    assert tree.allowed(1) == (Mask.parse("2-5"), Mask.of(0))


def test_a_set_that_does_not_fit_is_the_difference_of_one_cgroup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, enforcer = started()

    def too_narrow(*args: object) -> tuple[DesiredCgroup, ...]:
        """Desire less of the pod than of what is in it, which no ledger does."""
        return tuple(
            replace(item, setting=replace(item.setting, cpus=Mask.parse("2-6")))
            if item.setting.cgroup == POD
            else item
            for item in desired_cgroups(*args)  # type: ignore[arg-type]  # as they came
        )

    monkeypatch.setattr("agent.reconcile.enforcer.desired_cgroups", too_narrow)
    tree.write(WEB_POD, "cpuset.cpus", "3")
    report = enforcer.repair(target(mixed(), WEB))
    assert tree.allowed(4)[0] == FREE
    assert tree.allowed(2)[0] == Mask.of(6)
    named = f"cpuset.cpus of /{POD}/backup cannot be 6-7: /{POD} above it is to have 2-6"
    assert any(named in line for line in by_pod(report)[UID])
    assert set(by_pod(report)) == {UID}


def test_processes_in_a_pods_own_cgroup_lock_no_container_out_and_are_named_once_it_starts() -> (
    None
):
    tree = kernel()
    enforcer = directories(tree)
    run(tree, POD, 1)
    assert enforcer.enforce(target(mixed())).ok
    # With controllers passed on, the kernel would take the pod's children for threads only.
    assert tree.read(POD, "cgroup.subtree_control") == "\n"
    run(tree, f"{POD}/db", 2)
    report = enforcer.enforce(target(mixed()))
    assert any("move them into a child" in line for line in by_pod(report)[UID])
    assert shown(tree, POD)[0] == "2-7"


def test_an_unidentified_cgroup_is_kept_off_exclusive_cpus_and_reported() -> None:
    tree, enforcer = started()
    run(tree, f"{POD}/0f3a", 9)
    report = enforcer.enforce(target(mixed(), WEB))
    assert report.ok
    assert tree.allowed(9)[0] == Mask.parse("6-7")
    assert any("numawarden bind" in note for note in report.notes)


CHANGES: Final = ("write", "mkdir", "rmdir")


def faulty_at(tree: EmulatedKernel, at: int, error: BaseException) -> FaultyTree:
    """Pass on to a tree, and raise before its `at`-th change (from 0)."""
    changes = count()

    def fault(operation: Operation) -> None:
        if operation.name in CHANGES and next(changes) == at:
            raise error

    return FaultyTree(tree, fault)


def kernel_with_pods() -> EmulatedKernel:
    """Return a host on which a shared pod runs and the next admission changes everything."""
    tree = kernel()
    enforcer = directories(tree)
    enforcer.enforce(target(WEB))
    run(tree, f"{WEB_POD}/web", 4)
    enforcer.enforce(target(WEB))
    tree.mkdir(POD)
    tree.mkdir(f"{POD}/db")
    return tree


def words(target: Desired, _all_pods: str) -> Mapping[str, str]:
    """Return a partition for each pod that runs on exclusive CPUs alone."""
    pods = target.ledger.allocations.values()
    alone = [
        each for each in pods if all(one.isolation is not Isolation.HOST for one in each.containers)
    ]
    return {each.uid: ("root", "isolated")[number % 2] for number, each in enumerate(alone)}


@pytest.fixture(params=[no_partitions, words], ids=["sets", "partitions"])
def kinds(request: pytest.FixtureRequest) -> PartitionWords:
    found: PartitionWords = request.param
    return found


def enforcer_of(tree: CgroupTree, kinds: PartitionWords) -> Enforcer:
    return Enforcer(tree, layout(), DirectoryCgroups(tree), partitions=kinds)


def changes_of_an_admission(kinds: PartitionWords) -> int:
    tree = FaultyTree(kernel_with_pods())
    enforcer_of(tree, kinds).enforce(target(mixed(), WEB))
    return sum(operation.name in CHANGES for operation in tree.log)


def test_dying_before_any_change_is_repaired_by_the_next_start(kinds: PartitionWords) -> None:
    changes = changes_of_an_admission(kinds)
    assert changes >= 6
    for at in range(changes):
        tree = kernel_with_pods()
        with pytest.raises(Died):
            enforcer_of(faulty_at(tree, at, Died()), kinds).enforce(target(mixed(), WEB))
        assert enforcer_of(tree, kinds).repair(target(mixed(), WEB)).ok
        assert tree.allowed(4)[0] == FREE
        db = tree.read(f"{POD}/db", "cpuset.cpus.partition").strip()
        assert (db == "member") == (no_partitions is kinds)


@pytest.mark.parametrize("error", [errno.EBUSY, errno.EINVAL, errno.EROFS, errno.ENOMEM])
def test_a_rejection_at_any_change_is_reported_with_its_pod_and_can_be_retried(
    kinds: PartitionWords, error: int
) -> None:
    for at in range(changes_of_an_admission(kinds)):
        tree = faulty_at(kernel_with_pods(), at, OSError(error, os.strerror(error)))
        enforcer = enforcer_of(tree, kinds)
        report = enforcer.enforce(target(mixed(), WEB))
        left = (*report.remaining, *report.unpartitioned)
        assert left
        assert all("\n" not in difference.detail for difference in left)
        assert set(by_pod(report)) <= {UID, OTHER, ""}
        assert enforcer.repair(target(mixed(), WEB)).ok


def test_what_could_not_shrink_keeps_others_from_getting_its_cpus() -> None:
    def stubborn(operation: Operation) -> None:
        written = operation.file if operation.name == "write" else ""
        if operation.path.startswith(WEB_POD) and written == "cpuset.cpus":
            raise OSError(errno.EINVAL, "Invalid argument")

    tree = kernel_with_pods()
    tree.write(POD, "cpuset.cpus", "8-9")
    report = enforcer_of(FaultyTree(tree, stubborn), no_partitions).enforce(target(mixed(), WEB))
    assert set(by_pod(report)) >= {UID, OTHER}
    assert shown(tree, POD)[0] == "8-9"
    assert any("could not be set to" in line for line in by_pod(report)[UID])


@pytest.mark.parametrize("for_good", [False, True])
def test_a_container_that_ends_while_it_is_read_is_looked_at_again_but_not_for_ever(
    *, for_good: bool
) -> None:
    tree, ending = kernel_with_pods(), f"{WEB_POD}/ending"
    tree.mkdir(ending)

    def end(operation: Operation) -> None:
        if operation.name == "read" and operation.path == ending and tree.exists(ending):
            if not for_good:
                tree.rmdir(ending)
            raise OSError(errno.ENODEV, "No such device")

    enforcer = enforcer_of(FaultyTree(tree, end), no_partitions)
    if for_good:
        with pytest.raises(OSError, match="No such device"):
            enforcer.enforce(target(mixed(), WEB))
    else:
        assert enforcer.enforce(target(mixed(), WEB)).ok
        assert not tree.exists(ending)


def test_a_pod_that_cannot_have_a_cgroup_does_not_keep_others_from_theirs() -> None:
    tree = kernel()
    enforcer = directories(tree)
    nameless = pod(exclusive("x", "8-9"), uid="../../etc")
    report = enforcer.enforce(target(nameless, mixed()))
    assert [*by_pod(report)] == ["../../etc"]
    assert "cannot have a cgroup" in by_pod(report)["../../etc"][0]
    assert shown(tree, POD)[0] == "2-7"
    assert enforcer.releaser.pod(nameless).removed


CPUS = st.frozensets(st.integers(2, 15), min_size=1, max_size=4).map(Mask.from_ids)


UIDS = st.sampled_from([UID, OTHER, "12345678-2222-3333-4444-555555555555"])


@st.composite
def any_pods(draw: st.DrawFn) -> PodAllocation:
    """Draw a pod whose sets need not fit each other, the host or the sets of other pods."""
    sets = st.none() | CPUS
    containers = [
        ContainerAllocation(
            name,
            draw(st.sampled_from(ContainerKind)),
            draw(st.sampled_from(Isolation)),
            draw(sets),
            memory_on(draw(st.sampled_from((None, 0, 1)))),
        )
        for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    ]
    cpus, node = draw(sets), draw(st.sampled_from((None, 0, 1)))
    qos = draw(st.sampled_from(QosClass))
    own = None if cpus is None else str(cpus)
    return pod(*containers, uid=draw(UIDS), cpus=own, node=node, qos=qos)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_the_ledger_says_and_the_kernel_shows_a_comparison_ends_with_a_report(
    data: st.DataObject,
) -> None:
    tree = kernel()
    enforcer = directories(tree)
    places = ["kubepods", "elsewhere"]
    tree.mkdir("elsewhere")
    for number in range(data.draw(st.integers(1, 4))):
        pods = data.draw(st.lists(any_pods(), max_size=3, unique_by=lambda each: each.uid))
        entries = st.builds(Binding, UIDS, st.sampled_from("abcd"), st.sampled_from(places))
        bindings = Bindings(tuple(sorted(set(data.draw(st.lists(entries, max_size=3))))))
        tree.set_online(data.draw(CPUS))
        pool = data.draw(st.just(EMPTY) | CPUS)
        enforcer.repair(Desired(ledger(*pods), pool, bindings))
        for each in pods:
            home = path_of(each)
            for name in data.draw(st.lists(st.sampled_from("abx"), max_size=2, unique=True)):
                if tree.exists(home) and not tree.exists(f"{home}/{name}"):
                    places.append(run(tree, f"{home}/{name}", 10 * number + len(places)))
            places.append(home)
        for path in data.draw(st.lists(st.sampled_from(places), max_size=3)):
            with suppress(OSError):
                tree.write(path, "cpuset.cpus", str(data.draw(CPUS)))
        enforcer.repair(Desired(ledger(*pods), pool, bindings))
        enforcer.verify(Desired(ledger(*pods), pool, bindings))

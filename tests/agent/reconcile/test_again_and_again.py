"""Comparisons made again and again: what is kept between them changes no result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.reconcile import observe
from agent.reconcile.desired import (
    HostSets,
    KnownChanges,
    KnownPods,
    desired_cgroups,
    with_partitions,
)
from agent.reconcile.diff import diff, without_the_kubelets
from agent.reconcile.drivers import DirectoryCgroups
from agent.reconcile.enforced import EVERYTHING, EnforcedControllers
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.identify import IdentifiedBy, Located, Subgroup
from agent.reconcile.pod_cgroups import IdentifiedCgroups, LocatedPod
from agent.reconcile.report import count_causes
from agent.reconcile.target import Desired
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Tier
from sysfs.mask import EMPTY, Mask
from tests.agent.reconcile.pods import (
    ONLINE,
    OTHER,
    UID,
    directories,
    exclusive,
    layout,
    ledger,
    mixed,
    on_host,
    path_of,
    pod,
    run,
    target,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.desired import DesiredCgroup
    from agent.reconcile.diff import Difference
    from cgroupfs.state import CgroupState

#: Pods by two uids, each as it may be at one time or another.
_VARIANTS = (
    mixed(),
    pod(exclusive("db", "2-5", node=1), on_host("log")),
    pod(on_host("web"), uid=OTHER),
    pod(on_host("web", limit=500, request=100), on_host("log"), uid=OTHER),
)
_POOL = Mask.parse("0-1")
_HOST = HostSets(ONLINE, Mask.parse("0-1"))
_CLASSES = {Tier.BURSTABLE: "kubepods/burstable", Tier.BEST_EFFORT: "kubepods/besteffort"}


def located(pods: Sequence[PodAllocation]) -> st.SearchStrategy[IdentifiedCgroups]:
    """Draw cgroups of pods: any of their containers, subgroups, or only the pod's own."""
    return st.fixed_dictionaries({each.uid: _located(each) for each in pods}).map(
        lambda found: IdentifiedCgroups(found, classes=_CLASSES, all_pods="kubepods")
    )


def _located(allocation: PodAllocation) -> st.SearchStrategy[LocatedPod]:
    path = path_of(allocation)
    names = [container.name for container in allocation.containers]
    members = st.builds(
        lambda name, by, inner: Located(f"{path}/{name}", name, by, inner),
        st.sampled_from(names),
        st.sampled_from([IdentifiedBy.NAME, IdentifiedBy.UNKNOWN]),
        st.sampled_from([(), (Subgroup(f"{path}/x/container", quota=True),)]),
    )
    containers = st.lists(members, max_size=2, unique_by=lambda m: m.cgroup).map(tuple)
    whole = st.builds(LocatedPod, st.just(path), st.booleans(), containers)
    return st.one_of(whole, st.just(LocatedPod(path, exists=True, boundary=True)))


@st.composite
def observations(draw: st.DrawFn) -> tuple[Desired, IdentifiedCgroups, EnforcedControllers]:
    pods = draw(st.lists(st.sampled_from(_VARIANTS), unique_by=lambda p: p.uid, max_size=2))
    pool = draw(st.sampled_from([EMPTY, Mask.parse("0-1"), Mask.parse("0-1,8-15")]))
    enforced = draw(st.sampled_from([EVERYTHING, EnforcedControllers(frozenset({"cpuset"}))]))
    return Desired(ledger(*pods), pool), draw(located(pods)), enforced


@given(st.lists(observations(), min_size=2, max_size=6))
def test_what_was_desired_before_changes_nothing_of_what_is_desired_now(
    series: list[tuple[Desired, IdentifiedCgroups, EnforcedControllers]],
) -> None:
    known = KnownPods()
    for aim, identified, enforced in series:
        alone = desired_cgroups(aim, identified, enforced, _HOST)
        assert desired_cgroups(aim, identified, enforced, _HOST, known=known) == alone


def partitioned(
    desired: Sequence[DesiredCgroup], of: PodAllocation, known: KnownChanges, word: str = "root"
) -> tuple[DesiredCgroup, ...]:
    return with_partitions(desired, {of.uid: word}, "kubepods", {of.uid: of}, known)


def beside_the_kubelet(
    desired: Sequence[DesiredCgroup], of: PodAllocation, known: KnownChanges
) -> tuple[DesiredCgroup, ...]:
    there = {of.uid: LocatedPod(path_of(of), exists=True)}
    return without_the_kubelets(desired, {of.uid: of}, there, known)


@pytest.mark.parametrize("change", [partitioned, beside_the_kubelet])
@pytest.mark.parametrize(("before", "after"), [_VARIANTS[:2], _VARIANTS[1::-1]])
def test_what_is_changed_of_a_pod_is_the_same_object_until_the_pod_is_another(
    change: Callable[..., tuple[DesiredCgroup, ...]], before: PodAllocation, after: PodAllocation
) -> None:
    known, pool = KnownChanges(), KnownPods()
    cgroups = IdentifiedCgroups({after.uid: LocatedPod(path_of(after), exists=True)})
    was, same, now = (
        (change(desired_cgroups(Desired(ledger(of), _POOL), cgroups, known=pool), of, known), of)
        for of in (before, before, after)
    )
    assert was[0]
    assert all(one is other for one, other in zip(was[0], same[0], strict=True) if one.pod)
    fresh = desired_cgroups(Desired(ledger(after), _POOL), cgroups)
    assert now[0] == change(fresh, after, KnownChanges())
    assert now[0] != was[0]


POD = path_of(mixed())
WEB = pod(on_host("web", limit=500), uid=OTHER)
WEB_POD = path_of(WEB)


class RecordingKernel(EmulatedKernel):
    """An emulated kernel that records which files of a cgroup are read together."""

    def __init__(self, possible: Mask, memory: Mask) -> None:
        super().__init__(possible, memory)
        self.reads: list[tuple[str, str]] = []

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        self.reads.extend((path, file) for file in files)
        return super().read_many(path, files)


def settled() -> tuple[RecordingKernel, Enforcer, Desired]:
    """Return a kernel after two comparisons that found nothing."""
    tree = RecordingKernel(ONLINE, Mask.parse("0-1"))
    enforcer, aim = directories(tree), target(mixed(), WEB)
    assert enforcer.enforce(aim).ok
    run(tree, f"{POD}/db", 1)
    run(tree, f"{WEB_POD}/web", 2)
    assert enforcer.repair(aim).ok
    for _ in range(2):
        report = enforcer.repair(aim)
        assert report.ok
        assert not report.changed
    tree.reads = []
    return tree, enforcer, aim


@pytest.mark.parametrize(
    ("cgroup", "file", "value"),
    [
        ("kubepods", "cpuset.cpus", "0-3"),
        (POD, "cpuset.cpus", "2-3"),
        (POD, "cpuset.mems", "0-1"),
        (POD, "cpu.max", "50000 100000"),
        (POD, "cpu.weight", "7"),
        (f"{POD}/db", "cpuset.cpus", "0-15"),
        (WEB_POD, "cpuset.cpus", "0"),
        (f"{WEB_POD}/web", "cpuset.cpus", "4-5"),
        (f"{WEB_POD}/web", "cpu.max", "140000 100000"),
    ],
)
def test_every_change_is_found_as_often_as_it_is_made(cgroup: str, file: str, value: str) -> None:
    tree, enforcer, aim = settled()
    for _ in range(3):
        tree.write(cgroup, file, value)
        verified = enforcer.verify(aim)
        report = enforcer.repair(aim)
        for found in (verified.remaining, report.drift):
            assert (cgroup, file, value) in {(f.cgroup, f.file, f.observed) for f in found}
        assert not verified.changed
        assert report.ok
        assert report.repaired == count_causes(report.drift)
        assert (tree.allowed(1)[0], tree.allowed(2)[0]) == (Mask.parse("2-5"), aim.shared_pool)
        quiet = enforcer.repair(aim)
        assert not quiet.found
        assert not quiet.changed


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the cgroups that are compared, as they are."""
    found: list[str] = []

    def counting(item: DesiredCgroup, state: CgroupState | None) -> tuple[Difference, ...]:
        found.append(item.setting.cgroup)
        return diff(item, state)

    monkeypatch.setattr(observe, "diff", counting)
    return found


def test_what_shows_the_same_is_not_compared_again(compared: list[str]) -> None:
    tree, enforcer, aim = settled()
    run(tree, f"{POD}/0f3a", 3)
    notes = enforcer.repair(aim).notes
    compared.clear()
    # What is noted each time is compared each time, and the cgroups above the pods are few.
    assert enforcer.repair(aim).notes == notes
    assert f"{POD}/0f3a" in notes[0]
    assert {*compared} & {POD, f"{POD}/db", f"{POD}/0f3a", WEB_POD, f"{WEB_POD}/web"} == {
        f"{POD}/0f3a"
    }


def test_comparisons_that_find_the_same_report_the_same_object() -> None:
    tree, enforcer, aim = settled()
    first = enforcer.repair(aim)
    assert enforcer.repair(aim).cgroups is first.cgroups
    tree.exit(2)
    second = enforcer.repair(aim)
    assert first.cgroups.running == {UID: ["db"], OTHER: ["web"]}
    assert second.cgroups.running == {UID: ["db"]}
    enforcer.enforce_change(aim, UID)
    assert enforcer.repair(aim) == second


@pytest.mark.parametrize(
    "other",
    [(pod(on_host("site", limit=500), uid=OTHER),), (WEB, pod(on_host("a"), uid="no name"))],
    ids=["of the same settings", "without a cgroup"],
)
def test_another_pod_is_reported_although_the_cgroups_show_the_same(
    other: tuple[PodAllocation, ...],
) -> None:
    tree, enforcer, former = settled()
    aim = target(mixed(), *other)
    for now in (aim, aim, former, aim):
        kept, fresh = enforcer.repair(now), directories(tree).repair(now)
        assert kept.cgroups == fresh.cgroups
        assert (kept.remaining, kept.ok) == (fresh.remaining, fresh.ok)


def there(tree: EmulatedKernel, path: str) -> None:
    if not tree.exists(path):
        tree.mkdir(path)


def starts(tree: EmulatedKernel, path: str, pid: int) -> None:
    there(tree, path)
    if tree.home(pid) is None:
        tree.spawn(path, pid)


def ends(tree: EmulatedKernel, pid: int) -> None:
    if tree.home(pid) is not None:
        tree.exit(pid)


def gone(tree: EmulatedKernel, path: str, pid: int = 0) -> None:
    ends(tree, pid)
    if tree.exists(path):
        tree.rmdir(path)


_STEPS: dict[str, Callable[[RecordingKernel, Enforcer], object]] = {
    "a process starts": lambda tree, _: starts(tree, f"{WEB_POD}/web", 2),
    "a process ends": lambda tree, _: ends(tree, 2),
    "another writes": lambda tree, _: tree.write(WEB_POD, "cpuset.cpus", "0"),
    "a sandbox comes": lambda tree, _: there(tree, f"{POD}/0f3a"),
    "a sandbox goes": lambda tree, _: gone(tree, f"{POD}/0f3a"),
    "a CPU goes": lambda tree, _: tree.set_online(ONLINE - Mask.of(1)),
    "a CPU comes": lambda tree, _: tree.set_online(ONLINE),
    "a pod goes": lambda _, enforcer: enforcer.enforce_change(target(mixed()), OTHER),
    "a pod comes": lambda _, enforcer: enforcer.enforce_change(target(mixed(), WEB), OTHER),
    "another's pod comes": lambda tree, _: there(tree, "kubepods/podx"),
    "a class comes": lambda tree, _: there(tree, "kubepods/besteffort"),
    "a class goes": lambda tree, _: gone(tree, "kubepods/besteffort"),
    "a container goes": lambda tree, _: gone(tree, f"{WEB_POD}/web", 2),
    "a controller goes": lambda tree, _: tree.write(WEB_POD, "cgroup.subtree_control", "-cpu"),
}


@given(st.lists(st.sampled_from(sorted(_STEPS)), max_size=12))
def test_what_is_reported_of_the_same_is_what_an_enforcer_without_memory_reports(
    steps: list[str],
) -> None:
    tree, enforcer, aim = settled()
    for step in steps:
        _STEPS[step](tree, enforcer)
        enforcer.repair(aim)
        for _ in range(2):
            kept, fresh = enforcer.repair(aim), directories(tree).repair(aim)
            assert kept.cgroups == fresh.cgroups
            assert (kept.remaining, kept.notes) == (fresh.remaining, fresh.notes)
            assert kept.changed == fresh.changed
            assert kept.cgroups.running == fresh.cgroups.running
            assert kept.cgroups.alike == fresh.cgroups.alike
            assert kept.cgroups.by_pod == fresh.cgroups.by_pod


@pytest.mark.parametrize("makes", [True, False], ids=["with partitions", "beside a kubelet"])
def test_what_is_changed_of_a_pod_settles_until_its_cgroup_shows_another_set(
    compared: list[str], *, makes: bool
) -> None:
    tree, _, aim = settled()
    enforcer = Enforcer(
        tree,
        layout(),
        DirectoryCgroups(tree, makes=makes),
        partitions=lambda *_: {mixed().uid: "root"} if makes else None,
    )
    for _ in range(3):
        assert enforcer.repair(aim).ok
    compared.clear()
    enforcer.repair(aim)
    assert not {*compared} & {POD, f"{POD}/db", WEB_POD, f"{WEB_POD}/web"}
    tree.exit(1)
    tree.rmdir(f"{POD}/db")
    run(tree, f"{POD}/db", 1)
    assert {each.cgroup for each in enforcer.repair(aim).found} == {f"{POD}/db"}
    tree.write(WEB_POD, "cpuset.cpus", "0")
    assert WEB_POD in {each.cgroup for each in enforcer.repair(aim).drift}


def test_a_full_comparison_reads_all_and_what_a_brief_one_shows_is_the_same() -> None:
    tree, enforcer, aim = settled()
    tree.reads = []
    enforcer.verify(aim)
    for cgroup in (POD, f"{POD}/db", WEB_POD, f"{WEB_POD}/web"):
        assert {(cgroup, "cpuset.mems"), (cgroup, "cpuset.cpus.effective")} <= {*tree.reads}
    tree.set_online(ONLINE - Mask.of(1))
    for path, cpus in ((f"{WEB_POD}/web", "0-7"), (f"{WEB_POD}/other", "")):
        if not tree.exists(path):
            tree.mkdir(path)
        tree.write(path, "cpuset.cpus", cpus or "\n")
    brief, full = enforcer.repair(aim), enforcer.verify(aim)
    for one, other in zip(brief.cgroups, full.cgroups, strict=True):
        assert (one.state is None) == (other.state is None)
        if one.state is not None and other.state is not None:
            assert one.state.cpus_effective == other.state.cpus_effective

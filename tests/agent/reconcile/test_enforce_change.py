"""Enforcing a change by looking at a part against enforcing it by looking at everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.managers.bindings import Binding
from agent.managers.cpu.manager import exclusive_cpus
from agent.reconcile.target import Desired
from cgroupfs.names import Driver
from sysfs.mask import Mask
from tests.agent.reconcile.pods import (
    ONLINE,
    directories,
    exclusive,
    kernel,
    ledger,
    mixed,
    on_host,
    path_of,
    pod,
    pod_shared,
    release_orphaned,
    slices,
)
from tests.fakes.kernel import FaultyTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.enforcer import Enforcer
    from agent.reconcile.report import EnforcementReport
    from cgroupfs.emulated.kernel import EmulatedKernel
    from tests.agent.reconcile.pods import FakeSystemd

PODS: Final = (
    pod(on_host("a"), on_host("b", limit=500), uid="shared-1"),
    pod(on_host("a", limit=200), uid="shared-2"),
    mixed(uid="mixed"),
    pod(exclusive("a", "8-9"), on_host("b"), uid="half"),
    pod(exclusive("a", "10-11"), exclusive("b", "12"), uid="own"),
    pod(pod_shared("a", "13-14"), pod_shared("b", "13-14"), uid="budget", cpus="13-14"),
)
#: What others write: too wide, too narrow, another's quota.
OTHER_WRITES: Final = (
    ("cpuset.cpus", "0-15"),
    ("cpuset.cpus", "0-15"),
    ("cpuset.cpus", "1"),
    ("cpu.max", "7000 100000"),
)


@dataclass
class Side:
    """One kernel with an enforcer, and how that enforces changes."""

    driver: Driver
    tree: EmulatedKernel = field(default_factory=kernel)
    systemd: FakeSystemd | None = None
    enforcer: Enforcer = field(init=False)

    def __post_init__(self) -> None:
        if self.driver is Driver.SYSTEMD:
            self.enforcer, self.systemd = slices(self.tree)
        else:
            self.enforcer = directories(self.tree)

    def start(self, allocation: PodAllocation, name: str, pid: int) -> str:
        parent = path_of(allocation, self.driver)
        if self.systemd is not None:
            # A host has one unit of a name, so that pods may not share theirs.
            unit = f"{allocation.uid}_{name}.scope"
            return self.systemd.start_scope(parent, unit, pid)
        self.tree.mkdir(f"{parent}/{name}")
        self.tree.spawn(f"{parent}/{name}", pid)
        return f"{parent}/{name}"


@dataclass
class Pair:
    """The same sequence done twice: `part` looks at what changed, `whole` at everything."""

    driver: Driver
    part: Side = field(init=False)
    whole: Side = field(init=False)
    admitted: dict[str, PodAllocation] = field(default_factory=dict)
    running: dict[int, tuple[str, str]] = field(default_factory=dict)
    target: Desired = field(default_factory=lambda: Desired(ledger(), ONLINE))
    online: bool = True
    untouched: bool = True
    pids: int = 0

    def __post_init__(self) -> None:
        self.part, self.whole = Side(self.driver), Side(self.driver)
        self._repair()

    def admit_or_remove(self, number: int, option: int) -> None:
        """Admit a pod, or remove it with its processes or, for odd options, without."""
        allocation = PODS[number % len(PODS)]
        if allocation.uid not in self.admitted:
            self.admitted[allocation.uid] = allocation
            self._change(allocation.uid)
            return
        if not option % 2:
            for pid in [pid for pid, (uid, _) in self.running.items() if uid == allocation.uid]:
                self._exit(pid)
        else:
            # What is left of the pod then shows the same on both sides.
            self._repair()
        del self.admitted[allocation.uid]
        for side in (self.part, self.whole):
            side.enforcer.releaser.pod(allocation)
        self.target = Desired(self.target.ledger, self.target.shared_pool,
                             self.target.bindings.without_pod(allocation.uid))  # fmt: skip
        report = self._change(None)
        cgroup = path_of(allocation, self.driver)
        left = cgroup in {each.desired.setting.cgroup for each in report.cgroups}
        assert left == self.part.tree.exists(cgroup)

    def start_or_end(self, number: int, option: int) -> None:
        allocation = PODS[number % len(PODS)]
        if allocation.uid not in self.admitted:
            return
        name = allocation.containers[option % len(allocation.containers)].name
        for pid, (uid, running) in list(self.running.items()):
            if (uid, running) == (allocation.uid, name):
                self._exit(pid)
                return
        cgroup = path_of(allocation, self.driver)
        if not self.part.tree.exists(cgroup) or name in str(self.part.tree.children(cgroup)):
            return
        self.pids += 1
        self.running[self.pids] = (allocation.uid, name)
        self.untouched = False
        for side in (self.part, self.whole):
            side.start(allocation, name, self.pids)

    def provoke(self, number: int, option: int) -> None:
        """Write something into the cgroup of a pod and, mostly, into all that is in it."""
        file, value = OTHER_WRITES[option % len(OTHER_WRITES)]
        pod_path = path_of(PODS[number % len(PODS)], self.driver)
        if not self.part.tree.exists(pod_path):
            return
        self.untouched = False
        inside = [f"{pod_path}/{name}" for name in self.part.tree.children(pod_path)]
        for side in (self.part, self.whole):
            for path in (pod_path, *(inside if number < len(PODS) else ())):
                if side.tree.exists(path) and side.tree.read_many(path, (file,)) != (None,):
                    side.tree.write(path, file, value)

    def switch_a_cpu(self, _number: int, _option: int) -> None:
        """Take a CPU of the pod `half` offline, or bring it back."""
        self.untouched = False
        self.online ^= True
        for side in (self.part, self.whole):
            side.tree.set_online(ONLINE if self.online else ONLINE - Mask.of(9))

    def bind(self, number: int, option: int) -> None:
        allocation = PODS[number % len(PODS)]
        pids = list(self.running)
        if allocation.uid not in self.admitted or not pids:
            return
        pid = pids[option % len(pids)]
        if self.running[pid][0] != allocation.uid:
            return
        cgroup = self.part.tree._homes[pid].path
        name = allocation.containers[number % len(allocation.containers)].name
        if name != self.running[pid][1]:
            # A container without a limit keeps the quota that was written for the one before it:
            # both sides have to have written that.
            self._repair()
        bindings = self.target.bindings.with_binding(Binding(allocation.uid, name, cgroup))
        self.target = Desired(self.target.ledger, self.target.shared_pool, bindings)
        self._change(allocation.uid)

    def repair(self, _number: int, _option: int) -> None:
        self._repair()

    def _exit(self, pid: int) -> None:
        del self.running[pid]
        self.untouched = False
        for side in (self.part, self.whole):
            side.tree.exit(pid)

    def _change(self, uid: str | None) -> EnforcementReport:
        allocations = ledger(*self.admitted.values())
        pool = ONLINE - exclusive_cpus(allocations)
        self.target = Desired(allocations, pool, self.target.bindings)
        found = self.part.enforcer.enforce_change(self.target, *filter(None, (uid,)))
        reference = self.whole.enforcer.enforce(self.target)
        if self.untouched:
            self._compare(found, reference)
        if uid is not None and found.ok:
            self._check_exclusive(self.admitted[uid])
        return found

    def _compare(self, found: EnforcementReport, reference: EnforcementReport) -> None:
        """Check that a part is reported as in a full comparison, and the rest is as desired."""
        assert found.ok == reference.ok
        pods = self.admitted.keys() if found.pods is None else found.pods & self.admitted.keys()
        for each in pods:
            assert found.of_pod(each) == reference.of_pod(each)
        verified = self.part.enforcer.verify(self.target)
        assert verified.found == self.whole.enforcer.verify(self.target).found
        assert all(each in reference.of_pod("") for each in found.of_pod(""))

    def _check_exclusive(self, allocation: PodAllocation) -> None:
        """No other process is on the CPUs that a pod was just given, whatever happened before."""
        inside = path_of(allocation, self.driver)
        for pid, home in self.part.tree._homes.items():
            bound = self.running.get(pid, ("", ""))[0] == allocation.uid
            if not bound and not f"{home.path}/".startswith(f"{inside}/"):
                assert self.part.tree.allowed(pid)[0].isdisjoint(allocation.exclusive_cpus), (
                    home.path
                )

    def _repair(self) -> EnforcementReport:
        """Repair both; whatever was looked at before, they agree afterwards."""
        reports: list[EnforcementReport] = []
        for side in (self.part, self.whole):
            side.enforcer.repair(self.target)
            release_orphaned(side.enforcer, self.target)
            reports.append(side.enforcer.repair(self.target))
        first, second = reports
        assert first.ok or not self.online
        assert [(each.desired, each.ok) for each in first.cgroups] == [
            (each.desired, each.ok) for each in second.cgroups
        ]
        assert (first.found, first.notes) == (second.found, second.notes)
        assert not first.changed
        assert known(self.part) == known(self.whole)
        for pid in self.running:
            assert self.part.tree.allowed(pid) == self.whole.tree.allowed(pid)
        self.untouched = True
        return first


def known(side: Side) -> tuple[object, object]:
    memory = side.enforcer._memory
    asked = {uid: items for uid, items in memory._asked.items() if items}
    # Of what is left of a pod the quota is kept as it was found.
    recorded = {uid: records for uid, records in memory._recorded.items() if records and uid}
    return asked, recorded


STEPS: Final[tuple[Callable[[Pair, int, int], None], ...]] = (
    Pair.admit_or_remove,
    Pair.admit_or_remove,
    Pair.start_or_end,
    Pair.start_or_end,
    Pair.provoke,
    Pair.switch_a_cpu,
    Pair.bind,
    Pair.repair,
)


@pytest.mark.parametrize("driver", list(Driver))
@example(
    sequence=[
        (Pair.admit_or_remove, 0, 0),
        (Pair.admit_or_remove, 1, 0),
        (Pair.start_or_end, 0, 1),
        (Pair.admit_or_remove, 1, 0),
        (Pair.bind, 0, 0),
    ]
)
@settings(deadline=None, max_examples=40)
@given(
    sequence=st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 11), st.integers(0, 11)),
        min_size=5,
        max_size=40,
    )
)
def test_looking_at_a_part_ends_where_looking_at_everything_does(
    driver: Driver, sequence: Sequence[tuple[Callable[[Pair, int, int], None], int, int]]
) -> None:
    pair = Pair(driver)
    for step, number, option in sequence:
        step(pair, number, option)
    pair._repair()


SHARED, OWN, HALF = PODS[0], PODS[4], PODS[3]


def desired(*pods: PodAllocation) -> Desired:
    allocations = ledger(*pods)
    return Desired(allocations, ONLINE - exclusive_cpus(allocations))


def test_a_container_moved_to_cpus_given_away_is_found_although_its_pod_did_not_change() -> None:
    side = Side(Driver.CGROUPFS)
    side.enforcer.enforce_change(desired(OWN), OWN.uid)
    container = side.start(OWN, "a", 1)
    side.enforcer.repair(desired(OWN))
    side.tree.write(path_of(OWN), "cpuset.cpus", "0-15")
    side.tree.write(container, "cpuset.cpus", "8-11")
    assert side.enforcer.enforce_change(desired(OWN, HALF), HALF.uid).ok
    assert side.tree.allowed(1)[0] == Mask.parse("10-11")


def test_after_anything_that_is_not_enforced_everything_is_looked_at() -> None:
    side = Side(Driver.CGROUPFS)
    side.enforcer.enforce_change(desired(HALF), HALF.uid)
    side.tree.set_online(ONLINE - Mask.of(9))
    assert not side.enforcer.repair(desired(HALF)).ok
    report = side.enforcer.enforce_change(desired(HALF, SHARED), SHARED.uid)
    assert report.pods is None
    assert [difference.pod for difference in report.remaining] == [HALF.uid]
    side.tree.set_online(ONLINE)
    assert side.enforcer.repair(desired(HALF, SHARED)).ok
    again = side.enforcer.enforce_change(desired(HALF, SHARED), SHARED.uid)
    assert again.pods == frozenset({SHARED.uid})


@pytest.mark.parametrize("containers", [0, 2])
def test_a_pod_in_the_shared_pool_costs_the_same_however_many_there_are(containers: int) -> None:
    costs: list[tuple[int, int]] = []
    for others in (4, 40):
        tree = kernel()
        counted = FaultyTree(tree)
        enforcer = directories(counted)
        pods = [pod(on_host("a"), on_host("b"), uid=f"pod-{number}") for number in range(others)]
        enforcer.enforce(desired(HALF, *pods))
        for allocation in pods:
            for name in ("a", "b")[:containers]:
                tree.mkdir(f"{path_of(allocation)}/{name}")
        assert enforcer.repair(desired(HALF, *pods)).ok
        counted.log.clear()
        assert enforcer.enforce_change(desired(HALF, *pods, SHARED), SHARED.uid).ok
        admission = len(counted.log)
        counted.log.clear()
        enforcer.releaser.pod(SHARED)
        assert enforcer.enforce_change(desired(HALF, *pods)).ok
        costs.append((admission, len(counted.log)))
    assert costs[0] == costs[1]

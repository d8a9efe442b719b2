"""Plans run write by write on the emulated kernel, with the invariants checked in between."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.plan import Plan, Setting, WriteStage, make_plan
from cgroupfs.settings import CPUS
from cgroupfs.tree import parent
from sysfs.mask import Mask
from tests.fakes.kernel import read_states

HOST = Mask.parse("0-7")
PODS = "pods"


@dataclass(frozen=True)
class Case:
    """What is written in the tree at first, and what is desired."""

    before: dict[str, Mask]
    desired: tuple[Setting, ...]


def subset(mask: Mask) -> st.SearchStrategy[Mask]:
    return st.sets(st.sampled_from(sorted(mask)), min_size=1).map(Mask.from_ids)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    before: dict[str, Mask] = {PODS: Mask(0)}
    desired: list[Setting] = []
    for pod in range(draw(st.integers(1, 4))):
        path = f"{PODS}/pod{pod}"
        before[path] = draw(st.just(Mask(0)) | subset(HOST))
        new = draw(subset(HOST))
        desired.append(Setting(path, cpus=new, exclusive=draw(st.booleans())))
        for app in range(draw(st.integers(0, 3))):
            inner = f"{path}/app{app}"
            before[inner] = draw(st.just(Mask(0)) | subset(before[path] or HOST))
            goal = draw(subset(new))
            desired.append(Setting(inner, cpus=goal, exclusive=draw(st.booleans())))
    return Case(before, tuple(desired))


def build(case: Case) -> EmulatedKernel:
    kernel = EmulatedKernel(HOST, Mask.of(0))
    kernel.write("", "cgroup.subtree_control", "+cpuset +cpu")
    for path, cpus in case.before.items():
        kernel.mkdir(path)
        kernel.write(path, "cgroup.subtree_control", "+cpuset +cpu")
        if cpus:
            kernel.write(path, CPUS, str(cpus))
    return kernel


def plan_of(kernel: EmulatedKernel, case: Case) -> Plan:
    return make_plan(read_states(kernel, case.before), case.desired)


def effective(kernel: EmulatedKernel, path: str) -> Mask:
    return Mask.parse(kernel.read(path, "cpuset.cpus.effective"))


def snapshots(kernel: EmulatedKernel, case: Case, plan: Plan) -> list[dict[str, Mask]]:
    """Run a plan; return what is in effect before it and after each of its writes."""
    shown = [{path: effective(kernel, path) for path in case.before}]
    for write in plan.writes:
        kernel.write(write.cgroup, write.file, write.value)
        shown.append({path: effective(kernel, path) for path in case.before})
    return shown


def leaves(case: Case) -> list[str]:
    inner = {parent(path) for path in case.before}
    return [path for path in case.before if path not in inner]


def has_circle(case: Case, first: dict[str, Mask], goal: dict[str, Mask]) -> bool:
    """Return whether leaves wait for each other in a circle: none of them could go first."""
    waits = {
        gainer: {
            loser
            for loser in leaves(case)
            if loser != gainer
            and first[loser].isdisjoint(goal[loser])
            and not first[loser].isdisjoint(goal[gainer] - first[gainer])
        }
        for gainer in leaves(case)
    }
    while any(not others for others in waits.values()):
        free = {path for path, others in waits.items() if not others}
        waits = {p: others - free for p, others in waits.items() if p not in free}
    return bool(waits)


@st.composite
def anything(draw: st.DrawFn) -> Case:
    """Draw sets that need not fit into each other, of cgroups that need not exist."""
    paths = st.sampled_from([PODS, *(f"{PODS}/{a}{b}" for a in "xy" for b in ("", "/1", "/1/2"))])
    masks = st.just(Mask(0)) | subset(HOST)
    before = draw(st.dictionaries(paths, masks))
    for path in tuple(before):
        while path := parent(path):
            before.setdefault(path, Mask(0))
    desired = [
        Setting(path, cpus=cpus, exclusive=draw(st.booleans()), whole_cpus=whole)
        for path in draw(st.lists(paths, max_size=8))
        for cpus in (draw(st.none() | subset(HOST)),)
        for whole in (draw(masks),)
    ]
    return Case(dict(sorted(before.items())), tuple(desired))


@given(anything(), subset(HOST))
@settings(max_examples=200, deadline=None)
def test_whatever_is_desired_and_shown_there_is_a_plan_that_ends(case: Case, online: Mask) -> None:
    kernel = build(case)
    kernel.set_online(online)
    for _ in range(3):  # what was bounded by a set that is then wide enough is given afterwards
        plan = plan_of(kernel, case)
        assert not any(each.desired <= each.given for each in plan.unfit)
        snapshots(kernel, case, plan)
    assert plan_of(kernel, case).writes == ()


@given(cases())
@settings(max_examples=200, deadline=None)
def test_a_plan_ends_with_what_is_desired_and_each_of_its_writes_keeps_the_rules(
    case: Case,
) -> None:
    kernel = build(case)
    plan = plan_of(kernel, case)
    assert all(one.stage <= two.stage for one, two in pairwise(plan.writes))
    # Exclusive holders are confined after the shrinking.
    exclusive = {setting.cgroup for setting in case.desired if setting.exclusive}
    assert all(w.cgroup not in exclusive for w in plan.writes if w.stage is WriteStage.SHRINK)
    shown = [{path: effective(kernel, path) for path in case.before}]
    for write in plan.writes:
        assert kernel.read(write.cgroup, CPUS).strip() != write.value  # it changes something
        kernel.write(write.cgroup, write.file, write.value)
        shown.append({path: effective(kernel, path) for path in case.before})
        # No child is outside of its parent.
        for path in case.before:
            assert Mask.parse(kernel.read(path, CPUS)) in (Mask(0), shown[-1][path]), (write, path)
    assert all(sum(write.cgroup == path for write in plan.writes) <= 3 for path in case.before)
    for setting in case.desired:
        assert kernel.read(setting.cgroup, CPUS).strip() == str(setting.cpus)
        assert effective(kernel, setting.cgroup) == setting.cpus
    assert plan_of(kernel, case).writes == ()
    # No cgroup gains a CPU before its loser has given it up.
    if not has_circle(case, shown[0], shown[-1]):
        for now, (one, other) in product(shown, combinations(leaves(case), 2)):
            unavoidable = (shown[0][one] & shown[0][other]) | (shown[-1][one] & shown[-1][other])
            assert now[one] & now[other] <= unavoidable

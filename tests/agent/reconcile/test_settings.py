from __future__ import annotations

from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocation import ContainerAllocation, Isolation, PodAllocation
from agent.pods.model import ContainerKind
from agent.reconcile.desired import Role, desired_cgroups
from agent.reconcile.identify import (
    IdentifiedBy,
    Located,
    Subgroup,
)
from agent.reconcile.orphans import OrphanedCgroup
from agent.reconcile.pod_cgroups import IdentifiedCgroups, LocatedPod
from agent.reconcile.target import Desired
from cgroupfs.plan import Setting, make_plan
from sysfs.mask import EMPTY, Mask
from tests.agent.reconcile.pods import (
    exclusive,
    ledger,
    mixed,
    on_host,
    path_of,
    pod,
    pod_shared,
    target,
)
from tests.fakes.kernel import quota

POD = path_of(mixed())
#: Of 6 CPUs: 6,144 shares of 262,144 at most.
WEIGHT = {"cpu.weight": "235"}


def settings_of(
    allocation: PodAllocation, *located: Located, shared: Mask | None = None
) -> dict[str, Setting]:
    aim = target(allocation)
    if shared is not None:
        aim = Desired(aim.ledger, shared)
    identified = IdentifiedCgroups(
        {allocation.uid: LocatedPod(POD, exists=True, containers=located)}
    )
    return {desired.setting.cgroup: desired.setting for desired in desired_cgroups(aim, identified)}


SHARED = Mask.parse("0-1")
NODE = Mask.of(0)


def located(identity: IdentifiedBy, name: str | None = None) -> Located:
    return Located(f"{POD}/x", name, identity)


def inside(cpus: str, node: Mask | None = None, of: int | None = None) -> Setting:
    """Return what is desired of a cgroup in a pod that has CPUs of its own."""
    values = quota() if of == 0 else quota(of) if of else {}
    return Setting(f"{POD}/x", Mask.parse(cpus), node, exclusive=True, values=values)


LOG = pod(exclusive("db", "2-5", node=0), on_host("log"))
NAMED = IdentifiedBy.NAME
ALIKE = pod(on_host("a", limit=500), on_host("b", limit=500))
NEAR = replace(on_host("log"), memory_nodes=Mask.parse("1-2"))
WITH_INIT = pod(
    pod_shared("init", "2-7", kind=ContainerKind.INIT),
    exclusive("db", "2-5"),
    pod_shared("log", "6-7"),
    cpus="2-7",
)
#: A pod and what runs in it beside a pool of CPUs 0-1, and what is desired of that and of the pod.
CASES: Final[dict[str, tuple[PodAllocation, Located, Setting, tuple[str, str]]]] = {
    "a container with CPUs of its own": (
        mixed(), located(NAMED, "db"), inside("2-5", NODE, 0), ("2-7", "0"),
    ),
    "one that shares the pod's": (
        mixed(), located(NAMED, "backup"), inside("6-7", NODE, 600_000), ("2-7", "0"),
    ),
    "one of them with a limit": (
        mixed(), located(NAMED, "metrics"), inside("6-7", NODE, 50_000), ("2-7", "0"),
    ),
    "one in the host's pool, which keeps the pod's memory open": (
        LOG, located(NAMED, "log"), Setting(f"{POD}/x", SHARED), ("0-5", ""),
    ),
    "one whose memory stays on the nodes that it asks for": (
        pod(NEAR, exclusive("db", "2", node=1)), located(NAMED, "log"),
        Setting(f"{POD}/x", SHARED, Mask.parse("1-2")), ("0-2", "1-2"),
    ),
    "containers pinned to two nodes": (
        pod(exclusive("db", "2", node=0), exclusive("web", "8", node=1)), located(NAMED, "web"),
        inside("8", Mask.of(1), 0), ("2,8", "0-1"),
    ),
    "the memory of the pod, whatever its members hold": (
        pod(exclusive("db", "2", node=0), pod_shared("b", "3"), cpus="2-3", node=0),
        located(NAMED, "b"), inside("3"), ("2-3", "0"),
    ),
    "what is not identified": (
        WITH_INIT, located(IdentifiedBy.UNKNOWN), inside("6-7"), ("2-7", ""),
    ),
    "a sandbox": (mixed(), located(IdentifiedBy.SANDBOX), inside("6-7"), ("2-7", "0")),
    # KEP-5526: on neither the pod's budget nor its shared pool, but bounded by the pod's quota.
    "an ephemeral container, which its pod lets into the pool": (
        mixed(), located(IdentifiedBy.EPHEMERAL),
        Setting(f"{POD}/x", SHARED, values=quota(600_000)), ("0-7", "0"),
    ),
    "containers that are alike": (
        ALIKE, located(IdentifiedBy.ALIKE),
        Setting(f"{POD}/x", SHARED, values=quota(50_000), whole_cpus=SHARED), ("0-1", ""),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_setting_is_that_of(case: str) -> None:
    allocation, found, expected, (cpus, mems) = CASES[case]
    desired = settings_of(allocation, found, shared=SHARED)
    assert desired[f"{POD}/x"] == expected
    assert (str(desired[POD].cpus or ""), str(desired[POD].mems or "")) == (cpus, mems)


def test_a_pod_of_cpus_of_its_own_has_them_without_a_quota() -> None:
    setting = Setting(POD, Mask.parse("2-7"), NODE, exclusive=True, values=quota() | WEIGHT)
    assert settings_of(mixed())[POD] == setting


def test_a_container_bound_elsewhere_does_not_widen_its_pods_cgroup() -> None:
    allocation = pod(exclusive("db", "2-5"))
    elsewhere = Located("machine.slice/db.scope", "db", IdentifiedBy.BOUND)
    desired = settings_of(allocation, elsewhere)
    assert desired["machine.slice/db.scope"].cpus == Mask.parse("2-5")
    assert desired[POD].cpus == Mask.parse("2-5")


@pytest.mark.parametrize(("has_quota", "values"), [(False, {}), (True, quota())])
def test_a_runtimes_subgroup_gets_the_sets_and_no_quota_of_its_own(
    has_quota: bool,  # noqa: FBT001 - a case
    values: dict[str, str],
) -> None:
    inner = f"{POD}/b/container"
    located = Located(f"{POD}/b", "backup", IdentifiedBy.NAME, (Subgroup(inner, has_quota),))
    desired = settings_of(mixed(), located)
    assert desired[f"{POD}/b"].values == quota(600_000)
    assert desired[inner] == Setting(
        inner, Mask.parse("6-7"), Mask.of(0), exclusive=True, values=values
    )


def test_an_empty_shared_pool_leaves_sets_as_they_are() -> None:
    desired = settings_of(pod(on_host("a")), located(NAMED, "a"), shared=EMPTY)
    assert desired[POD].cpus is None
    assert desired[f"{POD}/x"].cpus is None


def test_what_runs_without_an_allocation_is_confined_to_the_shared_pool() -> None:
    identified = IdentifiedCgroups({}, (OrphanedCgroup(POD, (f"{POD}/x",)),))
    desired = desired_cgroups(Desired(ledger(), Mask.parse("0-3")), identified)
    assert [(w.setting, w.role) for w in desired] == [
        (Setting(POD, Mask.parse("0-3")), Role.ORPHANED),
        (Setting(f"{POD}/x", Mask.parse("0-3"), whole_cpus=Mask.parse("0-3")), Role.ORPHANED),
    ]


cpu_sets = st.frozensets(st.integers(0, 15), min_size=1, max_size=5).map(Mask.from_ids)
allocations = st.lists(
    st.builds(
        lambda kind, isolation, cpus, node, index: (
            on_host(f"c{index}")
            if isolation is Isolation.HOST
            else exclusive(f"c{index}", str(cpus), node=node, kind=kind)
            if isolation is Isolation.CONTAINER
            else pod_shared(f"c{index}", str(cpus), node=node, kind=kind)
        ),
        st.sampled_from(ContainerKind),
        st.sampled_from(Isolation),
        cpu_sets,
        st.none() | st.integers(0, 1),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda allocation: allocation.name,
)


@settings(deadline=None)
@given(
    allocations,
    cpu_sets | st.just(EMPTY),
    st.sampled_from([IdentifiedBy.NAME, IdentifiedBy.UNKNOWN]),
)
def test_whatever_is_desired_of_a_child_fits_into_what_is_desired_of_its_pod(
    containers: list[ContainerAllocation], shared: Mask, identity: IdentifiedBy
) -> None:
    known = identity is not IdentifiedBy.UNKNOWN
    located = tuple(
        Located(f"{POD}/{each.name}", each.name if known else None, identity) for each in containers
    )
    allocation = pod(*containers)
    desired = settings_of(allocation, *located, shared=shared)
    make_plan({}, desired.values())
    pod_cpus, pod_mems = desired[POD].cpus, desired[POD].mems
    for setting in desired.values():
        assert setting.cpus is None or (pod_cpus is not None and setting.cpus <= pod_cpus)
        assert setting.mems is None or pod_mems is None or setting.mems <= pod_mems


@settings(deadline=None)
@given(allocations, cpu_sets)
def test_an_unidentified_cgroup_is_never_given_exclusive_cpus(
    containers: list[ContainerAllocation], shared: Mask
) -> None:
    allocation = pod(*containers)
    own = EMPTY
    for each in containers:
        if each.isolation is Isolation.CONTAINER and each.cpus is not None:
            own |= each.cpus
    shared -= allocation.exclusive_cpus
    assume(all(each.isolation is not Isolation.POD for each in containers))
    desired = settings_of(allocation, located(IdentifiedBy.UNKNOWN), shared=shared)
    assert (desired[f"{POD}/x"].cpus or EMPTY).isdisjoint(own)

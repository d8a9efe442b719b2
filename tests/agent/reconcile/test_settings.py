from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocation import ContainerAllocation, Isolation, PodAllocation
from agent.pods.model import ContainerKind
from agent.reconcile.desired import Role, desired_cgroups
from agent.reconcile.identify import (
    IdentifiedBy,
    IdentifiedCgroups,
    Located,
    LocatedPod,
    OrphanedCgroup,
    Subgroup,
)
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


def container(name: str | None, identity: IdentifiedBy = IdentifiedBy.NAME) -> Located:
    return Located(f"{POD}/{name or 'x'}", name, identity)


def test_each_container_of_a_mixed_pod_gets_its_own() -> None:
    desired = settings_of(mixed(), container("db"), container("backup"), container("metrics"))
    node = Mask.of(0)
    assert desired == {
        POD: Setting(POD, Mask.parse("2-7"), node, exclusive=True, values=quota() | WEIGHT),
        f"{POD}/db": Setting(f"{POD}/db", Mask.parse("2-5"), node, exclusive=True, values=quota()),
        f"{POD}/backup": Setting(
            f"{POD}/backup", Mask.parse("6-7"), node, exclusive=True, values=quota(600_000)
        ),
        f"{POD}/metrics": Setting(
            f"{POD}/metrics", Mask.parse("6-7"), node, exclusive=True, values=quota(50_000)
        ),
    }


def test_a_host_container_runs_in_the_shared_pool_as_it_is_now() -> None:
    allocation = pod(exclusive("db", "2-5", node=0), on_host("log"))
    desired = settings_of(allocation, container("log"), shared=Mask.parse("0-1,8-15"))
    assert desired[f"{POD}/log"] == Setting(f"{POD}/log", Mask.parse("0-1,8-15"))
    assert desired[POD].cpus == Mask.parse("0-5,8-15")
    shrunk = settings_of(allocation, container("log"), shared=Mask.parse("0-1"))
    assert shrunk[f"{POD}/log"].cpus == Mask.parse("0-1")
    assert shrunk[POD].cpus == Mask.parse("0-5")


def test_one_unpinned_member_keeps_the_pods_memory_open() -> None:
    assert settings_of(pod(exclusive("db", "2", node=0), on_host("log")))[POD].mems is None
    both = pod(exclusive("db", "2", node=0), exclusive("web", "8", node=1))
    assert settings_of(both)[POD].mems == Mask.parse("0-1")


def test_memory_that_is_not_pinned_stays_on_the_nodes_of_the_classes_that_are_asked_for() -> None:
    allowed = Mask.parse("1-2")
    log = replace(on_host("log"), memory_nodes=allowed)
    desired = settings_of(pod(log, exclusive("db", "2", node=1)), container("log"))
    assert desired[f"{POD}/log"].mems == allowed
    assert desired[POD].mems == allowed


def test_a_pods_memory_budget_pins_it_whatever_its_members_hold() -> None:
    allocation = pod(exclusive("db", "2", node=0), pod_shared("b", "3"), cpus="2-3", node=0)
    desired = settings_of(allocation, container("b"))
    assert desired[POD].mems == Mask.of(0)
    assert desired[f"{POD}/b"].mems is None


def test_an_unidentified_cgroup_runs_in_the_pods_shared_pool() -> None:
    allocation = pod(
        pod_shared("init", "2-7", kind=ContainerKind.INIT),
        exclusive("db", "2-5"),
        pod_shared("log", "6-7"),
        cpus="2-7",
    )
    desired = settings_of(allocation, container(None, IdentifiedBy.UNKNOWN))
    assert desired[f"{POD}/x"] == Setting(f"{POD}/x", Mask.parse("6-7"), exclusive=True)


def test_an_ephemeral_container_runs_in_the_nodes_pool_and_its_pod_lets_it() -> None:
    """KEP-5526: on neither the pod's budget nor its shared pool, but bounded by the pod's quota."""
    ephemeral = container(None, IdentifiedBy.EPHEMERAL)
    desired = settings_of(mixed(), ephemeral, shared=Mask.parse("0-1"))
    assert desired[f"{POD}/x"] == Setting(f"{POD}/x", Mask.parse("0-1"), values=quota(600_000))
    assert desired[POD].cpus == Mask.parse("0-7")


def test_a_sandbox_runs_where_an_unidentified_cgroup_does_and_is_none() -> None:
    sandbox = container(None, IdentifiedBy.SANDBOX)
    identified = IdentifiedCgroups(
        {mixed().uid: LocatedPod(POD, exists=True, containers=(sandbox,))}
    )
    desired = desired_cgroups(target(mixed()), identified)
    assert [item.role for item in desired] == [Role.POD, Role.SANDBOX]
    assert desired[1].setting == Setting(f"{POD}/x", Mask.parse("6-7"), exclusive=True)


def test_containers_that_are_alike_have_the_same_settings() -> None:
    allocation = pod(on_host("a", limit=500), on_host("b", limit=500))
    desired = settings_of(allocation, container(None, IdentifiedBy.ALIKE), shared=Mask.parse("0-3"))
    shared = Mask.parse("0-3")
    assert desired[f"{POD}/x"] == Setting(
        f"{POD}/x", shared, None, values=quota(50_000), whole_cpus=shared
    )


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
    desired = settings_of(pod(on_host("a")), container("a"), shared=EMPTY)
    assert desired[POD].cpus is None
    assert desired[f"{POD}/a"].cpus is None


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
    desired = settings_of(allocation, container(None, IdentifiedBy.UNKNOWN), shared=shared)
    assert (desired[f"{POD}/x"].cpus or EMPTY).isdisjoint(own)

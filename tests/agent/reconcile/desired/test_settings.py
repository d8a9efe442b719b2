from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.managers.allocations.ledger import ContainerGrant, Isolation, PodGrant
from agent.pods.model import ContainerKind
from agent.reconcile.desired.settings import Role, desired_cgroups
from agent.reconcile.desired.state import Target
from agent.reconcile.identify.containers import (
    Identity,
    Landscape,
    Leftover,
    Located,
    LocatedPod,
    Subgroup,
)
from cgroupfs.plan import Setting, make_plan
from cgroupfs.state import UNLIMITED, CpuMax
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

POD = path_of(mixed())
#: Of 6 CPUs: 6,144 shares of 262,144 at most.
WEIGHT = {"cpu.weight": "235"}


def settings_of(
    grant: PodGrant, *located: Located, shared: Mask | None = None
) -> dict[str, Setting]:
    aim = target(grant)
    if shared is not None:
        aim = Target(aim.ledger, shared)
    landscape = Landscape({grant.uid: LocatedPod(POD, exists=True, containers=located)})
    return {wanted.setting.cgroup: wanted.setting for wanted in desired_cgroups(aim, landscape)}


def container(name: str | None, identity: Identity = Identity.NAME) -> Located:
    return Located(f"{POD}/{name or 'x'}", name, identity)


def test_each_container_of_a_mixed_pod_gets_its_own() -> None:
    wanted = settings_of(mixed(), container("db"), container("backup"), container("metrics"))
    node = Mask.of(0)
    assert wanted == {
        POD: Setting(POD, Mask.parse("2-7"), node, UNLIMITED, exclusive=True, values=WEIGHT),
        f"{POD}/db": Setting(f"{POD}/db", Mask.parse("2-5"), node, UNLIMITED, exclusive=True),
        f"{POD}/backup": Setting(
            f"{POD}/backup", Mask.parse("6-7"), node, CpuMax(600_000), exclusive=True
        ),
        f"{POD}/metrics": Setting(
            f"{POD}/metrics", Mask.parse("6-7"), node, CpuMax(50_000), exclusive=True
        ),
    }


def test_a_pod_is_pinned_before_any_of_its_containers_is_there() -> None:
    assert settings_of(mixed()) == {
        POD: Setting(POD, Mask.parse("2-7"), Mask.of(0), UNLIMITED, exclusive=True, values=WEIGHT)
    }


def test_a_host_container_runs_in_the_shared_pool_as_it_is_now() -> None:
    grant = pod(exclusive("db", "2-5", node=0), on_host("log"))
    wanted = settings_of(grant, container("log"), shared=Mask.parse("0-1,8-15"))
    assert wanted[f"{POD}/log"] == Setting(f"{POD}/log", Mask.parse("0-1,8-15"))
    assert wanted[POD].cpus == Mask.parse("0-5,8-15")
    shrunk = settings_of(grant, container("log"), shared=Mask.parse("0-1"))
    assert shrunk[f"{POD}/log"].cpus == Mask.parse("0-1")
    assert shrunk[POD].cpus == Mask.parse("0-5")


def test_one_unpinned_member_keeps_the_pods_memory_open() -> None:
    assert settings_of(pod(exclusive("db", "2", node=0), on_host("log")))[POD].mems is None
    both = pod(exclusive("db", "2", node=0), exclusive("web", "8", node=1))
    assert settings_of(both)[POD].mems == Mask.parse("0-1")


def test_a_pods_memory_budget_pins_it_whatever_its_members_hold() -> None:
    grant = pod(exclusive("db", "2", node=0), pod_shared("b", "3"), cpus="2-3", node=0)
    wanted = settings_of(grant, container("b"))
    assert wanted[POD].mems == Mask.of(0)
    assert wanted[f"{POD}/b"].mems is None


def test_init_containers_and_apps_have_sets_of_their_own() -> None:
    grant = pod(
        pod_shared("init", "2-7", kind=ContainerKind.INIT),
        exclusive("db", "2-5"),
        pod_shared("log", "6-7"),
        cpus="2-7",
    )
    wanted = settings_of(grant, container("init"), container("db"), container("log"))
    assert [wanted[f"{POD}/{name}"].cpus for name in ("init", "db", "log")] == [
        Mask.parse("2-7"),
        Mask.parse("2-5"),
        Mask.parse("6-7"),
    ]


def test_an_unidentified_cgroup_runs_in_the_pods_shared_pool() -> None:
    grant = pod(
        pod_shared("init", "2-7", kind=ContainerKind.INIT),
        exclusive("db", "2-5"),
        pod_shared("log", "6-7"),
        cpus="2-7",
    )
    wanted = settings_of(grant, container(None, Identity.UNKNOWN))
    assert wanted[f"{POD}/x"] == Setting(f"{POD}/x", Mask.parse("6-7"), exclusive=True)


def test_without_one_an_unidentified_cgroup_runs_in_the_nodes_and_its_pod_lets_it() -> None:
    grant = pod(exclusive("db", "2-5"), exclusive("web", "6-7"))
    wanted = settings_of(grant, container(None, Identity.UNKNOWN), shared=Mask.parse("0-1"))
    assert wanted[f"{POD}/x"].cpus == Mask.parse("0-1")
    assert wanted[POD].cpus == Mask.parse("0-7")


def test_a_sandbox_runs_where_an_unidentified_cgroup_does_and_is_none() -> None:
    sandbox = container(None, Identity.SANDBOX)
    landscape = Landscape({mixed().uid: LocatedPod(POD, exists=True, containers=(sandbox,))})
    wanted = desired_cgroups(target(mixed()), landscape)
    assert [item.role for item in wanted] == [Role.POD, Role.SANDBOX]
    assert wanted[1].setting == Setting(f"{POD}/x", Mask.parse("6-7"), exclusive=True)


def test_containers_that_are_alike_get_what_each_of_them_is_entitled_to() -> None:
    grant = pod(on_host("a", limit=500), on_host("b", limit=500))
    wanted = settings_of(grant, container(None, Identity.ALIKE), shared=Mask.parse("0-3"))
    assert wanted[f"{POD}/x"] == Setting(f"{POD}/x", Mask.parse("0-3"), None, CpuMax(50_000))


def test_a_container_bound_elsewhere_does_not_widen_its_pods_cgroup() -> None:
    grant = pod(exclusive("db", "2-5"))
    elsewhere = Located("machine.slice/db.scope", "db", Identity.BOUND)
    wanted = settings_of(grant, elsewhere)
    assert wanted["machine.slice/db.scope"].cpus == Mask.parse("2-5")
    assert wanted[POD].cpus == Mask.parse("2-5")


@pytest.mark.parametrize(("has_quota", "cpu_max"), [(False, None), (True, UNLIMITED)])
def test_a_runtimes_subgroup_gets_the_sets_and_no_quota_of_its_own(
    has_quota: bool,  # noqa: FBT001 - a case
    cpu_max: CpuMax | None,
) -> None:
    inner = f"{POD}/b/container"
    located = Located(f"{POD}/b", "backup", Identity.NAME, (Subgroup(inner, has_quota),))
    wanted = settings_of(mixed(), located)
    assert wanted[f"{POD}/b"].cpu_max == CpuMax(600_000)
    assert wanted[inner] == Setting(inner, Mask.parse("6-7"), Mask.of(0), cpu_max, exclusive=True)


def test_where_the_quota_is_the_runtimes_it_may_be_in_its_subgroup() -> None:
    inner = f"{POD}/a/container"
    located = Located(f"{POD}/a", "a", Identity.NAME, (Subgroup(inner, quota=True),))
    assert settings_of(pod(on_host("a")), located)[inner].cpu_max is None


def test_an_empty_shared_pool_leaves_sets_as_they_are() -> None:
    wanted = settings_of(pod(on_host("a")), container("a"), shared=EMPTY)
    assert wanted[POD].cpus is None
    assert wanted[f"{POD}/a"].cpus is None


def test_what_runs_without_a_grant_is_confined_to_the_shared_pool() -> None:
    landscape = Landscape({}, (Leftover(POD, (f"{POD}/x",)),))
    wanted = desired_cgroups(Target(ledger(), Mask.parse("0-3")), landscape)
    assert [(w.setting, w.role) for w in wanted] == [
        (Setting(POD, Mask.parse("0-3")), Role.LEFTOVER),
        (Setting(f"{POD}/x", Mask.parse("0-3")), Role.LEFTOVER),
    ]


cpu_sets = st.frozensets(st.integers(0, 15), min_size=1, max_size=5).map(Mask.from_ids)
grants = st.lists(
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
    unique_by=lambda grant: grant.name,
)


@settings(deadline=None)
@given(grants, cpu_sets | st.just(EMPTY), st.sampled_from([Identity.NAME, Identity.UNKNOWN]))
def test_whatever_is_wanted_of_a_child_fits_into_what_is_wanted_of_its_pod(
    containers: list[ContainerGrant], shared: Mask, identity: Identity
) -> None:
    located = tuple(
        Located(f"{POD}/{grant.name}", None if identity is Identity.UNKNOWN else grant.name,
                identity)
        for grant in containers
    )  # fmt: skip
    grant = pod(*containers)
    wanted = settings_of(grant, *located, shared=shared)
    make_plan({}, wanted.values())
    pod_cpus, pod_mems = wanted[POD].cpus, wanted[POD].mems
    for setting in wanted.values():
        assert setting.cpus is None or (pod_cpus is not None and setting.cpus <= pod_cpus)
        assert setting.mems is None or pod_mems is None or setting.mems <= pod_mems


@settings(deadline=None)
@given(grants, cpu_sets)
def test_nobody_unknown_is_ever_given_exclusive_cpus(
    containers: list[ContainerGrant], shared: Mask
) -> None:
    grant = pod(*containers)
    own = EMPTY
    for held in containers:
        if held.isolation is Isolation.CONTAINER and held.cpus is not None:
            own |= held.cpus
    shared -= grant.exclusive_cpus
    assume(all(held.isolation is not Isolation.POD for held in containers))
    wanted = settings_of(grant, container(None, Identity.UNKNOWN), shared=shared)
    assert (wanted[f"{POD}/x"].cpus or EMPTY).isdisjoint(own)

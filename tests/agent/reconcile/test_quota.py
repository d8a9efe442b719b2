from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import CpuLimits, Isolation, Origin
from agent.pods.manifest import apply_defaults
from agent.pods.model import ContainerKind
from agent.pods.requests import aggregate
from agent.pods.validation import find_problems
from agent.reconcile.quota import cpu_max, pod_quotas
from cgroupfs.settings import UNLIMITED, CpuMax
from tests.agent.managers.hosts import CONTAINER, NO_POLICY, POD, RESTRICTED, make_rules
from tests.agent.pods import pods
from tests.agent.reconcile.pods import exclusive, on_host, pod, pod_shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod
    from agent.reconcile.quota import PodQuotas

#: The least that the kernel takes: 1 ms in 100 ms.
LEAST = 10


@pytest.mark.parametrize(
    ("millis", "shown"),
    [
        (1, "1000 100000"),
        (9, "1000 100000"),
        (10, "1000 100000"),
        (11, "1100 100000"),
        (500, "50000 100000"),
        (1000, "100000 100000"),
        (2505, "250500 100000"),
        (128_000, "12800000 100000"),
        (0, "max 100000"),
        (1 << 70, "max 100000"),
    ],
)
def test_a_limit_becomes_the_kubelets_quota(millis: int, shown: str) -> None:
    assert str(cpu_max(millis)) == shown


@settings(deadline=None)
@given(st.integers(10, 10_000_000))
def test_a_quota_is_a_hundred_microseconds_for_each_millicore(millis: int) -> None:
    assert cpu_max(millis) == CpuMax(millis * 100, 100_000)


def test_quotas_follow_the_period_that_is_configured_or_there_are_none() -> None:
    allocation = pod(exclusive("a", "2-3"), on_host("b", limit=500), on_host("c"), limit=3000)
    quotas = pod_quotas(allocation, 5_000)
    assert quotas.containers == {
        "a": UNLIMITED,
        "b": CpuMax(2_500, 5_000),
        "c": CpuMax(2_500, 5_000),
    }
    assert pod_quotas(pod(on_host("a", limit=100), limit=100), 5_000).pod == CpuMax(1_000, 5_000)
    off = pod_quotas(allocation, None)
    assert {off.pod, *off.containers.values()} == {UNLIMITED}


def quota(allocation: PodAllocation, name: str) -> CpuMax | None:
    return pod_quotas(allocation).containers[name]


def test_exclusive_cpus_have_no_quota() -> None:
    allocation = pod(exclusive("db", "2-5"), limit=4000)
    assert quota(allocation, "db") == UNLIMITED


def test_with_the_gate_off_exclusive_cpus_keep_their_quota() -> None:
    allocation = pod(exclusive("db", "2-5", quota=True), limit=4000)
    assert pod_quotas(allocation).pod == quota(allocation, "db") == CpuMax(400_000)


def test_a_pod_shared_container_has_its_own_limit_or_else_the_pods() -> None:
    allocation = pod(
        pod_shared("a", "6-7", limit=500), pod_shared("b", "6-7"), cpus="2-7", limit=6000
    )
    assert quota(allocation, "a") == CpuMax(50_000)
    assert quota(allocation, "b") == CpuMax(600_000)


def test_a_host_container_has_its_own_limit_or_else_the_pods() -> None:
    allocation = pod(on_host("a", limit=250), on_host("b"), limit=2000)
    assert quota(allocation, "a") == CpuMax(25_000)
    assert quota(allocation, "b") == CpuMax(200_000)


def test_a_host_container_without_any_limit_keeps_what_its_runtime_set() -> None:
    assert quota(pod(on_host("a")), "a") is None


def test_a_pod_without_exclusive_members_has_its_limit() -> None:
    assert pod_quotas(pod(on_host("a"), limit=1500)).pod == CpuMax(150_000)
    shared = pod(pod_shared("a", "2-3"), cpus="2-3", limit=2000)
    assert pod_quotas(shared).pod == CpuMax(200_000)
    assert pod_quotas(pod(on_host("a"))).pod == UNLIMITED


def test_an_exclusive_slice_and_a_pool_that_use_up_the_budget_lift_the_pods_quota() -> None:
    allocation = pod(exclusive("a", "2-3"), pod_shared("b", "4-5"), cpus="2-5", limit=4000)
    assert pod_quotas(allocation).pod == UNLIMITED


def test_what_a_sidecar_cannot_have_beside_an_init_container_is_left_to_the_app() -> None:
    """Of 4 CPUs an init container has 3 while the sidecar runs beside it; later an app has 1."""
    quotas = pod_quotas(
        pod(
            on_host("proxy", kind=ContainerKind.SIDECAR),
            exclusive("setup", "1-3", kind=ContainerKind.INIT),
            exclusive("db", "1"),
            on_host("web"),
            limit=4000,
        )
    ).containers
    assert (quotas["proxy"], quotas["web"]) == (CpuMax(100_000), CpuMax(200_000))


def test_the_quota_of_an_imported_pod_is_left_alone_until_its_limit_is_known() -> None:
    imported = replace(pod(on_host("a")), origin=Origin.IMPORTED)
    assert pod_quotas(imported).pod is None
    known = replace(imported, cpu=CpuLimits(1500, 1500))
    assert pod_quotas(known).pod == CpuMax(150_000)


class TestWhatExclusiveCpusLeaveOfABudget:
    """Container scope: the others run on the host's CPUs, each with a quota of its own."""

    def test_is_divided_evenly_where_nothing_is_said(self) -> None:
        # The example of the documentation: a budget of 4, a sidecar of 2, two workers.
        allocation = pod(exclusive("sidecar", "2-3"), on_host("w1"), on_host("w2"), limit=4000)
        quotas = pod_quotas(allocation)
        assert quotas.containers == {
            "sidecar": UNLIMITED,
            "w1": CpuMax(100_000),
            "w2": CpuMax(100_000),
        }
        assert quotas.pod == UNLIMITED

    def test_is_what_one_container_alone_may_use(self) -> None:
        allocation = pod(exclusive("a", "2-4"), on_host("b"), limit=5000)
        assert quota(allocation, "b") == CpuMax(200_000)

    def test_goes_to_stated_limits_first_and_the_rest_to_the_others(self) -> None:
        allocation = pod(
            exclusive("a", "2-4"), on_host("b", limit=1500), on_host("c"), on_host("d"), limit=6000
        )
        assert quota(allocation, "b") == CpuMax(150_000)
        assert quota(allocation, "c") == quota(allocation, "d") == CpuMax(75_000)

    def test_leaves_a_tenth_of_a_cpu_to_those_who_ask_for_nothing(self) -> None:
        allocation = pod(exclusive("a", "2-4"), on_host("b", limit=3000), on_host("c"), limit=6000)
        assert quota(allocation, "b") == CpuMax(290_000)
        assert quota(allocation, "c") == CpuMax(10_000)

    def test_covers_every_request_before_anything_else(self) -> None:
        allocation = pod(
            exclusive("a", "2-4"), on_host("b", limit=3000), on_host("c", request=2500), limit=6000
        )
        assert quota(allocation, "b") == CpuMax(50_000)
        assert quota(allocation, "c") == CpuMax(250_000)

    def test_is_the_least_that_the_kernel_takes_where_nothing_is_left(self) -> None:
        allocation = pod(exclusive("a", "2-4"), on_host("b"), limit=3000)
        assert quota(allocation, "b") == CpuMax(1000)

    def test_stays_with_sidecars_only_as_far_as_init_containers_spare_it(self) -> None:
        kinds = ContainerKind
        allocation = pod(
            on_host("s", kind=kinds.SIDECAR),
            on_host("i", kind=kinds.INIT, request=3500),
            exclusive("a", "2-3"),
            limit=4000,
        )
        # 2 CPUs are left once the pod is up, but the init container leaves half a CPU.
        assert quota(allocation, "s") == CpuMax(50_000)
        assert quota(allocation, "i") == CpuMax(350_000)

    def test_does_not_shrink_for_an_init_container_before_the_sidecar(self) -> None:
        allocation = pod(
            on_host("i", kind=ContainerKind.INIT, request=4000),
            on_host("s", kind=ContainerKind.SIDECAR),
            exclusive("a", "2-3"),
            limit=4000,
        )
        assert quota(allocation, "s") == CpuMax(200_000)
        assert quota(allocation, "i") == CpuMax(400_000)

    def test_is_the_quota_of_a_cgroup_that_is_not_identified(self) -> None:
        allocation = pod(exclusive("a", "2-4"), on_host("b"), on_host("c"), limit=5000)
        assert pod_quotas(allocation).unidentified == CpuMax(200_000)
        pooled = pod(exclusive("a", "2-3"), pod_shared("b", "4-5"), cpus="2-5", limit=4000)
        assert pod_quotas(pooled).unidentified is None
        assert pod_quotas(pooled).ephemeral == CpuMax(400_000)

    def test_leaves_an_unidentified_cgroup_the_pods_bound_where_nothing_is_left(
        self,
    ) -> None:
        """A hundredth of a CPU would make an ephemeral container useless."""
        pinned = pod(exclusive("a", "2-3"), limit=2000)
        stated = pod(exclusive("a", "2-3"), on_host("b", limit=500), limit=2500)
        for each in (pinned, stated):
            assert pod_quotas(replace(each, quota_disabled=True)).unidentified == UNLIMITED
        assert pod_quotas(pinned).ephemeral == CpuMax(200_000)

    def test_keeps_the_pods_quota_where_it_never_throttles(self) -> None:
        allocation = pod(exclusive("a", "2-4"), on_host("b", limit=1000), limit=5000)
        assert pod_quotas(allocation).pod == CpuMax(500_000)
        scarce = pod(exclusive("a", "2-4"), on_host("b", limit=1900), limit=5000)
        assert pod_quotas(scarce).pod == UNLIMITED


def test_a_thousand_containers_of_each_kind_are_divided_at_once() -> None:
    some = [on_host(f"s{n}", kind=ContainerKind.SIDECAR) for n in range(500)]
    some += [on_host(f"i{n}", kind=ContainerKind.INIT) for n in range(500)]
    allocation = pod(
        *some, exclusive("x", "2-3"), *(on_host(f"a{n}") for n in range(999)), limit=50_000
    )
    caps = pod_quotas(allocation).containers
    assert len(caps) == len(allocation.containers)


# --- properties over generated pods ---------------------------------------------------------------

_CPU = ("", "cpu=500m", "cpu=1", "cpu=2", "cpu=1300m")


@st.composite
def containers(draw: st.DrawFn, kind: ContainerKind, name: str) -> Container:
    request = draw(st.sampled_from(_CPU))
    make = {
        ContainerKind.APP: pods.app,
        ContainerKind.INIT: pods.init,
        ContainerKind.SIDECAR: pods.sidecar,
    }[kind]
    if draw(st.booleans()):
        return make(name, pods.guaranteed(f"{request} memory=64Mi"))
    return make(name, pods.resources(request, draw(st.sampled_from(("", "cpu=2", "cpu=2500m")))))


@st.composite
def budget_pods(draw: st.DrawFn) -> Pod:
    kinds = draw(st.lists(st.sampled_from(ContainerKind), max_size=5))
    drawn = [draw(containers(kind, f"c{n}")) for n, kind in enumerate(kinds)]
    drawn.append(draw(containers(ContainerKind.APP, "last")))
    asked = pods.pod(*drawn)
    peak = aggregate(asked, [each.resources.requests for each in asked.all_containers()])
    cpu = peak.get("cpu")
    millis = (0 if cpu is None else cpu.milli_value) + draw(st.sampled_from((0, 200, 1000, 2500)))
    millis = max(millis, 100)
    whole = -(-millis // 1000) if draw(st.booleans()) else millis / 1000
    budget = pods.guaranteed(f"cpu={whole} memory=1Gi")
    found = apply_defaults(replace(asked, resources=budget))
    assume(not find_problems(found))
    return found


RULES: tuple[EffectivePolicy, ...] = (
    make_rules(topology=RESTRICTED, scope=POD, memory=False),
    make_rules(topology=RESTRICTED, scope=CONTAINER, memory=False),
    make_rules(topology=NO_POLICY, memory=False),
)


def times(allocation: PodAllocation) -> Iterator[Sequence[ContainerAllocation]]:
    """Yield who runs at one time: the pod once it is up, and each init container's turn."""
    yield [c for c in allocation.containers if c.kind is not ContainerKind.INIT]
    for number, container in enumerate(allocation.containers):
        if container.kind is ContainerKind.INIT:
            before = allocation.containers[:number]
            yield [*(c for c in before if c.kind is ContainerKind.SIDECAR), container]


def most(running: Sequence[ContainerAllocation], quotas: PodQuotas) -> int:
    """Return what these containers may use at most, in millicores, each by quota or by set."""
    own: set[int] = set()
    total = 0
    for container in running:
        cap = quotas.containers[container.name]
        if container.isolation is Isolation.HOST:
            assert cap is not None
            assert cap.quota_us is not None
            total += cap.quota_us // 100
        else:
            assert container.cpus is not None
            own |= set(container.cpus)
    return total + 1000 * len(own)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(RULES), budget_pods())
def test_a_pod_never_uses_more_than_its_budget_and_never_throttles_exclusive_cpus(
    rules: EffectivePolicy, asked: Pod
) -> None:
    decision = admit(rules, rules.empty_ledger(), asked)
    assume(decision.allocation is not None)
    allocation = decision.allocation
    assert allocation is not None
    quotas = pod_quotas(allocation)
    limit = allocation.cpu.limit_millis
    assert limit is not None
    unthrottled = [c for c in allocation.containers if c.isolation is Isolation.CONTAINER]
    for container in unthrottled:
        assert quotas.containers[container.name] == UNLIMITED
    if not unthrottled:
        assert quotas.pod == cpu_max(limit)
        return
    for running in times(allocation):
        used = most(running, quotas)
        asleep = [c for c in running if not c.cpu.request_millis]
        assert used <= limit + LEAST * len(asleep)
        if quotas.pod != UNLIMITED:
            assert used < limit


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(RULES), budget_pods())
def test_every_container_may_use_what_it_requests_and_no_more_than_its_limit(
    rules: EffectivePolicy, asked: Pod
) -> None:
    decision = admit(rules, rules.empty_ledger(), asked)
    assume(decision.allocation is not None)
    assert decision.allocation is not None
    quotas = pod_quotas(decision.allocation)
    for container in decision.allocation.containers:
        cap = quotas.containers[container.name]
        assert cap is not None
        assert cap.allows(cpu_max(container.cpu.request_millis or 1))
        if container.cpu.limit_millis and not container.quota_disabled:
            assert cpu_max(container.cpu.limit_millis).allows(cap)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | st.integers(10, 2500), min_size=1, max_size=6), st.integers(0, 9000))
def test_what_is_left_is_given_out_where_a_container_has_no_limit(
    limits: list[int | None], more: int
) -> None:
    others = [on_host(f"c{n}", limit=limit) for n, limit in enumerate([*limits, None])]
    allocation = pod(exclusive("x", "2-3"), *others, limit=2000 + LEAST * len(others) + more)
    assert allocation.cpu.limit_millis is not None
    used = most(allocation.containers, pod_quotas(allocation))
    assert allocation.cpu.limit_millis - 2 * len(others) < used <= allocation.cpu.limit_millis

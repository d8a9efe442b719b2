from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import (
    ContainerAllocation,
    CpuLimits,
    Isolation,
    Origin,
    PodAllocation,
)
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
    from collections.abc import Iterator, Mapping, Sequence

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


# Shows in differences.md: quota-period
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


INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR
MAX: Final = UNLIMITED.quota_us
#: What a pod has, and the quotas in microseconds of its cgroup and of some of its containers.
QUOTAS: Final[Mapping[str, tuple[PodAllocation, int | None, dict[str, int | None]]]] = {
    "exclusive CPUs with the gate off": (
        pod(exclusive("db", "2-5", quota=True), limit=4000), 400_000, {"db": 400_000},
    ),
    "containers that share the pod's CPUs": (
        pod(pod_shared("a", "6-7", limit=500), pod_shared("b", "6-7"), cpus="2-7", limit=6000),
        600_000, {"a": 50_000, "b": 600_000},
    ),
    "containers that share the node's CPUs": (
        pod(on_host("a", limit=250), on_host("b"), limit=2000), 200_000,
        {"a": 25_000, "b": 200_000},
    ),
    "a slice and a pool that use up the budget": (
        pod(exclusive("a", "2-3"), pod_shared("b", "4-5"), cpus="2-5", limit=4000), MAX,
        {"a": MAX},
    ),
    # A Burstable pod, whose limit is the sum over its containers.
    "an exclusive container beside others with limits": (
        pod(exclusive("db", "2-3"), on_host("a", request=250, limit=1000),
            on_host("b", limit=500), limit=3500),
        MAX, {"db": MAX, "a": 100_000, "b": 50_000},
    ),
    "an exclusive container beside one without a limit": (
        pod(exclusive("db", "2-3"), on_host("a", limit=1000), on_host("b")),
        MAX, {"db": MAX, "a": 100_000},
    ),
    # Of 4 CPUs an init container has 3 while the sidecar runs beside it; later an app has 1.
    "a sidecar beside an init container and an app": (
        pod(on_host("proxy", kind=SIDECAR), exclusive("setup", "1-3", kind=INIT),
            exclusive("db", "1"), on_host("web"), limit=4000),
        MAX, {"proxy": 100_000, "web": 200_000},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", QUOTAS)
def test_a_pod_and_its_containers_have_their_own_limit_or_else_the_pods(case: str) -> None:
    allocation, of_pod, of_containers = QUOTAS[case]
    quotas = pod_quotas(allocation)
    assert quotas.pod == CpuMax(of_pod)
    found = {name: quotas.containers[name] for name in of_containers}
    assert found == {name: CpuMax(quota) for name, quota in of_containers.items()}


def test_without_any_limit_a_container_keeps_what_its_runtime_set() -> None:
    quotas = pod_quotas(pod(on_host("a")))
    assert (quotas.pod, quotas.containers["a"]) == (UNLIMITED, None)


class TestWhatExclusiveCpusLeaveOfABudget:
    """Container scope: the others run on the host's CPUs, each with a quota of its own."""

    #: Who shares what is left beside the CPUs of `x`, of which budget, and the quotas.
    LEFT: Final[Mapping[str, tuple[str, list[ContainerAllocation], int, dict[str, int]]]] = {
        # The example of the documentation: a budget of 4, a sidecar of 2, two workers.
        "divided evenly where nothing is said": (
            "2-3", [on_host("a"), on_host("b")], 4000, {"a": 100_000, "b": 100_000},
        ),
        "what one container alone may use": ("2-4", [on_host("a")], 5000, {"a": 200_000}),
        "to stated limits first and the rest to the others": (
            "2-4", [on_host("a", limit=1500), on_host("b"), on_host("c")], 6000,
            {"a": 150_000, "b": 75_000, "c": 75_000},
        ),
        "a tenth of a CPU to those who ask for nothing": (
            "2-4", [on_host("a", limit=3000), on_host("b")], 6000, {"a": 290_000, "b": 10_000},
        ),
        "every request before anything else": (
            "2-4", [on_host("a", limit=3000), on_host("b", request=2500)], 6000,
            {"a": 50_000, "b": 250_000},
        ),
        "the least that the kernel takes where nothing is left": (
            "2-4", [on_host("a")], 3000, {"a": 1000},
        ),
        # 2 CPUs are left once the pod is up, but the init container leaves half a CPU.
        "to sidecars only as far as init containers spare it": (
            "2-3", [on_host("a", kind=SIDECAR), on_host("b", kind=INIT, request=3500)], 4000,
            {"a": 50_000, "b": 350_000},
        ),
        "all to sidecars after the init container": (
            "2-3", [on_host("a", kind=INIT, request=4000), on_host("b", kind=SIDECAR)], 4000,
            {"a": 400_000, "b": 200_000},
        ),
    }  # fmt: skip

    # Shows in differences.md: budget-quota, shared-limits
    @pytest.mark.parametrize("case", LEFT)
    def test_is_given(self, case: str) -> None:
        own, others, limit, expected = self.LEFT[case]
        quotas = pod_quotas(pod(*others, exclusive("x", own), limit=limit))
        assert quotas.containers == {
            "x": UNLIMITED,
            **{name: CpuMax(quota) for name, quota in expected.items()},
        }
        assert quotas.pod == UNLIMITED

    def test_is_the_quota_of_a_cgroup_that_is_not_identified(self) -> None:
        allocation = pod(exclusive("a", "2-4"), on_host("b"), on_host("c"), limit=5000)
        assert pod_quotas(allocation).unidentified == CpuMax(200_000)
        pooled = pod(exclusive("a", "2-3"), pod_shared("b", "4-5"), cpus="2-5", limit=4000)
        assert pod_quotas(pooled).unidentified is None
        assert pod_quotas(pooled).ephemeral == CpuMax(400_000)

    def test_leaves_an_unidentified_cgroup_the_pods_bound_where_nothing_is_left(self) -> None:
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


def test_the_quota_of_an_imported_pod_is_left_alone_until_its_limit_is_known() -> None:
    imported = replace(pod(on_host("a")), origin=Origin.IMPORTED)
    assert pod_quotas(imported).pod is None
    known = replace(imported, cpu=CpuLimits(1500, 1500))
    assert pod_quotas(known).pod == CpuMax(150_000)


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


# Shows in differences.md: budget-quota
@settings(max_examples=200, deadline=None)
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


# Shows in differences.md: shared-limits
@settings(max_examples=200, deadline=None)
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

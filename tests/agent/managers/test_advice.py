"""Every piece of advice was tried: doing what it says admits the pod."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.advice import AdviceKind
from agent.managers.machine import Machine
from agent.managers.policy import MemoryManagerPolicy, MemoryPolicy
from agent.managers.rules import restored
from agent.managers.trials import (
    MOST_TRIALS,
    advise,
    budget_of,
    weaker_policies,
    with_larger_budget,
)
from agent.pods.changes import with_amount, with_limits_as_requests
from agent.pods.model import REQUIRE
from sysfs.described import regular_host
from tests.agent.config.machines import machine
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    GIB,
    NO_POLICY,
    POD,
    RESTRICTED,
    SINGLE,
    SMT,
    make_rules,
)
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod, resources

if TYPE_CHECKING:
    from agent.managers.advice import Advice
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.policy import TopologyManagerPolicy
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod

#: How many sequences of pods; each has about two rejections (`make nightly`).
_SEQUENCES: Final = int(os.environ.get("NUMAWARDEN_SEQUENCES", "200"))


def advice_on(rules: EffectivePolicy, ledger: Ledger, asked: Pod) -> list[Advice]:
    return [each for each in advise(rules, ledger, asked) if each is not None]


def done(rules: EffectivePolicy, ledger: Ledger, asked: Pod, advice: Advice) -> Decision:
    """Do what the advice says and decide again."""
    if advice.kind is AdviceKind.END:
        for uid in advice.uids:
            assert uid in ledger.allocations
            ledger = remove(rules, ledger, uid)
    elif advice.kind is AdviceKind.BUDGET:
        asked, _ = with_larger_budget(rules, ledger, asked)
        assert budget_of(rules, asked, advice.resource) == advice.amount
    elif advice.kind is AdviceKind.GUARANTEED:
        asked = with_limits_as_requests(asked)
    elif advice.kind is AdviceKind.REQUEST:
        asked = with_amount(asked, advice.container, advice.resource, advice.amount)
    else:
        (policy,) = [
            change.policy
            for change in weaker_policies(rules)
            if (change.key, change.value) == (advice.key, advice.value)
        ]
        rules = replace(rules, policy=policy)
        ledger = restored(rules, ledger)
    return admit(rules, ledger, asked)


def named(name: str, *containers: Container) -> Pod:
    return replace(pod(*containers, uid=name), name=name)


def texts(rules: EffectivePolicy, asked: Pod, *others: Pod) -> list[str]:
    ledger = rules.empty_ledger()
    for other in others:
        ledger = with_pod(rules, other, ledger)
    assert not admit(rules, ledger, asked).admitted
    found = advice_on(rules, ledger, asked)
    for advice in found:
        assert done(rules, ledger, asked, advice).admitted, advice
    return [advice.text for advice in found]


BIG: Final = pod(app("main", guaranteed("cpu=9 memory=1Gi")))


def test_a_pod_too_wide_for_one_node_hears_of_a_policy_and_of_what_one_node_has() -> None:
    assert texts(make_rules(topology=SINGLE), BIG) == [
        "topologyManagerPolicy: best-effort (CPUs on nodes 0-1, memory on nodes 0-1: spread)",
        "request 8 of cpu in container main instead of 9",
    ]


def test_a_reservation_that_fills_the_only_node_with_cpus_is_named() -> None:
    host = machine(dict.fromkeys(range(4), GIB), cpu_nodes=(0,))
    small = pod(app("main", guaranteed("cpu=1 memory=256Mi")))
    full = MemoryPolicy(MemoryManagerPolicy.STATIC, {0: {"memory": GIB}})
    rules = make_rules(host, SINGLE)
    rules = replace(rules, policy=replace(rules.policy, memory=full))
    assert (
        "reservedMemory: [] (the agent divides the reservation, and leaves pods 512 MiB of memory "
        "on node 0)"
    ) in texts(rules, small)
    some = replace(full, reserved={0: {"memory": GIB - (200 << 20)}})
    rules = replace(rules, policy=replace(rules.policy, memory=some))
    assert not any("reservedMemory" in text for text in texts(rules, small))


def test_a_part_of_a_core_hears_of_whole_cores_above_and_below_it() -> None:
    rules = make_rules(SMT, NO_POLICY, memory=False, full_pcpus_only=True, reserved="")
    part = (
        'cpuManagerPolicyOptions["full-pcpus-only"]: false (containers may share a physical core)'
    )
    of = "of cpu in container main instead of 5"
    five = pod(app("main", guaranteed("cpu=5 memory=1Gi")))
    assert texts(rules, five) == [part, f"request 4 {of}", f"request 6 {of}"]
    others = pod(app("main", guaranteed("cpu=12 memory=1Gi")), uid="u2")
    assert texts(rules, five, others)[0] == f"request 4 {of}"


def test_the_end_of_a_pod_that_makes_room_is_advised_and_no_other() -> None:
    rules = make_rules(topology=RESTRICTED, scope=CONTAINER, memory=False)
    large = named("large", app("main", guaranteed("cpu=7 memory=1Gi")))
    small = named("small", app("main", resources("cpu=500m")))
    rest = named("rest", app("main", guaranteed("cpu=6 memory=1Gi")))
    found = texts(rules, pod(app("main", guaranteed("cpu=4 memory=1Gi"))), large, small, rest)
    assert found == [
        "request 2 of cpu in container main instead of 4",
        "end pod default/rest",
        "end pod default/large",
    ]


def test_several_pods_that_must_end_together_are_advised_together() -> None:
    rules = make_rules(topology=NO_POLICY, memory=False)
    names = ("one", "two", "three")
    others = [named(name, app("main", guaranteed("cpu=4 memory=1Gi"))) for name in names]
    found = texts(rules, pod(app("main", guaranteed("cpu=9 memory=1Gi"))), *others)
    assert found == [
        "request 3 of cpu in container main instead of 9",
        "end pods default/three, default/two",
    ]


def test_a_pod_scope_that_cannot_be_is_given_up_for_that_of_its_containers() -> None:
    rules = make_rules(topology=SINGLE, scope=POD, memory=False)
    two = pod(
        app("one", guaranteed("cpu=5 memory=1Gi")), app("two", guaranteed("cpu=5 memory=1Gi"))
    )
    assert (
        "topologyManagerScope: container (each container is aligned by itself, not the pod as a "
        "whole)"
    ) in texts(rules, two)


class TestOfABudgetThatLeavesNothingToShare:
    """One container has all of it, the other asks for nothing: pod scope rejects the pod."""

    RULES = make_rules(
        Machine.of(regular_host(cores_per_node=8, threads=1, hugepages=[(2 << 20, 512)])),
        BEST_EFFORT,
        POD,
    )
    DPDK = guaranteed("cpu=2 memory=1Gi hugepages-2Mi=64Mi")

    # Shows in differences.md: empty-huge-pages
    @pytest.mark.parametrize("policy", [BEST_EFFORT, RESTRICTED, SINGLE])
    def test_all_that_is_lacking_is_advised_together(self, policy: TopologyManagerPolicy) -> None:
        rules = make_rules(self.RULES.machine, policy, POD)
        asked = pod(app("a", self.DPDK), app("b"), of_pod=self.DPDK)
        assert (
            "request 3 of cpu instead of 2 and 1.06 GiB of memory instead of 1 GiB and 66 MiB of "
            "hugepages-2Mi instead of 64 MiB in the pod's budget, for the containers that share it"
        ) in texts(rules, asked)


def test_a_burstable_pod_that_requires_exclusive_cpus_is_advised_to_be_guaranteed() -> None:
    required = MappingProxyType({REQUIRE: "exclusive"})
    asked = replace(pod(app("a", resources("cpu=2 memory=1Gi"))), annotations=required)
    advice = "limit cpu and memory of each container to what it requests (QoS class Guaranteed)"
    assert advice in texts(make_rules(), asked)
    without_memory = replace(pod(app("a", resources("cpu=2"))), annotations=required)
    assert advice not in texts(make_rules(), without_memory)


@pytest.mark.parametrize(
    ("cpu", "quality", "advice"),
    [
        ("500m", "exclusive", "request 1 of cpu in container a instead of 500m"),
        ("1500m", "exclusive,whole-cores", "request 2 of cpu in container a instead of 1500m"),
        ("1", "whole-cores", "request 2 of cpu in container a instead of 1"),
        ("500m", "whole-cores", "request 2 of cpu in container a instead of 500m"),
    ],
)
def test_what_requires_cpus_of_its_own_is_advised_to_ask_for_whole_ones(
    cpu: str, quality: str, advice: str
) -> None:
    rules = make_rules(Machine.of(regular_host(cores_per_node=4, threads=2)))
    asked = pod(app("a", guaranteed(f"cpu={cpu} memory=1Gi")))
    asked = replace(asked, annotations=MappingProxyType({REQUIRE: quality}))
    assert texts(rules, asked)[0] == advice


def test_a_smaller_request_that_would_run_in_the_shared_pool_is_not_advised() -> None:
    """One CPU fewer of a pod-level budget leaves its container without exclusive CPUs."""
    rules = make_rules(topology=SINGLE)
    for advice in advice_on(rules, rules.empty_ledger(), BIG):
        allocation = done(rules, rules.empty_ledger(), BIG, advice).allocation
        assert allocation is not None
        assert allocation.containers[0].cpus


def test_trials_are_bounded_on_a_full_host() -> None:
    rules = make_rules(topology=BEST_EFFORT, memory=False)
    ledger = rules.empty_ledger()
    for number in range(300):
        ledger = with_pod(rules, pod(app("main"), uid=f"u{number}"), ledger)
    huge = pod(app("main", guaranteed("cpu=640 memory=1Gi")))
    assert len(list(advise(rules, ledger, huge))) <= MOST_TRIALS
    assert len(list(advise(rules, ledger, huge, most=3))) == 3


@pytest.mark.timeout(max(300, _SEQUENCES))
@settings(EVERY_SEQUENCE, max_examples=_SEQUENCES)
@given(rules=rule_sets(), asked=st.lists(pods(), min_size=4, max_size=10))
def test_doing_what_any_advice_says_admits_the_rejected_pod(
    rules: EffectivePolicy, asked: list[Pod]
) -> None:
    ledger = rules.empty_ledger()
    for number, each in enumerate(asked):
        numbered = replace(each, uid=f"u-{number}")
        admission = admit(rules, ledger, numbered)
        for advice in () if admission.admitted else advice_on(rules, ledger, numbered):
            assert done(rules, ledger, numbered, advice).admitted, advice
        ledger = admission.ledger

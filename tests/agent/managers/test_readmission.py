from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocations.ledger import MemoryBlock
from agent.managers.policy import Policy
from agent.managers.readmission import NotMatchedError, match_imported
from sysfs.mask import Mask
from tests.agent.managers.hosts import CONTAINER, GIB, RESTRICTED, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources

if TYPE_CHECKING:
    from agent.managers.allocations.ledger import PodAllocation
    from agent.pods.model import Pod

RULES = make_rules(scope=CONTAINER)
BUDGETS = make_rules(topology=RESTRICTED)
PLAIN = pod(init("setup", guaranteed("cpu=2 memory=2Gi")), app("a", guaranteed("cpu=1 memory=1Gi")))
BUDGET = pod(app("a", guaranteed("cpu=1 memory=1Gi")), app("b"),
             of_pod=guaranteed("cpu=3 memory=4Gi"))  # fmt: skip


def imported(asked: Pod, in_scope_of_pod: bool = False) -> PodAllocation:  # noqa: FBT001, FBT002
    rules = BUDGETS if in_scope_of_pod else RULES
    allocation = admit(rules, rules.empty_ledger(), asked).allocation
    assert allocation is not None
    return replace(allocation, spec_digest="", name=allocation.uid)


def differences(
    allocation: PodAllocation, asked: Pod, policy: Policy = RULES.policy
) -> tuple[str, ...]:
    with pytest.raises(NotMatchedError) as caught:
        match_imported(policy, allocation, asked)
    return caught.value.differences


def test_what_was_decided_for_a_specification_is_confirmed_by_it() -> None:
    for asked, rules in ((PLAIN, RULES), (BUDGET, BUDGETS)):
        decided = admit(rules, rules.empty_ledger(), asked).allocation
        assert decided is not None
        assert (
            match_imported(rules.policy, replace(decided, spec_digest="", name="?"), asked)
            == decided
        )


def test_a_later_container_may_hold_what_an_init_container_had() -> None:
    allocation = imported(PLAIN)
    setup, a = allocation.containers
    for blocks in ((), (MemoryBlock("memory", GIB, Mask.of(0)),)):
        over = replace(allocation, containers=(replace(setup, memory=blocks), a))
        assert match_imported(RULES.policy, over, PLAIN).containers[0].memory == blocks
    more = (MemoryBlock("memory", 3 * GIB, Mask.of(0)),)
    (problem,) = differences(
        replace(allocation, containers=(replace(setup, memory=more), a)), PLAIN
    )
    assert problem.startswith("container setup asks for ")


def test_an_app_must_hold_exactly_the_memory_that_it_asks_for() -> None:
    allocation = imported(PLAIN)
    setup, a = allocation.containers
    (problem,) = differences(replace(allocation, containers=(setup, replace(a, memory=()))), PLAIN)
    assert problem == (
        f"container a asks for {GIB} bytes of memory to be pinned, allocated is nothing"
    )


def test_a_budget_must_be_the_allocated_one() -> None:
    allocation = imported(BUDGET, in_scope_of_pod=True)
    larger = replace(BUDGET, resources=guaranteed("cpu=4 memory=5Gi"))
    problems = differences(allocation, larger, BUDGETS.policy)
    assert [problem.split(" of ")[0] for problem in problems] == [
        "it has a pod-level budget",
        "it has a pod-level budget",
    ]
    plain = replace(BUDGET, resources=None)
    assert any(
        "budget of 0 exclusive CPUs" in p for p in differences(allocation, plain, BUDGETS.policy)
    )


def test_exclusive_cpus_that_are_asked_for_but_not_allocated_are_a_difference() -> None:
    allocation = imported(pod(app("a", guaranteed("cpu=500m memory=1Gi"))))
    (problem,) = differences(allocation, pod(app("a", guaranteed("cpu=2 memory=1Gi"))))
    assert problem == "container a asks for 2 exclusive CPUs, allocated are none"


def test_what_no_manager_gives_is_not_compared() -> None:
    allocation = imported(PLAIN)
    other = pod(init("setup"), app("a", resources("cpu=1")))
    assert (
        match_imported(Policy(), allocation, other).containers[0].cpus
        == allocation.containers[0].cpus
    )

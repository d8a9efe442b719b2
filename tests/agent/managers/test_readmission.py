from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import MemoryBlock, Origin
from agent.managers.decision import Reason
from agent.managers.memory.state import memory_charge
from agent.managers.policy import PluginDevice, Policy
from agent.managers.readmission import NotMatchedError, match_imported
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, rejected
from tests.agent.managers.hosts import CONTAINER, GIB, RESTRICTED, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

RULES = make_rules(scope=CONTAINER)
BUDGETS = make_rules(topology=RESTRICTED)
names = st.sampled_from(["", "imported", "recovered", "default"]) | st.text(max_size=4)
PLAIN = pod(init("setup", guaranteed("cpu=2 memory=2Gi")), app("a", guaranteed("cpu=1 memory=1Gi")))
BUDGET = pod(app("a", guaranteed("cpu=1 memory=1Gi")), app("b"),
             of_pod=guaranteed("cpu=3 memory=4Gi"))  # fmt: skip


def imported(asked: Pod, in_scope_of_pod: bool = False) -> PodAllocation:  # noqa: FBT001, FBT002
    rules = BUDGETS if in_scope_of_pod else RULES
    allocation = allocated(rules, asked)
    return replace(allocation, spec_digest="", name="", namespace="", origin=Origin.IMPORTED)


def differences(
    allocation: PodAllocation, asked: Pod, rules: EffectivePolicy = RULES
) -> tuple[str, ...]:
    with pytest.raises(NotMatchedError) as caught:
        match_imported(rules, allocation, rules.demand(asked))
    return caught.value.differences


def test_what_was_decided_for_a_specification_is_confirmed_by_it() -> None:
    for asked, rules in ((PLAIN, RULES), (BUDGET, BUDGETS)):
        decided = allocated(rules, asked)
        imported = replace(decided, spec_digest="", name="?", origin=Origin.IMPORTED)
        assert match_imported(rules, imported, rules.demand(asked)) == decided


@given(st.sampled_from(Origin), st.sampled_from((PLAIN, BUDGET)), names, names)
def test_no_name_or_namespace_of_an_allocation_changes_the_decision_on_its_pod(
    origin: Origin, asked: Pod, name: str, namespace: str
) -> None:
    """Whatever is known of the pod's name: decided, imported and recovered are said by `origin`."""
    ledger = admit(RULES, RULES.empty_ledger(), asked).ledger
    (known,) = ledger.allocations.values()
    digest = known.spec_digest if origin is Origin.DECIDED else ""

    def readmitted(name: str, namespace: str) -> Decision:
        existing = replace(known, origin=origin, spec_digest=digest, name=name, namespace=namespace)
        again = replace(asked, name=name or "p", namespace=namespace or "default")
        return admit(RULES, ledger.with_allocation(existing), again)

    one, other = readmitted("web", "shop"), readmitted(name, namespace)
    assert (one.admitted, one.already_admitted) == (other.admitted, other.already_admitted)
    assert one.admitted or origin is Origin.RECOVERED  # of which cgroups may show too little
    if one.allocation is not None:
        assert other.allocation is not None
        assert other.allocation.origin is Origin.DECIDED
        assert replace(other.allocation, name="web", namespace="shop") == one.allocation
        assert memory_charge(other.ledger) == memory_charge(one.ledger)


# Shows in differences.md: same-pod
@pytest.mark.parametrize("origin", Origin)
def test_a_specification_that_does_not_fit_is_a_conflict_and_changes_nothing(
    origin: Origin,
) -> None:
    ledger = admit(RULES, RULES.empty_ledger(), PLAIN).ledger
    (known,) = ledger.allocations.values()
    digest = known.spec_digest if origin is Origin.DECIDED else ""
    ledger = ledger.with_allocation(replace(known, origin=origin, spec_digest=digest))
    rejection = rejected(RULES, pod(app("a", guaranteed("cpu=7 memory=1Gi"))), ledger)
    assert rejection.reason is Reason.CONFLICT


def test_a_later_container_may_hold_what_an_init_container_had_but_no_app_less() -> None:
    allocation = imported(PLAIN)
    setup, a = allocation.containers

    def holding(gib: int) -> PodAllocation:
        memory = (MemoryBlock("memory", gib * GIB, Mask.of(0)),) if gib else ()
        return replace(allocation, containers=(replace(setup, memory=memory), a))

    for gib in (0, 1):
        over = holding(gib)
        matched = match_imported(RULES, over, RULES.demand(PLAIN))
        assert matched.containers[0].memory == over.containers[0].memory
    (problem,) = differences(holding(3), PLAIN)
    assert problem.startswith("container setup asks for ")
    lacking = replace(allocation, containers=(setup, replace(a, memory=())))
    assert differences(lacking, PLAIN) == (
        f"container a asks for {GIB} bytes of memory to be pinned, allocated is nothing",
    )


def test_a_budget_must_be_the_allocated_one() -> None:
    allocation = imported(BUDGET, in_scope_of_pod=True)
    larger = replace(BUDGET, resources=guaranteed("cpu=4 memory=5Gi"))
    problems = differences(allocation, larger, BUDGETS)
    assert [problem.split(" of ")[0] for problem in problems] == [
        "it has a pod-level budget",
        "it has a pod-level budget",
    ]
    plain = replace(BUDGET, resources=None)
    assert any("budget of 0 exclusive CPUs" in p for p in differences(allocation, plain, BUDGETS))


def test_what_no_manager_gives_or_no_import_knows_is_not_compared() -> None:
    allocation = imported(PLAIN)
    other = pod(init("setup"), app("a", resources("cpu=1")))
    rules = replace(RULES, policy=Policy())
    (_, found) = match_imported(rules, allocation, rules.demand(other)).containers
    assert found.cpus == allocation.containers[1].cpus
    gpu = "example.com/gpu"
    rules = make_rules(scope=CONTAINER, devices={gpu: (PluginDevice("g0"),)})
    asked = pod(app("a", guaranteed(f"cpu=1 memory=1Gi {gpu}=1")))
    allocation = imported(pod(app("a", guaranteed("cpu=1 memory=1Gi"))))
    (container,) = match_imported(rules, allocation, rules.demand(asked)).containers
    assert (container.devices, container.cpus) == ({}, allocation.containers[0].cpus)

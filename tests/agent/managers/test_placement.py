"""Which of the sets of nodes that the policy holds equal a pod gets (`agent.placement`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.machine import Machine
from agent.pods.model import MEMORY, PLACEMENT, Placement
from agent.pods.validation import find_problems
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, POD, RESTRICTED, SINGLE, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

FOUR: Final = Machine.of(regular_host(packages=4, cores_per_node=8, threads=1))


def placing(rules: EffectivePolicy, placement: Placement) -> EffectivePolicy:
    topology = replace(rules.policy.topology, placement=placement)
    return replace(rules, policy=replace(rules.policy, topology=topology))


def asking(number: int, cpus: int = 2, placement: str = "") -> Pod:
    annotations = {PLACEMENT: placement} if placement else None
    container = app("main", guaranteed(f"cpu={cpus} memory=1Gi"))
    return pod(container, uid=f"u-{number}", annotations=annotations)


# Shows in differences.md: placement
@pytest.mark.parametrize("scope", [CONTAINER, POD])
@pytest.mark.parametrize("policy", [BEST_EFFORT, RESTRICTED, SINGLE])
def test_equal_pods_are_spread_evenly_and_packed_on_the_lowest_node(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope
) -> None:
    for placement, expected in ((Placement.SPREAD, [2, 2, 2, 2]), (Placement.PACKED, [3, 4, 1, 0])):
        rules = placing(make_rules(FOUR, policy, scope), placement)
        ledger, found = rules.empty_ledger(), [0, 0, 0, 0]
        for number in range(8):
            ledger = with_pod(rules, asking(number), ledger)
            cpus = ledger.allocations[f"u-{number}"].exclusive_cpus
            [node] = rules.machine.cpus.nodes_of(cpus)
            found[node] += 1
        assert (placement, found) == (placement, expected)


def test_an_annotation_wins_over_the_configuration() -> None:
    for placement, cpus in (("packed", "1-2"), ("spread", "8-9")):
        for configured in Placement:  # of node 0 a CPU is reserved, so that node 1 has more
            rules = placing(make_rules(), configured)
            found = allocated(rules, asking(1, placement=placement))
            assert found.exclusive_cpus == Mask.parse(cpus)
    [mistake] = find_problems(asking(1, placement="even"))
    assert str(mistake).endswith("'even' is not one of packed, spread")


def test_memory_counts_where_cpus_are_equal() -> None:
    rules = placing(make_rules(reserved="0,8"), Placement.SPREAD)
    memory = pod(app("main", guaranteed("cpu=500m memory=4Gi")), uid="u-0")
    ledger = with_pod(rules, memory)
    assert str(ledger.allocations["u-0"].containers[0].mems) == "0"
    assert allocated(rules, asking(1), ledger).exclusive_cpus == Mask.parse("9-10")


@pytest.mark.parametrize("scope", [CONTAINER, POD])
def test_nodes_that_others_leave_enough_come_first_where_pods_are_spread(
    scope: TopologyManagerScope,
) -> None:
    gib = 1 << 30
    left = {0: {MEMORY: 9 * gib}, 1: {MEMORY: gib // 2}, 2: {MEMORY: 9 * gib}}
    for placement, available, cpus in (
        (Placement.SPREAD, {}, "8-9"),  # of node 0 a CPU is reserved
        (Placement.SPREAD, left, "16-17"),
        (Placement.SPREAD, left | {3: {MEMORY: 0}}, "16-17"),
        (Placement.SPREAD, left | {2: {MEMORY: 0}}, "24-25"),  # what node 3 has is not known
        (Placement.SPREAD, {node: {MEMORY: 0} for node in range(4)}, "8-9"),
        (Placement.PACKED, {0: {MEMORY: 0}}, "1-2"),
    ):
        rules = placing(make_rules(FOUR, SINGLE, scope), placement)
        found = allocated(rules, replace(asking(1), available=available))
        assert found.exclusive_cpus == Mask.parse(cpus)


@given(drawn=rule_sets(), asked=st.lists(pods(), min_size=1, max_size=3))
@EVERY_SEQUENCE
def test_on_an_empty_host_it_admits_what_packing_admits_on_as_many_nodes(
    drawn: EffectivePolicy, asked: list[Pod]
) -> None:
    for each in asked:
        if len(each.all_containers()) != 1:
            continue
        nodes = []
        for placement in Placement:
            rules = placing(drawn, placement)
            decision = admit(rules, rules.empty_ledger(), each)
            cpus = None if decision.allocation is None else decision.allocation.exclusive_cpus
            nodes.append(None if cpus is None else len(drawn.machine.cpus.nodes_of(cpus)))
        assert nodes[0] == nodes[1]

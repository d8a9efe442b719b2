"""How many pods fit, and how fragmented what is free is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.managers.admission import admit
from agent.managers.advice import fill, free_cpus, nodes_of
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.policy import NodeFit, Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import PLAIN, RESTRICTED, SINGLE, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.pods.model import Pod


def asking(cpus: int, uid: str = "u-1") -> Pod:
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid)


def test_copies_fill_the_host_and_the_first_that_does_not_fit_is_the_last() -> None:
    rules = make_rules(topology=SINGLE)
    decisions = list(fill(rules, rules.empty_ledger(), asking(3)))
    assert [decision.admitted for decision in decisions] == [True] * 4 + [False]
    assert [
        str(nodes_of(rules, decision.allocation))
        for decision in decisions
        if decision.allocation is not None
    ] == ["0", "0", "1", "1"]


def test_a_pod_that_is_admitted_already_fits_as_often_as_another() -> None:
    rules = make_rules(topology=SINGLE)
    ledger = with_pod(rules, asking(3))
    same, other = (list(fill(rules, ledger, asking(3, uid))) for uid in ("u-1", "u-2"))
    assert len(same) == len(other)


def test_what_is_spread_over_nodes_is_fragmented() -> None:
    """7 CPUs are free, 4 and 3 on the nodes: one node could give all 7, and gives 4."""
    rules = make_rules(topology=RESTRICTED, memory=False)
    ledger = with_pod(rules, asking(5), with_pod(rules, asking(3, "u-2")))
    free = free_cpus(rules, ledger)
    assert (free.free, free.on_one_node, free.fragmentation) == (7, 4, 1 - 4 / 7)


@settings(EVERY_SEQUENCE)
@given(rules=rule_sets(), others=st.lists(pods(), max_size=4))
def test_the_figures_agree_with_counting(rules: EffectivePolicy, others: list[Pod]) -> None:
    ledger = rules.empty_ledger()
    for number, other in enumerate(others):
        one = pod(*other.all_containers(), of_pod=other.resources, uid=f"u-{number}")
        ledger = admit(rules, ledger, one).ledger
    rows = rules.machine.cpus.rows
    taken = {*exclusive_cpus(ledger), *rules.policy.cpu.reserved}
    free = {row.cpu for row in rows} - taken
    nodes = {row.node for row in rows}
    by_node = [len({row.cpu for row in rows if row.node == node} & free) for node in nodes]
    by_core: dict[int, set[int]] = {}
    for row in rows:
        by_core.setdefault(row.core, set()).add(row.cpu)
    found = free_cpus(rules, ledger)
    assert found.free == len(free)
    assert found.on_one_node == max(by_node)
    assert found.whole_cores == sum(len(core) for core in by_core.values() if core <= free)
    assert 0 <= found.fragmentation < 1


# --- what pods may request of a node, against amounts worked out by hand --------------------------


@pytest.mark.parametrize(
    ("most", "per_core", "pods", "by"),
    [
        (110, 0, 110, ("maxPods",)),
        (110, 10, 110, ("maxPods",)),
        (110, 5, 80, ("podsPerCore",)),
        (160, 10, 160, ("maxPods", "podsPerCore")),
    ],
)
def test_the_lower_limit_of_pods_holds(
    most: int, per_core: int, pods: int, by: tuple[str, ...]
) -> None:
    found = EffectivePolicy(
        PLAIN, Policy(fit=NodeFit(max_pods=most, pods_per_core=per_core)), MANAGERS
    ).allocatable
    assert found is not None
    assert (found.pods, found.limited_by) == (pods, by)

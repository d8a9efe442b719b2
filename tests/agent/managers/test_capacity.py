"""How many pods fit, and how fragmented what is free is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.admission import admit
from agent.managers.capacity import fill, free_cpus, nodes_of
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.policy import NodeFit, Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import PLAIN, SINGLE, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.pods.model import Pod


def asking(cpus: int, uid: str = "u-1") -> Pod:
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid)


def test_copies_fill_the_host_and_the_first_that_does_not_fit_is_the_last() -> None:
    rules = make_rules(topology=SINGLE)
    decisions = list(fill(rules, rules.empty_ledger(), asking(3)))
    given = [each.allocation and str(nodes_of(rules, each.allocation)) for each in decisions]
    assert given == ["0", "0", "1", "1", None]


def test_a_pod_that_is_admitted_already_fits_as_often_as_another() -> None:
    rules = make_rules(topology=SINGLE)
    ledger = with_pod(rules, asking(3))
    same, other = (list(fill(rules, ledger, asking(3, uid))) for uid in ("u-1", "u-2"))
    assert len(same) == len(other)


@EVERY_SEQUENCE
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
    assignable = {row.cpu for row in rows} - {*rules.policy.cpu.reserved}
    most = max(len({row.cpu for row in rows if row.node == node} & assignable) for node in nodes)
    expected = 1 - max(by_node) / min(len(free), most) if free else 0
    assert found.fragmentation == expected


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
    fit = NodeFit(max_pods=most, pods_per_core=per_core)
    found = EffectivePolicy(PLAIN, Policy(fit=fit), MANAGERS).allocatable
    assert found is not None
    assert (found.pods, found.limited_by) == (pods, by)

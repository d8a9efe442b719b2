from __future__ import annotations

import re

import pytest

from agent.managers.policy import CpuManagerPolicy, CpuPolicy, Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.tools.kubelet_state.cpu import cpu_problems, inert_budgets
from tests.agent.managers.hosts import PLAIN, make_rules
from tests.agent.tools.kubelet_state.machines import RULES, cpu_state

STRICT = make_rules(memory=False, strict_cpu_reservation=True)


@pytest.mark.parametrize(
    ("default", "containers", "pods"),
    [
        ("", {}, {}),
        ("0-15", {}, {}),
        ("0,3-15", {"u": {"a": "1-2"}}, {}),
        ("0,3-15", {"u": {"init": "1-2", "a": "1-2"}}, {}),
        ("0,5-15", {"u": {"a": "1"}}, {"u": "1-4"}),
        ("0,5-15", {}, {"u": "1-4"}),
        ("0-15", {}, {"u": "1-4"}),
    ],
)
def test_a_state_that_is_true_of_the_host_is_taken(
    default: str, containers: dict[str, dict[str, str]], pods: dict[str, str]
) -> None:
    assert cpu_problems(RULES, cpu_state(default, containers, pods)) == ()


@pytest.mark.parametrize(
    ("default", "containers", "pods", "reason"),
    [
        ("1-15", {}, {}, "lacks the reserved CPUs 0;"),
        ("", {"u": {"a": "0-15"}}, {}, r"\(empty\) lacks the reserved CPUs 0;"),
        ("0-15", {"u": {"a": "5"}}, {}, "container a of pod u holds CPUs 5 of the shared pool"),
        ("0-14", {}, {}, "CPUs 15 are online but neither shared nor allocated"),
        ("0-15", {"u": {"a": ""}}, {}, "container a of pod u holds a set of no CPUs; end the pod"),
        ("0-16", {}, {}, "CPUs 16 are in the state but not online"),
        ("0-4,6-15", {"u": {"a": "5"}, "v": {"b": "5"}}, {}, "pods u and v both hold CPUs 5"),
        ("0,5-15", {"u": {"a": "1"}, "v": {"b": "4"}}, {"u": "1-4"}, "both hold CPUs 4"),
        ("0,4-15", {"u": {"a": "1"}}, {"u": "1-4"}, "budget of pod u contains CPUs 4 of the"),
        ("0,4-15", {}, {"u": "1-4"}, "budget of pod u contains CPUs 4 of the shared pool"),
        ("0,5-15", {"u": {"a": "1-4"}}, {"u": "1-3"}, "holds CPUs 4 outside of its pod's budget"),
    ],
)
def test_a_contradiction_is_named(
    default: str, containers: dict[str, dict[str, str]], pods: dict[str, str], reason: str
) -> None:
    (problem,) = cpu_problems(RULES, cpu_state(default, containers, pods))
    assert re.search(reason, problem)


def test_with_strict_reservation_the_shared_pool_has_no_reserved_cpu_and_may_be_empty() -> None:
    assert cpu_problems(STRICT, cpu_state("1-15")) == ()
    assert cpu_problems(STRICT, cpu_state("", {"u": {"a": "1-15"}})) == ()
    (problem,) = cpu_problems(STRICT, cpu_state("0-15"))
    assert "contains the reserved CPUs 0" in problem
    (problem,) = cpu_problems(STRICT, cpu_state("1-15", {"u": {"a": "0"}}))
    assert "CPUs 0 are reserved for the system but allocated to pods" in problem


def test_another_policy_is_rejected_with_the_key_to_set() -> None:
    (problem,) = cpu_problems(RULES, cpu_state("", policy="none"))
    assert "cpuManagerPolicy: static" in problem
    none = EffectivePolicy(PLAIN, Policy(cpu=CpuPolicy(CpuManagerPolicy.NONE)), MANAGERS)
    assert cpu_problems(none, cpu_state("", policy="none")) == ()
    assert cpu_problems(none, cpu_state("", {"u": {"a": "1"}}, policy="none")) == (
        "pod u has exclusive CPUs under policy none",
    )


def test_budgets_need_the_gate() -> None:
    without = make_rules(memory=False, managed=False)
    (problem,) = cpu_problems(without, cpu_state("0,5-15", {"u": {"a": "1"}}, {"u": "1-4"}))
    assert "featureGates.PodLevelResourceManagers: true" in problem


def test_only_a_budget_without_containers_and_with_free_cpus_is_inert() -> None:
    state = cpu_state("0-9", {"u": {"a": "10"}}, {"u": "10", "v": "11", "w": "2-3", "x": "9-10"})
    assert inert_budgets(state) == {"w"}

from __future__ import annotations

import pytest

from agent.config.features import (
    GATES,
    IGNORED,
    LOCKED_ON,
    gate_problems,
    gates_of,
    ignored_gates,
)
from agent.managers.policy import FeatureGates


def test_defaults_are_those_of_kubernetes_1_36() -> None:
    assert gates_of({}) == FeatureGates(
        pod_level_resources=True,
        pod_level_resource_managers=False,
        disable_cpu_quota_with_exclusive_cpus=True,
        cpu_manager_policy_alpha_options=False,
        cpu_manager_policy_beta_options=True,
    )


@pytest.mark.parametrize("name", GATES)
def test_a_gate_that_is_set_is_so(name: str) -> None:
    for enabled in (True, False):
        assert getattr(gates_of({name: enabled}), GATES[name].field) is enabled


def test_a_whole_stage_can_be_switched_and_a_named_gate_wins() -> None:
    alpha = gates_of({"AllAlpha": True, "CPUManagerPolicyAlphaOptions": False})
    assert alpha.pod_level_resource_managers
    assert not alpha.cpu_manager_policy_alpha_options
    beta = gates_of({"AllBeta": False, "PodLevelResources": True})
    assert beta.pod_level_resources
    assert not beta.cpu_manager_policy_beta_options
    assert beta.disable_cpu_quota_with_exclusive_cpus


@pytest.mark.parametrize(
    ("gates", "gate", "words"),
    [
        ({"PodLevelResourceManager": True}, "PodLevelResourceManager", "did you mean"),
        ({"Qwx": True}, "Qwx", "unknown feature gate"),
        ({"CPUManagerPolicyOptions": False}, "CPUManagerPolicyOptions", "cannot be switched off"),
        (
            {"PodLevelResourceManagers": True, "PodLevelResources": False},
            "PodLevelResourceManagers",
            "needs PodLevelResources",
        ),
        ({"AllAlpha": True, "AllBeta": False}, "PodLevelResourceManagers", "needs"),
    ],
)
def test_gates_that_cannot_be_are_rejected(gates: dict[str, bool], gate: str, words: str) -> None:
    problems = dict(gate_problems(gates))
    assert list(problems) == [gate]
    assert words in problems[gate]


def test_other_gates_of_a_kubelet_are_accepted_and_named_as_ignored() -> None:
    gates = {"MemoryQoS": True, "NodeSwap": False, "MemoryManager": True, "AllAlpha": False}
    assert not list(gate_problems(gates))
    assert ignored_gates(gates) == ("MemoryQoS", "NodeSwap", "MemoryManager")


def test_no_gate_is_in_two_lists() -> None:
    assert LOCKED_ON.isdisjoint(GATES)
    assert IGNORED.isdisjoint({*GATES, *LOCKED_ON})

from __future__ import annotations

import gzip
import itertools
import json

import pytest

from agent.config.gates import GATES, OWN_GATES, gate_notes, gate_problems, gates_of
from agent.config.load import load_config
from agent.config.model import Config
from agent.config.policy_options import (
    CPU_OPTIONS,
    cpu_option_problems,
    cpu_options,
    prefers_closest,
    socket_problems,
    topology_option_problems,
)
from agent.managers.policy import CpuPolicyOptions, FeatureGates, TopologyManagerPolicy
from agent.managers.versions import KubernetesVersion
from agent.yaml import MISTAKES_REPORTED
from tests.conformance.options import run_case
from tests.conformance.outcome import Verdict
from tests.shared import needs_shared, shared_dir

V1_36, V1_37 = KubernetesVersion.V1_36, KubernetesVersion.V1_37


@pytest.mark.parametrize(("version", "fixed"), [(V1_36, False), (V1_37, True)])
def test_defaults_are_those_of_the_version(*, version: KubernetesVersion, fixed: bool) -> None:
    assert gates_of({}, version) == FeatureGates(
        pod_level_resources=True,
        pod_level_resource_managers=False,
        pod_level_resources_fix_defaulting=fixed,
        disable_cpu_quota_with_exclusive_cpus=True,
        cpu_manager_policy_alpha_options=False,
        cpu_manager_policy_beta_options=True,
    )


@pytest.mark.parametrize("name", GATES)
def test_a_gate_that_is_set_is_so(name: str) -> None:
    for enabled in (True, False):
        assert getattr(gates_of({name: enabled}), GATES[name].field) is enabled


# Shows in differences.md: managers-gate
def test_a_whole_stage_can_be_switched_and_a_named_gate_wins() -> None:
    alpha = gates_of({"AllAlpha": True, "CPUManagerPolicyAlphaOptions": False})
    assert not alpha.cpu_manager_policy_alpha_options
    for whole, version in (("AllAlpha", V1_36), ("AllBeta", V1_37)):  # it became beta
        assert gates_of({whole: True}, version).pod_level_resource_managers
    beta = gates_of({"AllBeta": False, "PodLevelResources": True})
    assert beta.pod_level_resources
    assert not beta.cpu_manager_policy_beta_options
    assert beta.disable_cpu_quota_with_exclusive_cpus


@pytest.mark.parametrize(
    ("gates", "gate", "words"),
    [
        ({"CPUManagerPolicyOptions": False}, "CPUManagerPolicyOptions", "cannot be switched off"),
        *(
            ({gate: True, "PodLevelResources": False}, gate, "needs PodLevelResources")
            for gate in ("PodLevelResourceManagers", "PodLevelResourcesFixDefaulting")
        ),
    ],
)
def test_gates_that_cannot_be_are_rejected(gates: dict[str, bool], gate: str, words: str) -> None:
    problems = dict(gate_problems(gates))
    assert list(problems) == [gate]
    assert words in problems[gate]


def test_the_nearest_gate_is_looked_for_as_often_as_mistakes_are_reported() -> None:
    gates = {f"PodLevelResources{n}": True for n in range(MISTAKES_REPORTED + 50)}
    hints = ["did you mean" in note for note in gate_notes(gates)]
    assert hints == [True] * MISTAKES_REPORTED + [False] * 50


# Shows in differences.md: quota-gate
def test_a_gate_that_a_version_locks_is_rejected_from_it_on() -> None:
    gate = {"DisableCPUQuotaWithExclusiveCPUs": False}
    assert not list(gate_problems(gate, V1_36))
    ((name, message),) = gate_problems(gate, V1_37)
    assert name == "DisableCPUQuotaWithExclusiveCPUs"
    assert message.startswith("it cannot be switched off from Kubernetes v1.37 on; remove it, or")


def test_a_gate_of_a_later_version_is_rejected() -> None:
    problems = dict(gate_problems({"PodLevelResourcesFixDefaulting": True}, V1_36))
    assert "came with Kubernetes v1.37" in problems["PodLevelResourcesFixDefaulting"]
    both = {"AllAlpha": True, "AllBeta": False}
    assert list(dict(gate_problems(both, V1_36))) == ["PodLevelResourceManagers"]
    assert not list(gate_problems(both, V1_37))


def test_any_other_gate_is_accepted_with_a_note() -> None:
    others = ("PodsAPI", "NotYetInvented", "TopologyManagerPolicyAlphaOptions", "MemoryManager")
    gates = {**dict.fromkeys(others, True), **dict.fromkeys(OWN_GATES, True)}
    assert not list(gate_problems(gates))
    assert list(gate_notes(gates)) == [
        f"featureGates.{name} changes nothing here" for name in others
    ]


@pytest.mark.parametrize("name", OWN_GATES)
def test_a_mistyped_gate_is_taken_for_the_one_that_was_meant(name: str) -> None:
    middle = len(name) // 2
    for mistyped in (name[:middle] + name[middle + 1 :], f"{name}s", name.lower()):
        (note,) = gate_notes({mistyped: True})
        assert note == f'featureGates.{mistyped} changes nothing here; did you mean "{name}"?'


_ALL_GATES = FeatureGates(cpu_manager_policy_alpha_options=True)


@pytest.mark.parametrize(
    ("value", "on"),
    [
        *((value, True) for value in ("1", "t", "T", "TRUE", "true", "True")),
        *((value, False) for value in ("0", "f", "F", "FALSE", "false", "False")),
    ],
)
def test_values_that_go_takes_for_booleans_are(value: str, *, on: bool) -> None:
    options = {"full-pcpus-only": value}
    assert not list(cpu_option_problems(options, FeatureGates()))
    assert cpu_options(options) == CpuPolicyOptions(full_pcpus_only=on)


@pytest.mark.parametrize("value", ["", "yes", "on", "tRUE", " true", "2"])
def test_other_values_are_rejected(value: str) -> None:
    assert "full-pcpus-only" in dict(cpu_option_problems({"full-pcpus-only": value}, _ALL_GATES))
    options = {"prefer-closest-numa-nodes": value}
    assert "prefer-closest-numa-nodes" in dict(topology_option_problems(options))


def test_every_option_has_its_field() -> None:
    for name in CPU_OPTIONS:
        assert getattr(cpu_options({name: "true"}), name.replace("-", "_"))


@pytest.mark.parametrize(
    ("name", "gate"),
    [
        ("align-by-socket", "CPUManagerPolicyAlphaOptions"),
        ("distribute-cpus-across-cores", "CPUManagerPolicyAlphaOptions"),
        ("distribute-cpus-across-numa", "CPUManagerPolicyBetaOptions"),
    ],
)
def test_options_that_are_not_stable_need_their_gate(name: str, gate: str) -> None:
    off = FeatureGates(
        cpu_manager_policy_alpha_options=False, cpu_manager_policy_beta_options=False
    )
    assert gate in dict(cpu_option_problems({name: "true"}, off))[name]
    assert not list(cpu_option_problems({name: "true"}, _ALL_GATES))


_UNCORE = "prefer-align-cpus-by-uncorecache"
_EXCLUSIVE = {
    *(
        frozenset({"distribute-cpus-across-cores", other})
        for other in ("full-pcpus-only", "distribute-cpus-across-numa", _UNCORE)
    ),
    frozenset({"distribute-cpus-across-numa", _UNCORE}),
}


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(CPU_OPTIONS, 2)])
def test_exactly_the_documented_pairs_exclude_each_other(first: str, second: str) -> None:
    problems = list(cpu_option_problems({first: "true", second: "true"}, _ALL_GATES))
    assert bool(problems) == (frozenset({first, second}) in _EXCLUSIVE)
    # A pair of which one is switched off is not a pair.
    assert not list(cpu_option_problems({first: "true", second: "false"}, _ALL_GATES))


def test_unknown_options_are_rejected_with_the_nearest_name() -> None:
    problems = dict(cpu_option_problems({"full-pcpu-only": "true"}, _ALL_GATES))
    assert 'did you mean "full-pcpus-only"' in problems["full-pcpu-only"]
    assert "unknown" in dict(topology_option_problems({"x": "1"}))["x"]


@pytest.mark.parametrize("value", ["7", "-1", "0", "x", "", "8.0", "0x10", "9" * 30])
def test_too_few_nodes_or_no_number_of_nodes_is_rejected(value: str) -> None:
    assert dict(topology_option_problems({"max-allowable-numa-nodes": value}))


def test_a_signed_number_of_nodes_is_accepted_as_go_does() -> None:
    assert not list(topology_option_problems({"max-allowable-numa-nodes": "+16"}))
    assert prefers_closest({"prefer-closest-numa-nodes": "true"})
    assert not prefers_closest({})


def test_align_by_socket_needs_a_host_and_a_policy_that_go_with_it() -> None:
    options = CpuPolicyOptions(align_by_socket=True)
    restricted = TopologyManagerPolicy.RESTRICTED
    assert not list(socket_problems(options, restricted, sockets=2, nodes=2))
    assert list(socket_problems(options, restricted, sockets=4, nodes=2))
    assert list(socket_problems(options, TopologyManagerPolicy.SINGLE_NUMA_NODE, 2, 2))
    assert not list(socket_problems(CpuPolicyOptions(), restricted, sockets=4, nodes=2))


@pytest.mark.shared
@needs_shared("vectors/options.jsonl.gz")
def test_options_are_read_and_rejected_as_recorded() -> None:
    folder = shared_dir()
    assert folder is not None
    with gzip.open(folder / "vectors" / "options.jsonl.gz", "rt") as lines:
        outcomes = {case["name"]: run_case(case) for case in map(json.loads, lines)}
    assert {o.verdict for o in outcomes.values()} == {Verdict.EQUAL}, outcomes


@pytest.mark.parametrize(
    ("version", "gates", "stated", "factor"),
    [
        ("v1.36", {}, 0.8, None),
        ("v1.36", {"MemoryQoS": True}, None, 0.9),
        ("v1.36", {"AllAlpha": True}, 0.8, 0.8),
        ("v1.37", {}, None, None),
        ("v1.37", {}, 0.8, 0.8),
        ("v1.37", {"AllBeta": False}, 0.8, None),
    ],
)
def test_memory_qos_has_the_defaults_of_the_version(
    version: str, gates: dict[str, bool], stated: float | None, factor: float | None
) -> None:
    config = Config(
        kubernetes_version=KubernetesVersion(version),
        feature_gates=gates,
        memory_throttling_factor=stated,
    )
    assert config.throttling_factor == factor


@pytest.mark.parametrize("version", ["v1.37", "1.37", '"1.37"'])
def test_a_version_is_taken_with_and_without_its_v(version: str) -> None:
    text = f"kubernetesVersion: {version}\nagent: {{podResources: {{version: {version}}}}}\n"
    config = load_config(text, "test")
    assert config.kubernetes_version is config.agent.pod_resources.version
    assert config.kubernetes_version is KubernetesVersion.V1_37

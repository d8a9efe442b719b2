from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    CpuPolicyOptions,
    FeatureGates,
    MemoryPolicy,
    Policy,
    TopologyPolicy,
)
from agent.managers.versions import KubernetesVersion
from agent.state.checkpoint import (
    HostFacts,
    NodeFacts,
    host_changes,
    host_facts,
    policy_changes,
    policy_summary,
)
from sysfs.host import Cpu, Host, HugePages, Node
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

FACTS = HostFacts(
    Mask.parse("0-7"),
    Mask.of(8),
    (
        NodeFacts(0, Mask.parse("0-3"), 1024, MappingProxyType({2048: 4})),
        NodeFacts(1, Mask.parse("4-7"), 1024),
    ),
)


def cpu(number: int, *, online: bool = True) -> Cpu:
    return Cpu(number, online, False, number, None, None, 0, 0, None)  # noqa: FBT003 - isolated


def test_the_facts_of_a_host_are_cpus_nodes_memory_and_pages() -> None:
    host = Host(
        cpus=(cpu(0), cpu(1), cpu(2, online=False)),
        nodes=(Node(0, Mask.parse("0-1"), 4096, (HugePages(2048, 3),)),),
    )
    assert host_facts(host) == HostFacts(
        Mask.parse("0-1"),
        Mask.of(2),
        (NodeFacts(0, Mask.parse("0-1"), 4096, MappingProxyType({2048: 3})),),
    )


def test_every_change_is_named_with_before_and_after() -> None:
    after = HostFacts(
        Mask.parse("0-6,9"),
        Mask.parse("7-8"),
        (
            NodeFacts(0, Mask.parse("0-3"), 2048, MappingProxyType({2048: 2, 4096: 1})),
            NodeFacts(1, Mask.parse("4-6"), 1024),
            NodeFacts(2, Mask.of(9), 512),
        ),
    )
    assert host_changes(FACTS, after) == (
        "CPUs 7 are no longer online",
        "CPUs 9 are online now",
        "CPUs 7 are offline now",
        "node 0 has 2048 bytes of memory, it had 1024 bytes",
        "node 0 has 2 pages of 2048 bytes, it had 4",
        "node 0 has 1 pages of 4096 bytes, it had 0",
        "node 1 has CPUs 4-6, it had 4-7",
        "node 2 is new",
    )
    assert "node 2 is gone" in host_changes(after, FACTS)
    assert host_changes(FACTS, replace(FACTS)) == ()


def test_memory_that_is_no_longer_known_is_a_change_and_not_zero() -> None:
    first, second = FACTS.nodes
    after = replace(FACTS, nodes=(replace(first, memory_bytes=None), second))
    (gone,), (back,) = host_changes(FACTS, after), host_changes(after, FACTS)
    assert gone == "node 0 has an unknown amount of memory, it had 1024 bytes"
    assert back == "node 0 has 1024 bytes of memory, it had an unknown amount"


def test_a_policy_is_summed_up_in_the_configurations_words() -> None:
    policy = Policy(
        cpu=CpuPolicy(
            CpuManagerPolicy.STATIC, CpuPolicyOptions(full_pcpus_only=True), Mask.parse("0-1")
        ),
        memory=MemoryPolicy(reserved=MappingProxyType({0: MappingProxyType({"memory": 1024})})),
        topology=TopologyPolicy(prefer_closest_numa_nodes=True),
        gates=FeatureGates(
            pod_level_resources=False,
            pod_level_resources_fix_defaulting=False,
            cpu_manager_policy_beta_options=False,
        ),
        version=KubernetesVersion.V1_38,
    )
    summary = dict(policy_summary(policy))
    assert {key: value for key, value in summary.items() if value != "false"} == {
        "agent.isolation.memory": "never",
        "agent.isolation.smt": "never",
        "agent.placement": "packed",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions.full-pcpus-only": "true",
        "featureGates.DisableCPUQuotaWithExclusiveCPUs": "true",
        "kubernetesVersion": "v1.38",
        "memoryManagerPolicy": "None",
        "reservedMemory.0.memory": "1024",
        "reservedSystemCPUs": "0-1",
        "topologyManagerPolicy": "none",
        "topologyManagerPolicyOptions.prefer-closest-numa-nodes": "true",
        "topologyManagerScope": "container",
    }


def _summary(**settings: bool) -> Mapping[str, str]:
    """Return the summary of a policy: the gate of managers, and memory reserved on node 0."""
    gates = FeatureGates(pod_level_resource_managers=settings.get("on", False))
    reserved = {0: {"memory": 1024}} if settings.get("reserved") else {}
    return policy_summary(Policy(gates=gates, memory=MemoryPolicy(reserved=reserved)))


GATE: Final = "featureGates.PodLevelResourceManagers"


ON, OFF = _summary(on=True), _summary(on=False)
LISTED: Final = {key: value for key, value in ON.items() if value != "false"}
UNVERSIONED: Final = {key: value for key, value in OFF.items() if key != "kubernetesVersion"}
RESERVED: Final = _summary(reserved=True)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param(ON, OFF, [f"{GATE} is false, it was true"], id="switched off"),
        pytest.param(OFF, ON, [f"{GATE} is true, it was false"], id="switched on"),
        pytest.param(ON, ON, [], id="the same"),
        # The release that made the summary did not have what it does not list: it was off.
        pytest.param(LISTED, ON, [], id="what was off was not listed"),
        pytest.param(LISTED, OFF, [f"{GATE} is false, it was true"], id="and one is off now"),
        pytest.param({}, ON, [], id="no summary"),
        pytest.param(OFF, RESERVED, ["reservedMemory.0.memory is 1024, it was unset"], id="came"),
        pytest.param(RESERVED, OFF, ["reservedMemory.0.memory is unset, it was 1024"], id="went"),
        pytest.param(UNVERSIONED, OFF, ["kubernetesVersion is v1.37, it was v1.36"], id="version"),
    ],
)
def test_a_change_of_the_policy_is_named_with_what_was(
    before: Mapping[str, str], after: Mapping[str, str], said: list[str]
) -> None:
    assert list(policy_changes(before, after)) == said


def test_every_switch_of_a_policy_shows_in_its_summary() -> None:
    names = CpuPolicyOptions.__struct_fields__
    everything = CpuPolicyOptions(**dict.fromkeys(names, True))
    gates = FeatureGates(**dict.fromkeys(FeatureGates.__struct_fields__, True))
    summary = policy_summary(Policy(cpu=CpuPolicy(options=everything), gates=gates))
    options = [key for key in summary if key.startswith("cpuManagerPolicyOptions.")]
    shown_gates = [key for key in summary if key.startswith("featureGates.")]
    assert len(options) == len(names)
    assert len(shown_gates) == len(FeatureGates.__struct_fields__)

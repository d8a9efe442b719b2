from __future__ import annotations

from types import MappingProxyType

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


def test_an_unchanged_host_has_no_changes() -> None:
    assert host_changes(FACTS, replace(FACTS)) == ()


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


def test_a_summary_without_a_version_is_of_v1_36() -> None:
    now = policy_summary(Policy())
    earlier = {key: value for key, value in now.items() if key != "kubernetesVersion"}
    assert policy_changes(earlier, now) == ("kubernetesVersion is v1.37, it was v1.36",)


def test_what_is_off_is_said_to_be_off() -> None:
    summary = policy_summary(Policy(gates=FeatureGates(pod_level_resource_managers=False)))
    assert summary["featureGates.PodLevelResourceManagers"] == "false"
    assert summary["cpuManagerPolicyOptions.align-by-socket"] == "false"


def test_a_switch_that_was_turned_off_is_off_and_not_unset() -> None:
    before = policy_summary(Policy(gates=FeatureGates(pod_level_resource_managers=True)))
    after = policy_summary(Policy(gates=FeatureGates(pod_level_resource_managers=False)))
    key = "featureGates.PodLevelResourceManagers"
    assert policy_changes(before, after) == (f"{key} is false, it was true",)
    assert policy_changes(after, before) == (f"{key} is true, it was false",)


def test_a_switch_that_a_summary_does_not_list_was_off() -> None:
    """The release that made the summary did not have it."""
    now = policy_summary(Policy(gates=FeatureGates(pod_level_resource_managers=True)))
    earlier = {key: value for key, value in now.items() if value != "false"}
    assert policy_changes(earlier, now) == ()
    later = policy_summary(Policy(gates=FeatureGates(pod_level_resource_managers=False)))
    assert policy_changes(earlier, later) == (
        "featureGates.PodLevelResourceManagers is false, it was true",
    )
    assert policy_changes({}, now) == ()


def test_reservations_that_come_and_go_were_or_are_unset() -> None:
    memory = MemoryPolicy(reserved=MappingProxyType({0: MappingProxyType({"memory": 1024})}))
    with_one, without = policy_summary(Policy(memory=memory)), policy_summary(Policy())
    assert policy_changes(without, with_one) == ("reservedMemory.0.memory is 1024, it was unset",)
    assert policy_changes(with_one, without) == ("reservedMemory.0.memory is unset, it was 1024",)


def test_every_switch_of_a_policy_shows_in_its_summary() -> None:
    names = CpuPolicyOptions.__struct_fields__
    everything = CpuPolicyOptions(**dict.fromkeys(names, True))
    gates = FeatureGates(**dict.fromkeys(FeatureGates.__struct_fields__, True))
    summary = policy_summary(Policy(cpu=CpuPolicy(options=everything), gates=gates))
    options = [key for key in summary if key.startswith("cpuManagerPolicyOptions.")]
    shown_gates = [key for key in summary if key.startswith("featureGates.")]
    assert len(options) == len(names)
    assert len(shown_gates) == len(FeatureGates.__struct_fields__)

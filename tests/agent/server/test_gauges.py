from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers import admission
from agent.managers.advice import free_cpus
from agent.managers.allocation import DEVICES
from agent.managers.ledger import Taken
from agent.managers.machine import Machine
from agent.managers.metrics import ASSIGNED_CONTAINERS
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    CpuPolicyOptions,
    FeatureGates,
    MemoryManagerPolicy,
    MemoryPolicy,
    NodeFit,
    PluginDevice,
    Policy,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyPolicy,
)
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import load_pod
from agent.server import metrics as names
from agent.server.conditions import ConditionType
from agent.server.gauges import GaugeInput, families, samples
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import CONTAINER, make_rules
from tests.agent.pods import pods
from tests.agent.pods.pods import app, guaranteed, pod
from tests.agent.server.support import manifest

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.pods.model import Container

GIB = 1 << 30
HOST = regular_host(packages=2, cores_per_node=4, hugepages=((2 << 20, 512),))
POLICY = Policy(
    cpu=CpuPolicy(CpuManagerPolicy.STATIC, reserved=Mask.of(0, 8)),
    memory=MemoryPolicy(
        MemoryManagerPolicy.STATIC, MappingProxyType({0: MappingProxyType({"memory": GIB})})
    ),
    devices=MappingProxyType(
        {"example.org/nic": (PluginDevice("a"), PluginDevice("b", healthy=False))}
    ),
)
RULES = EffectivePolicy(Machine.of(HOST), POLICY, MANAGERS)


def reading(ledger: Ledger) -> GaugeInput:
    return GaugeInput("1.2.3", RULES, ledger)


def values(at: GaugeInput) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(sample.metric.name, sample.labels): sample.value for sample in samples(at)}


def admitted() -> Ledger:
    desired = load_pod(manifest(cpu="2", memory="3Gi"), "test")
    decision = admission.admit(RULES, RULES.empty_ledger(), desired)
    assert decision.admitted
    return decision.ledger


def test_what_is_allocated_is_what_the_ledger_says() -> None:
    now = values(reading(admitted()))
    assert now["kubelet_cpu_manager_exclusive_cpu_allocation_count", ()] == 2
    assert now["kubelet_cpu_manager_shared_pool_size_millicores", ()] == 14_000
    assert now["kubelet_cpu_manager_allocation_per_numa", ("0",)] == 2
    assert now["kubelet_cpu_manager_allocation_per_numa", ("1",)] == 0
    assert now["numawarden_pods", ()] == 1
    assert now["numawarden_containers", ("container",)] == 1
    assert now["numawarden_containers", ("host",)] == 0
    assert now["numawarden_cpus", ("exclusive",)] == 2
    assert now["numawarden_cpus", ("shared",)] == 14
    assert now["numawarden_node_memory_bytes", ("0", "memory", "allocated")] == 3 * GIB


def test_every_cpu_and_byte_of_a_node_is_allocated_reserved_or_free() -> None:
    now = values(reading(admitted()))
    states = ("allocated", "reserved", "free")
    for node in HOST.nodes:
        cpus = [now["numawarden_node_cpus", (str(node.id), state)] for state in states]
        assert sum(cpus) == len(node.cpus)
        memory = [
            now["numawarden_node_memory_bytes", (str(node.id), kind, state)]
            for kind in ("memory", "hugepages-2Mi")
            for state in states
        ]
        assert sum(memory) == node.memory_bytes
    assert now["numawarden_node_cpus", ("0", "reserved")] == 2
    assert now["numawarden_node_memory_bytes", ("0", "memory", "reserved")] == GIB


def test_memory_that_is_not_known_is_not_exported() -> None:
    host = replace(HOST, nodes=(HOST.nodes[0], replace(HOST.nodes[1], memory_bytes=None)))
    rules = EffectivePolicy(Machine.of(host), replace(POLICY, memory=MemoryPolicy()), MANAGERS)
    now = values(replace(reading(admitted()), rules=rules))
    exported = {labels[0] for name, labels in now
            if name == "numawarden_node_memory_bytes" and labels[1] == "memory"}  # fmt: skip
    assert exported == {"0"}


def test_nothing_stays_behind_when_the_pod_is_gone() -> None:
    ledger = admitted()
    (uid,) = ledger.allocations
    before = values(reading(RULES.empty_ledger()))
    assert values(reading(admission.remove(RULES, ledger, uid))) == before


def test_budget_that_no_container_can_use_is_the_sum_over_pods_and_goes_with_them() -> None:
    rules = make_rules()
    two = guaranteed("cpu=2 memory=1Gi")
    ledger = rules.empty_ledger()
    for uid in ("a", "b"):
        lonely = pod(app("c", two), of_pod=guaranteed("cpu=5 memory=4Gi"), uid=uid)
        ledger = admission.admit(rules, ledger, lonely).ledger

    def unused(of: Ledger) -> tuple[float, float]:
        now = values(GaugeInput("1", rules, of))
        memory = now["numawarden_unused_budget_memory_bytes", ("memory",)]
        return now["numawarden_unused_budget_cpus", ()], memory

    assert unused(ledger) == (6, 6 * GIB)
    assert unused(admission.remove(rules, ledger, "a")) == (3, 3 * GIB)
    assert unused(rules.empty_ledger()) == (0, 0)


def test_devices_that_are_not_healthy_are_not_free() -> None:
    now = values(reading(RULES.empty_ledger()))
    assert now["numawarden_devices", ("example.org/nic", "free")] == 1
    allocated = RULES.empty_ledger().with_part(DEVICES, {"example.org/nic": Taken(frozenset("a"))})
    now = values(reading(allocated))
    assert now["numawarden_devices", ("example.org/nic", "allocated")] == 1
    assert now["numawarden_devices", ("example.org/nic", "free")] == 0


def test_what_pods_may_request_and_do_request_is_exported_in_the_same_units() -> None:
    rules = replace(RULES, policy=replace(POLICY, fit=NodeFit({"cpu": 1500, "memory": GIB})))
    now = values(replace(reading(admitted()), rules=rules))
    found = {name: {labels[0]: now[each] for each in now for labels in [each[1]] if each[0] == name}
             for name in ("numawarden_allocatable", "numawarden_requested")}  # fmt: skip
    assert found["numawarden_allocatable"] == {
        "cpu": 14_500,
        "memory": 29 * GIB,
        "hugepages-2Mi": 2 * GIB,
        "example.org/nic": 1,
        "pods": 110,
    }
    assert found["numawarden_requested"] == {
        "cpu": 2000,
        "memory": 3 * GIB,
        "hugepages-2Mi": 0,
        "example.org/nic": 0,
        "pods": 1,
    }


def test_free_cpus_and_their_fragmentation_are_those_of_capacity() -> None:
    for ledger in (RULES.empty_ledger(), admitted()):
        now, free = values(reading(ledger)), free_cpus(RULES, ledger)
        assert now["numawarden_free_cpus", ("all",)] == free.free > 0
        assert now["numawarden_free_cpus", ("whole_cores",)] == free.whole_cores
        assert now["numawarden_free_cpus", ("on_one_node",)] == free.on_one_node
        assert now["numawarden_cpu_fragmentation_ratio", ()] == free.fragmentation
    assert values(reading(RULES.empty_ledger()))["numawarden_cpu_fragmentation_ratio", ()] == 0


def test_without_node_fit_nothing_is_exported_of_what_pods_may_request() -> None:
    now = values(reading(admitted()))
    assert not [name for name, _ in now if name == "numawarden_allocatable"]
    assert now["numawarden_requested", ("cpu",)] == 2000


def test_the_service_exports_its_own_condition() -> None:
    at = replace(
        reading(RULES.empty_ledger()),
        unenforced_pods=2,
        ready=True,
        conditions=MappingProxyType({"Enforced": 3}),
        reconcile_period=10.0,
        intruding=MappingProxyType({"confined": 4, "kernel": 0}),
        manifests=MappingProxyType({"invalid": 1}),
        last_reconcile=123.5,
    )
    now = values(at)
    assert now["numawarden_unenforced_pods", ()] == 2
    assert now["numawarden_ready", ()] == 1
    assert {kind: now["numawarden_conditions", (kind,)] for kind in map(str, ConditionType)} == {
        kind: 3 if kind == "Enforced" else 0 for kind in map(str, ConditionType)
    }
    assert now["numawarden_reconcile_period_seconds", ()] == 10
    assert now["numawarden_intruding_tasks", ("confined",)] == 4
    assert now["numawarden_intruding_tasks", ("kernel",)] == 0
    assert now["numawarden_manifests", ("invalid",)] == 1
    assert now["numawarden_reconcile_last_success_timestamp_seconds", ()] == 123.5
    assert now["numawarden_build_info", ("1.2.3",)] == 1


def test_before_the_first_comparison_the_last_success_is_0_and_intruders_are_unknown() -> None:
    now = values(reading(RULES.empty_ledger()))
    assert now["numawarden_reconcile_last_success_timestamp_seconds", ()] == 0
    assert not [name for name, _ in now if name == "numawarden_intruding_tasks"]


def test_the_effective_policy_is_exported_with_the_options_that_are_on() -> None:
    cpu = CpuPolicy(
        CpuManagerPolicy.STATIC,
        CpuPolicyOptions(full_pcpus_only=True, strict_cpu_reservation=True),
        Mask.of(0, 8),
    )
    topology = TopologyPolicy(
        TopologyManagerPolicy.RESTRICTED, TopologyManagerScope.POD, prefer_closest_numa_nodes=True
    )
    gates = FeatureGates(pod_level_resource_managers=True)
    rules = replace(RULES, policy=replace(POLICY, cpu=cpu, topology=topology, gates=gates))
    (sample,) = (
        sample
        for sample in samples(GaugeInput("1", rules, rules.empty_ledger()))
        if sample.metric is names.POLICY_INFO
    )
    assert dict(zip(names.POLICY_INFO.labels, sample.labels, strict=True)) == {
        "cpu_manager_policy": "static",
        "cpu_manager_policy_options": "full-pcpus-only,strict-cpu-reservation",
        "memory_manager_policy": "Static",
        "topology_manager_policy": "restricted",
        "topology_manager_policy_options": "prefer-closest-numa-nodes",
        "topology_manager_scope": "pod",
        "pod_level_resource_managers": "true",
    }
    assert sample.value == 1


def test_every_gauge_of_the_table_is_exported() -> None:
    exported = {family.name for family in families(reading(RULES.empty_ledger()))}
    assert exported == {metric.name for metric in names.gauges_of(MANAGERS)}


class TestAssignments:
    """What containers hold now, read off the ledger: the same after a restart."""

    GUARANTEED = guaranteed("cpu=2 memory=1Gi")
    FRACTION = guaranteed("cpu=500m memory=1Gi")

    def counted(self, rules: EffectivePolicy, *containers: Container) -> dict[str, float]:
        """Return what is not zero, as `cpu node_exclusive`."""
        ledger = with_pod(rules, pods.pod(*containers, of_pod=guaranteed("cpu=4 memory=4Gi")))
        now = GaugeInput("1", rules, ledger)
        return {
            " ".join(sample.labels): sample.value
            for sample in samples(now)
            if sample.metric is ASSIGNED_CONTAINERS and sample.value
        }

    def test_of_a_budget_slices_and_the_pods_pool_are_distinguished(self) -> None:
        mixed = (
            pods.app("a", self.GUARANTEED),
            pods.app("b", self.FRACTION),
            pods.app("c"),
            pods.app("d", pods.resources("cpu=1", "cpu=1 memory=2Gi")),
        )
        assert self.counted(make_rules(), *mixed) == {
            "cpu pod_exclusive": 1,
            "cpu pod_shared": 3,
            "memory pod_exclusive": 2,
            "memory pod_shared": 2,
        }

    def test_in_container_scope_the_others_run_in_the_nodes_pool(self) -> None:
        rules = make_rules(scope=CONTAINER)
        mixed = pods.app("a", self.GUARANTEED), pods.app("b", self.FRACTION), pods.app("c")
        assert self.counted(rules, *mixed) == {
            "cpu node_exclusive": 1,
            "cpu shared": 2,
            "memory node_exclusive": 2,
            "memory shared": 1,
        }

    def test_every_kind_is_exported_before_there_is_a_pod(self) -> None:
        now = values(reading(RULES.empty_ledger()))
        kinds = [key[1] for key in now if key[0] == "numawarden_container_assignments"]
        assert kinds == [
            (resource, kind)
            for resource in ("cpu", "memory")
            for kind in ("node_exclusive", "pod_exclusive", "pod_shared", "shared")
        ]

from __future__ import annotations

from collections import Counter, defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING

from hypothesis import given, settings
from msgspec.structs import replace

from agent.api.map import map_of_allocations
from agent.managers import admission
from agent.managers.allocation import DEVICES, ContainerAllocation, Isolation, PodAllocation
from agent.managers.capacity import free_cpus
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
from agent.managers.quality import verdict
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import load_pod
from agent.pods.model import ContainerKind, QosClass, Quality
from agent.server import allocation_samples as allocations
from agent.server import metrics as names
from agent.server.allocation_samples import LONGEST_LIST, AllocationSamples, shared_cores
from agent.server.conditions import ConditionType
from agent.server.gauges import GaugeInput, families, samples
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.api.maps import occupied_hosts
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import CONTAINER, SMT, make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.agent.pods.pods import app, guaranteed, pod, resources
from tests.agent.server.support import manifest

if TYPE_CHECKING:
    import pytest

    from agent.managers.ledger import Ledger
    from agent.managers.metrics import MetricSpec
    from agent.managers.quality import Intrusion, Judgement
    from agent.pods.model import Container
    from tests.agent.api.maps import Occupied


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
    expected: dict[tuple[str, tuple[str, ...]], float] = {
        ("kubelet_cpu_manager_exclusive_cpu_allocation_count", ()): 2,
        ("kubelet_cpu_manager_shared_pool_size_millicores", ()): 12_000,
        ("kubelet_cpu_manager_allocation_per_numa", ("0",)): 2,
        ("kubelet_cpu_manager_allocation_per_numa", ("1",)): 0,
        ("numawarden_pods", ()): 1,
        ("numawarden_containers", ("container",)): 1,
        ("numawarden_containers", ("host",)): 0,
        ("numawarden_cpus", ("exclusive",)): 2,
        ("numawarden_cpus", ("shared",)): 14,
        ("numawarden_node_memory_bytes", ("0", "memory", "allocated")): 3 * GIB,
    }
    assert {key: now[key] for key in expected} == expected


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
    found = [labels for name, labels in now if name == "numawarden_node_memory_bytes"]
    assert {node for node, kind, _ in found if kind == "memory"} == {"0"}


# Shows in differences.md: gauges
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

    def exported(name: str, at: GaugeInput) -> dict[str, float]:
        return {labels[0]: value for (each, labels), value in values(at).items() if each == name}

    fitting = replace(reading(admitted()), rules=rules)
    nic = "example.org/nic"
    assert exported("numawarden_allocatable", fitting) == {
        "cpu": 14_500, "memory": 29 * GIB, "hugepages-2Mi": 2 * GIB, nic: 1, "pods": 110
    }  # fmt: skip
    assert exported("numawarden_requested", fitting) == {
        "cpu": 2000, "memory": 3 * GIB, "hugepages-2Mi": 0, nic: 0, "pods": 1
    }  # fmt: skip
    assert exported("numawarden_allocatable", reading(admitted())) == {}
    assert exported("numawarden_requested", reading(admitted()))["cpu"] == 2000


def test_free_cpus_are_exported_by_where_they_are() -> None:
    three = pod(app("c", guaranteed("cpu=3 memory=1Gi")))
    ledger = admission.admit(RULES, RULES.empty_ledger(), three).ledger
    now, free = values(reading(ledger)), free_cpus(RULES, ledger)
    found = [now["numawarden_free_cpus", (kind,)] for kind in ("all", "whole_cores", "on_one_node")]
    assert found == [free.free, free.whole_cores, free.on_one_node] == [11, 10, 8]
    assert now["numawarden_cpu_fragmentation_ratio", ()] == free.fragmentation


def test_the_service_exports_its_own_condition() -> None:
    before = values(reading(RULES.empty_ledger()))
    assert before["numawarden_reconcile_last_success_timestamp_seconds", ()] == 0
    assert not [name for name, _ in before if name == "numawarden_intruding_tasks"]
    now = values(
        replace(
            reading(RULES.empty_ledger()),
            unenforced_pods=2,
            ready=True,
            conditions=MappingProxyType({"Enforced": 3}),
            reconcile_period=10.0,
            intruding=MappingProxyType({"confined": 4, "kernel": 0}),
            manifests=MappingProxyType({"invalid": 1}),
            last_reconcile=123.5,
        )
    )
    expected: dict[tuple[str, tuple[str, ...]], float] = {
        ("numawarden_unenforced_pods", ()): 2,
        ("numawarden_ready", ()): 1,
        ("numawarden_reconcile_period_seconds", ()): 10,
        ("numawarden_intruding_tasks", ("confined",)): 4,
        ("numawarden_intruding_tasks", ("kernel",)): 0,
        ("numawarden_manifests", ("invalid",)): 1,
        ("numawarden_reconcile_last_success_timestamp_seconds", ()): 123.5,
        ("numawarden_build_info", ("1.2.3",)): 1,
        **{("numawarden_conditions", (str(kind),)): 0 for kind in ConditionType},
        ("numawarden_conditions", ("Enforced",)): 3,
    }
    assert {key: now[key] for key in expected} == expected


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


def counted(rules: EffectivePolicy, *containers: Container) -> dict[str, float]:
    """Return what is not zero of what containers hold now, as `cpu node_exclusive`."""
    ledger = with_pod(rules, pod(*containers, of_pod=guaranteed("cpu=4 memory=4Gi")))
    return {
        " ".join(sample.labels): sample.value
        for sample in samples(GaugeInput("1", rules, ledger))
        if sample.metric is ASSIGNED_CONTAINERS and sample.value
    }


TWO = guaranteed("cpu=2 memory=1Gi")
FRACTION = guaranteed("cpu=500m memory=1Gi")
MIXED = (app("a", TWO), app("b", FRACTION), app("c"))


# Shows in differences.md: assignments-after-restart
def test_what_containers_hold_is_read_off_the_ledger() -> None:
    burstable = app("d", resources("cpu=1", "cpu=1 memory=2Gi"))
    assert counted(make_rules(), *MIXED, burstable) == {
        "cpu pod_exclusive": 1,
        "cpu pod_shared": 3,
        "memory pod_exclusive": 2,
        "memory pod_shared": 2,
    }
    assert counted(make_rules(scope=CONTAINER), *MIXED) == {
        "cpu node_exclusive": 1,
        "cpu shared": 2,
        "memory node_exclusive": 2,
        "memory shared": 1,
    }


WITH_SIBLINGS = make_rules(SMT)


def exports_of(
    metric: MetricSpec, ledger: Ledger, containers: int = 0
) -> dict[tuple[str, ...], float]:
    found = AllocationSamples().samples(WITH_SIBLINGS, ledger, containers)
    return {sample.labels: sample.value for sample in found if sample.metric is metric}


def with_cpus(uid: str, cpus: Mask) -> PodAllocation:
    """Return a pod of one container with exclusive CPUs."""
    container = ContainerAllocation("c0", ContainerKind.APP, Isolation.CONTAINER, cpus)
    return PodAllocation(uid, f"pod-{uid}", "shop", QosClass.GUARANTEED, "", (container,))


@settings(max_examples=25, deadline=None)
@given(occupied_hosts())
def test_as_many_cores_are_shared_as_the_map_warns_of(case: Occupied) -> None:
    drawn = map_of_allocations(case.host, case.rules, case.ledger)
    owners = {cpu.id: {(each.uid, each.container) for each in cpu.owners} for cpu in drawn.cpus}
    threads: dict[int, list[int]] = defaultdict(list)
    for cpu in case.host.cpus:
        if cpu.online:
            threads[-1 - cpu.id if cpu.core is None else cpu.core].append(cpu.id)
    expected = [
        ids
        for ids in threads.values()
        if len({frozenset(owners[cpu]) for cpu in ids}) > 1
        or any(len(owners[cpu]) > 1 for cpu in ids)
    ]
    assert shared_cores(case.rules, case.ledger) == len(expected)


@settings(max_examples=20, deadline=None)
@given(occupied_hosts())
def test_every_judgement_is_counted_once_and_every_pair_of_labels_is_there(case: Occupied) -> None:
    found = {
        sample.labels: sample.value
        for sample in AllocationSamples().samples(case.rules, case.ledger, 0)
        if sample.metric is names.VERDICTS
    }
    judged = Counter(
        (str(one.quality), "true" if one.met else "false")
        for allocation in case.ledger.allocations.values()
        for one in verdict(case.rules, allocation)
    )
    pairs = {(str(quality), met) for quality in Quality for met in ("true", "false")}
    assert found == {pair: judged[pair] for pair in pairs}


def test_a_container_is_exported_with_its_names_its_cpus_and_its_memory_nodes() -> None:
    ledger = with_pod(WITH_SIBLINGS, pod(*MIXED[:2], of_pod=guaranteed("cpu=4 memory=4Gi")))
    (allocation,) = ledger.allocations.values()
    subject = (allocation.namespace, allocation.name, allocation.uid)
    assert allocation.containers[0].cpus
    assert exports_of(names.CONTAINER_INFO, ledger, 10) == {
        (*subject, each.name, str(each.isolation), str(each.cpus), str(each.mems)): 1
        for each in allocation.containers
    }
    assert exports_of(names.CONTAINER_CPUS, ledger, 10) == {(*subject, "a", "0"): 2}
    assert exports_of(names.CONTAINERS_OMITTED, ledger, 10) == {(): 0}
    for metric in (names.CONTAINER_INFO, names.CONTAINER_CPUS, names.CONTAINERS_OMITTED):
        assert exports_of(metric, ledger) == {}


def test_a_container_in_the_shared_pool_has_no_cpus_in_its_labels() -> None:
    """The pool changes with every exclusive pod: each time all of its series would be new."""
    ledger = with_pod(WITH_SIBLINGS, pod(app("c")))
    ((*_, cpus, nodes),) = exports_of(names.CONTAINER_INFO, ledger, 10)
    assert (cpus, nodes) == ("", "")


def test_containers_beyond_the_limit_are_counted() -> None:
    ledger = ledger_with(*(with_cpus(str(number), Mask.of(number)) for number in range(5)))
    exported = exports_of(names.CONTAINER_INFO, ledger, 2)
    assert [uid for _, _, uid, *_ in exported] == ["0", "1"]
    assert exports_of(names.CONTAINERS_OMITTED, ledger, 2) == {(): 3}


def test_cpus_are_counted_by_node_and_a_label_of_them_stays_short() -> None:
    found = exports_of(
        names.CONTAINER_CPUS, ledger_with(with_cpus("a", Mask.parse("1-2,4,9-10"))), 1
    )
    assert {node: cpus for (*_, node), cpus in found.items()} == {"0": 4, "1": 1}
    every_other = ledger_with(with_cpus("a", Mask.from_ids(range(0, 4096, 2))))
    ((*_, cpus, _),) = exports_of(names.CONTAINER_INFO, every_other, 1)
    assert len(cpus) <= LONGEST_LIST
    *listed, cut = cpus.split(",")
    assert cut == "..."
    assert [int(each) for each in listed] == list(range(0, 2 * len(listed), 2))


def test_the_samples_are_made_once_for_each_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Ledger] = []

    def counting(_rules: object, ledger: Ledger) -> int:
        made.append(ledger)
        return 0

    monkeypatch.setattr(allocations, "shared_cores", counting)
    ledger = with_pod(WITH_SIBLINGS, pod(app("c", TWO)))
    kept = AllocationSamples()
    first = kept.samples(WITH_SIBLINGS, ledger, 1)
    assert kept.samples(WITH_SIBLINGS, ledger, 1) is first
    (uid,) = ledger.allocations
    without = admission.remove(WITH_SIBLINGS, ledger, uid)
    assert kept.samples(WITH_SIBLINGS, without, 1) != first
    assert made == [ledger, without]


def test_a_pod_is_judged_once_under_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def judging(
        rules: EffectivePolicy, allocation: PodAllocation, intruding: tuple[Intrusion, ...]
    ) -> tuple[Judgement, ...]:
        judged.append(allocation.uid)
        return verdict(rules, allocation, intruding)

    monkeypatch.setattr(allocations, "verdict", judging)
    kept = AllocationSamples()
    one = with_pod(WITH_SIBLINGS, pod(app("c", TWO), uid="one"))
    both = with_pod(WITH_SIBLINGS, pod(app("c", TWO), uid="two"), one)
    for ledger in (one, both, admission.remove(WITH_SIBLINGS, both, "one"), both):
        fresh = AllocationSamples().samples(WITH_SIBLINGS, ledger, 0)
        assert kept.samples(WITH_SIBLINGS, ledger, 0) == fresh
    assert Counter(judged) == {"one": 5, "two": 4}
    judged.clear()
    other = make_rules(SMT, reserved="0-1")
    assert kept.samples(other, both, 0) == AllocationSamples().samples(other, both, 0)
    assert judged == ["one", "two"] * 2

"""What the scheduler reads of a host: each node by itself, as allocated, and nothing made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.cluster.kubernetes.node_topology import NodeTopology, node_topology
from agent.managers.capacity import free_cpus
from agent.managers.device.kubelet import NOT_LISTED, GivenDeviceManager, KubeletListing
from agent.managers.machine import Machine
from agent.managers.policy import (
    Cordon,
    CpuManagerPolicy,
    MemoryPolicy,
    PluginDevice,
    TopologyManagerScope,
)
from agent.managers.trials import decided
from agent.pods.model import GivenDevice
from agent.pods.quantity import Quantity
from sysfs.described import regular_host, with_memory_only_nodes
from sysfs.host import Cpu, Host, HugePages, Node
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import GIB, SINGLE, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod, resources
from tests.fakes.api_server import crd_mistakes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy

NODE: Final = "worker-1"


def host_of(cpus: Mapping[int, str], memory: Mapping[int, int | None]) -> Host:
    """Return a host with the CPUs of each node, each CPU a core, and the memory of each node."""
    masks = {node: Mask.parse(text) for node, text in cpus.items()}
    known = [
        Cpu(cpu, True, False, cpu, cpu, node, node, node, None)  # noqa: FBT003  # as the struct has it
        for node, mask in masks.items()
        for cpu in mask
    ]
    nodes = tuple(
        Node(
            node,
            masks.get(node, EMPTY),
            memory[node],
            (HugePages(2 << 20, 512),) if node == 0 else (),
            # Not symmetric, as firmware may have it.
            {other: 10 if other == node else 20 + node for other in memory},
        )
        for node in sorted(memory)
    )
    return Host(tuple(sorted(known, key=lambda cpu: cpu.id)), nodes)


#: Four CPUs and huge pages, two CPUs, memory alone; node 1 does not exist, and node 64 does.
UNEVEN: Final = host_of(
    {0: "0-3", 2: "4-5", 64: "6-7"}, {0: 8 * GIB, 2: 4 * GIB, 5: 32 * GIB, 64: 8 * GIB}
)


def rules_of(
    host: Host, devices: Mapping[str, tuple[PluginDevice, ...]] = {}
) -> EffectivePolicy:  # is not changed
    scope = TopologyManagerScope.CONTAINER
    return make_rules(Machine.of(host), SINGLE, scope, reserved="0", devices=devices)


def published(
    rules: EffectivePolicy, ledger: Ledger | None = None, kubelet: KubeletListing = NOT_LISTED
) -> NodeTopology:
    made = node_topology(rules, ledger or rules.empty_ledger(), NODE, (), kubelet)
    assert crd_mistakes(dict(made.document)) == []
    return made


def zones(found: NodeTopology) -> dict[str, dict[str, tuple[str, str, str]]]:
    """Return capacity, allocatable and available of each resource of each zone."""
    return {
        zone["name"]: {
            each["name"]: (each["capacity"], each["allocatable"], each["available"])
            for each in zone["resources"]
        }
        for zone in found.document["zones"]
    }


def attributes(found: NodeTopology) -> dict[str, str]:
    return {each["name"]: each["value"] for each in found.document["attributes"]}


def test_each_node_has_what_it_has_and_none_is_made_up() -> None:
    assert zones(published(rules_of(UNEVEN))) == {
        "node-0": {
            "cpu": ("4", "3", "3"),
            "memory": ("8Gi", "6Gi", "6Gi"),
            "hugepages-2Mi": ("1Gi", "1Gi", "1Gi"),
        },
        "node-2": {"cpu": ("2", "2", "2"), "memory": ("4Gi", "3Gi", "3Gi")},
        "node-5": {"cpu": ("0", "0", "0"), "memory": ("32Gi", "31Gi", "31Gi")},
    }


def test_every_zone_is_a_node_with_its_own_distances() -> None:
    found = published(rules_of(UNEVEN)).document["zones"]
    assert {zone["type"] for zone in found} == {"Node"}
    assert [zone["costs"] for zone in found if zone["name"] == "node-2"] == [
        [
            {"name": "node-0", "value": 22},
            {"name": "node-2", "value": 10},
            {"name": "node-5", "value": 22},
        ]
    ]


def test_nodes_that_the_scheduler_cannot_read_are_left_out_and_named() -> None:
    (line,) = published(rules_of(UNEVEN)).left_out
    assert line.startswith("NUMA nodes 64 are not published: the scheduler reads nodes below 64")
    everything = host_of({63: "0-1"}, {63: GIB})
    assert published(rules_of(everything)).left_out == ()
    assert list(zones(published(rules_of(everything)))) == ["node-63"]


def test_memory_that_the_host_does_not_report_is_left_out_and_named() -> None:
    rules = rules_of(host_of({0: "0-3", 1: "4-7"}, {0: 8 * GIB, 1: None}))
    rules = replace(rules, policy=replace(rules.policy, memory=MemoryPolicy()))
    found = published(rules)
    assert "memory" not in zones(found)["node-1"]
    assert found.left_out == (
        "the memory of NUMA nodes 1 is not published: the host does not report it",
    )


def test_only_what_is_exclusive_is_not_available() -> None:
    rules = rules_of(UNEVEN)
    exclusive = with_pod(rules, pod(app("a", guaranteed("cpu=2 memory=1Gi")), uid="u-1"))
    shared = with_pod(rules, pod(app("a", guaranteed("cpu=500m memory=1Gi")), uid="u-2"), exclusive)
    before, after = zones(published(rules)), zones(published(rules, shared))
    (node,) = exclusive.allocations["u-1"].containers[0].mems
    assert after[f"node-{node}"]["cpu"][2] == str(int(before[f"node-{node}"]["cpu"][2]) - 2)
    free = [Quantity.parse(zone["memory"][2]).value for zone in after.values()]
    assert sum(free) == (6 + 3 + 31 - 2) * GIB


def test_a_budget_is_counted_once_whatever_its_containers_have() -> None:
    asked = pod(
        app("own", guaranteed("cpu=1 memory=1Gi")),
        app("shares", resources("cpu=100m")),
        of_pod=guaranteed("cpu=2 memory=2Gi"),
    )
    rules = make_rules()
    before, after = (zones(published(rules, ledger)) for ledger in (None, with_pod(rules, asked)))
    for resource, budget in (("cpu", 2), ("memory", 2 * GIB)):
        free = [
            sum(Quantity.parse(zone[resource][2]).value for zone in each.values())
            for each in (before, after)
        ]
        assert free[0] - free[1] == budget


def test_what_is_cordoned_is_allocatable_but_not_available() -> None:
    rules = rules_of(UNEVEN)
    cordon = Cordon(Mask.parse("1"), Mask.parse("2"))
    found = zones(published(replace(rules, policy=replace(rules.policy, cordon=cordon))))
    assert found["node-0"]["cpu"] == ("4", "3", "2")
    assert found["node-2"] == {"cpu": ("2", "2", "0"), "memory": ("4Gi", "3Gi", "0")}


def test_devices_stand_in_the_zones_of_their_nodes() -> None:
    devices = {
        "example.com/gpu": (
            PluginDevice("g0", Mask.of(0)),
            PluginDevice("g1", Mask.of(0), healthy=False),
            PluginDevice("both", Mask.parse("0,2")),
            PluginDevice("far", Mask.of(64)),
            PluginDevice("nowhere"),
        ),
        "example.com/anywhere": (PluginDevice("a"), PluginDevice("b")),
    }
    rules = rules_of(UNEVEN, devices)
    wants = pod(app("a", guaranteed("cpu=1 memory=1Gi example.com/gpu=1")), uid="u-1")
    before, after = published(rules), published(rules, with_pod(rules, wants))
    assert zones(before)["node-0"]["example.com/gpu"] == ("3", "2", "2")
    assert zones(before)["node-2"]["example.com/gpu"] == ("1", "1", "1")
    assert zones(after)["node-0"]["example.com/gpu"][2] == "1"
    # Where no device has a node, the scheduler takes the resource as not aligned.
    assert not any("example.com/anywhere" in zone for zone in zones(before).values())
    assert before.left_out[1:] == (
        "1 of 5 devices of example.com/gpu are not published: their NUMA node is not known",
    )


def nic(name: str, nodes: str) -> GivenDevice:
    return GivenDevice("example.com/nic", name, Mask.parse(nodes))


def test_devices_of_the_kubelet_stand_in_the_zones_of_their_nodes() -> None:
    rules = rules_of(UNEVEN)
    rules = replace(rules, managers=(GivenDeviceManager(), *rules.managers))
    healthy = (nic("n0", "0"), nic("n1", "0"), nic("n2", "2"), nic("both", "0,2"), nic("any", ""))
    anywhere = GivenDevice("example.com/anywhere", "a")
    kubelet = KubeletListing({("shop", "b"): {"c": (nic("n1", "0"),)}}, (*healthy, anywhere))
    asked = replace(
        pod(app("a", guaranteed("cpu=1 memory=1Gi")), uid="u-1"),
        given_devices={"a": (nic("n2", "2"), nic("gone", "2"))},
    )
    ledger = with_pod(rules, asked)
    found = published(rules, ledger, kubelet)
    assert zones(found)["node-0"]["example.com/nic"] == ("3", "3", "2")
    assert zones(found)["node-2"]["example.com/nic"] == ("3", "2", "1")
    assert not any("example.com/anywhere" in zone for zone in zones(found).values())
    assert found.left_out[1:] == (
        "1 of 6 devices of example.com/nic are not published: their NUMA node is not known",
    )
    # Nothing is made up of what was recorded while the kubelet does not list its devices.
    assert not any("example.com/nic" in zone for zone in zones(published(rules, ledger)).values())
    cordon = Cordon(nodes=Mask.of(0))
    cordoned = replace(rules, policy=replace(rules.policy, cordon=cordon))
    after = zones(published(cordoned, ledger, kubelet))
    assert after["node-0"]["example.com/nic"] == ("3", "3", "1")


def test_the_agents_own_devices_of_a_resource_win_over_the_kubelets() -> None:
    rules = rules_of(UNEVEN, {"example.com/nic": (PluginDevice("own", Mask.of(0)),)})
    kubelet = KubeletListing(allocatable=(nic("n0", "0"), nic("n2", "2")))
    found = zones(published(rules, kubelet=kubelet))
    assert found["node-0"]["example.com/nic"] == ("1", "1", "1")
    assert "example.com/nic" not in found["node-2"]


def test_the_attributes_are_those_that_the_scheduler_reads() -> None:
    rules = make_rules(Machine.of(regular_host()), SINGLE, TopologyManagerScope.POD)
    found = node_topology(rules, rules.empty_ledger(), NODE, [("ns1", "n1"), ("ns1", "n2")])
    assert attributes(found) == {
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "pod",
        "topologyManagerMaxNUMANodes": "8",
        "nodeTopologyPodsFingerprint": attributes(found)["nodeTopologyPodsFingerprint"],
        "nodeTopologyPodsFingerprintMethod": "all",
    }
    other = node_topology(rules, rules.empty_ledger(), NODE, [("ns1", "n1")])
    key = "nodeTopologyPodsFingerprint"
    assert attributes(other)[key] != attributes(found)[key]


@pytest.mark.parametrize(("more", "expected"), [(5, "8"), (7, "9"), (30, "32")])
def test_the_scheduler_is_given_as_many_nodes_as_the_host_has(more: int, expected: str) -> None:
    host = with_memory_only_nodes(regular_host(), [GIB] * more)
    assert attributes(published(rules_of(host)))["topologyManagerMaxNUMANodes"] == expected


def amounts(found: Mapping[str, Any]) -> list[Quantity]:
    return [Quantity.parse(found[key]) for key in ("available", "allocatable", "capacity")]


@EVERY_SEQUENCE
@given(data=st.data())
def test_whatever_runs_the_zones_add_up(data: st.DataObject) -> None:
    rules = data.draw(rule_sets())
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(0, 4))):
        ledger = decided(rules, ledger, data.draw(pods(f"u-{number}"))).ledger
    found = published(rules, ledger)
    cpus = 0
    for zone in found.document["zones"]:
        for resource in zone["resources"]:
            available, allocatable, capacity = amounts(resource)
            assert available <= allocatable <= capacity, (zone["name"], resource)
            cpus += available.value if resource["name"] == "cpu" else 0
    all_published = len(found.document["zones"]) == len(rules.machine.nodes)
    if rules.policy.cpu.policy is CpuManagerPolicy.STATIC and all_published:
        assert cpus == free_cpus(rules, ledger).free

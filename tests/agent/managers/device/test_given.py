"""Devices that the kubelet gave: CPUs and memory are aligned with them as the kubelet would."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given as tried
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import Origin
from agent.managers.decision import Reason
from agent.managers.device.kubelet import KUBELET_DEVICES, GivenDeviceManager, given_devices
from agent.managers.machine import Machine
from agent.managers.policy import FeatureGates
from agent.managers.quality import verdict
from agent.managers.rules import charged
from agent.managers.topology.hint import Hint
from agent.pods.model import GivenDevice, Quality
from agent.server.renumbering import renumbered
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, rejected, with_pod
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    PLAIN,
    POD,
    RESTRICTED,
    SINGLE,
    make_rules,
)
from tests.agent.managers.topology.naive_merge import naive_merge
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.managers.decision import Decision
    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod

NIC, GPU = "example.com/nic", "example.com/gpu"
MACHINES = {
    2: PLAIN,
    3: Machine.of(regular_host(packages=3, cores_per_node=4, threads=1)),
    9: Machine.of(regular_host(packages=9, cores_per_node=2, threads=1)),
}


def beside_kubelet(
    topology: TopologyManagerPolicy = SINGLE,
    scope: TopologyManagerScope = CONTAINER,
    machine: Machine = PLAIN,
    *,
    memory: bool = True,
) -> EffectivePolicy:
    rules = make_rules(machine, topology, scope, memory=memory)
    return replace(rules, managers=(GivenDeviceManager(), *rules.managers))


def nic(number: int, *nodes: int) -> GivenDevice:
    return GivenDevice(NIC, f"nic{number}", Mask.of(*nodes))


def with_devices(asked: Pod, **given: Sequence[GivenDevice]) -> Pod:
    return replace(asked, given_devices={name: tuple(some) for name, some in given.items()})


def one(*devices: GivenDevice, cpus: int = 2) -> Pod:
    """Return a pod with one container, and the devices that it has."""
    return with_devices(pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi"))), main=devices)


@pytest.mark.parametrize("node", [0, 1])
def test_the_budget_of_a_pod_is_on_the_node_of_its_device(node: int) -> None:
    rules = beside_kubelet(scope=POD)
    asked = with_devices(
        pod(
            app("own", guaranteed("cpu=1 memory=1Gi")),
            app("rest"),
            of_pod=guaranteed("cpu=3 memory=2Gi"),
        ),
        rest=[nic(0, node)],
    )
    allocation = allocated(rules, asked)
    assert allocation.cpus is not None
    assert rules.machine.cpus.nodes_of(allocation.cpus) == Mask.of(node)
    assert [each.part(KUBELET_DEVICES) for each in allocation.containers] == [
        None,
        {NIC: {"nic0": str(node)}},
    ]


def test_a_rejection_says_where_the_kubelet_gave_the_devices() -> None:
    rules = beside_kubelet(memory=False)
    ledger = with_pod(rules, replace(one(nic(1, 1), cpus=6), uid="other"))
    rejection = rejected(rules, one(nic(0, 1), cpus=4), ledger)
    assert rejection.reason == Reason.TOPOLOGY_AFFINITY
    assert f"1 of {NIC}, which the kubelet gave on node 1, fits best on {{1}}" in (
        rejection.message
    )
    assert "4 of cpu fits best on {0} (free: node 0: 7, node 1: 2)" in rejection.message


# Shows in differences.md: given-devices
def test_devices_on_both_nodes_go_with_cpus_that_need_both() -> None:
    rules = beside_kubelet(RESTRICTED, memory=False)
    allocation = allocated(rules, one(nic(0, 0), nic(1, 1), cpus=10))
    (near,) = [e for e in verdict(rules, allocation) if e.quality is Quality.NEAR_DEVICE]
    assert near.met


# Shows in differences.md: given-devices
@pytest.mark.parametrize("nodes", [(), (7,)], ids=["none known", "none of this machine"])
def test_a_device_without_a_node_leaves_the_choice_to_the_others(nodes: tuple[int, ...]) -> None:
    rules = beside_kubelet()
    anywhere = GivenDevice(NIC, "nic0", Mask.of(*nodes))
    assert allocated(rules, one(anywhere)).containers[0].hint == Hint(1, preferred=True)
    assert allocated(rules, one(anywhere, nic(1, 1))).containers[0].hint == Hint(2, preferred=True)


def test_the_same_specification_keeps_its_allocation_whatever_devices_are_reported_later() -> None:
    rules = beside_kubelet()
    first = admit(rules, rules.empty_ledger(), one(nic(0, 1)))
    again = admit(rules, first.ledger, one(nic(0, 0)))
    assert again.already_admitted
    assert again.allocation is first.allocation


def test_renumbered_nodes_take_their_devices_along() -> None:
    rules = beside_kubelet()
    ledger = with_pod(rules, one(nic(0, 0), nic(1, 0)))
    moved = renumbered(rules.managers, ledger, {0: 1, 1: 0})
    assert list(given_devices(moved.allocations["u-1"].containers[0])) == [nic(0, 1), nic(1, 1)]


def kubelets_hints(nodes: Mask, devices: Sequence[GivenDevice]) -> dict[str, list[Hint] | None]:
    """Return the hints of the kubelet's device manager for devices that a container has.

    As generateDeviceTopologyHints has them where the allocated devices are all that there are: for
    each set of nodes, how many devices are reached; preferred are the sets of the smallest size
    that reaches all.
    """
    hints: dict[str, list[Hint] | None] = {}
    for resource in dict.fromkeys(device.resource for device in devices):
        allocated = [each for each in devices if each.resource == resource]
        located = [each for each in allocated if each.nodes]
        if not located:
            hints[resource] = None
            continue
        smallest, reaching = len(nodes), []
        for size in range(1, len(nodes) + 1):
            for chosen in combinations(nodes, size):
                mask = Mask.from_ids(chosen)
                if sum(bool(each.nodes & mask) for each in located) < len(located):
                    continue
                smallest = min(smallest, size)
                reaching.append(mask)
        hints[resource] = [Hint(each.bits, len(each) == smallest) for each in reaching]
    return hints


@st.composite
def pods_beside_a_kubelet(draw: st.DrawFn) -> tuple[EffectivePolicy, Pod]:
    """Return a host beside a kubelet, and a pod with devices."""
    machine = MACHINES[draw(st.sampled_from([2, 3]))]
    rules = beside_kubelet(
        draw(st.sampled_from([BEST_EFFORT, RESTRICTED, SINGLE])),
        draw(st.sampled_from([CONTAINER, POD])),
        machine,
        memory=draw(st.booleans()),
    )
    gate = draw(st.booleans())
    gates = FeatureGates(pod_level_resource_managers=gate)
    rules = replace(rules, policy=replace(rules.policy, gates=gates))
    places = st.sets(st.sampled_from(list(machine.node_mask)), max_size=2).map(Mask.from_ids)
    containers: list[Container] = []
    given: dict[str, list[GivenDevice]] = {}
    for number in range(draw(st.integers(1, 2))):
        make = draw(st.sampled_from([app, app, init])) if number else app
        cpus = draw(st.sampled_from(["1", "2", "5", "500m"]))
        containers.append(make(f"c{number}", guaranteed(f"cpu={cpus} memory=1Gi")))
        given[f"c{number}"] = [
            GivenDevice(draw(st.sampled_from([NIC, GPU])), f"d{number}.{index}", draw(places))
            for index in range(draw(st.integers(0, 3)))
        ]
    of_pod = draw(st.sampled_from([None, guaranteed("cpu=10 memory=4Gi")]))
    return rules, with_devices(pod(*containers, of_pod=of_pod), **given)


@tried(pods_beside_a_kubelet())
def test_the_alignment_is_that_of_the_kubelet_with_hints_of_the_allocated_devices(
    asked_of: tuple[EffectivePolicy, Pod],
) -> None:
    rules, asked = asked_of
    decision: Decision = admit(rules, rules.empty_ledger(), asked)
    nodes = rules.machine.node_mask
    distances: Mapping[int, Mapping[int, int]] = {
        node.id: node.distances for node in rules.machine.nodes
    }
    assert decision.hints
    for trace in decision.hints:
        names = asked.given_devices if trace.container is None else [trace.container]
        devices = [each for name in names for each in asked.given_devices[name]]
        offered = dict(trace.providers)
        own = kubelets_hints(nodes, devices)
        shown = {name: hints and list(hints) for name, hints in offered[KUBELET_DEVICES].items()}
        assert shown == own
        merged, is_admitted = naive_merge(
            nodes.bits, distances, rules.policy.topology, [own, *list(offered.values())[1:]]
        )
        assert (trace.merged, trace.admitted) == (merged, is_admitted)


def test_on_a_machine_of_many_nodes_the_device_decides_as_well() -> None:
    rules = beside_kubelet(RESTRICTED, machine=MACHINES[9], memory=False)
    allocation = allocated(rules, one(nic(0, 7), cpus=1))
    assert allocation.containers[0].hint == Hint(1 << 7, preferred=True)
    both = allocated(rules, one(nic(0, 7), nic(1, 2), cpus=4))
    assert both.containers[0].hint == Hint(1 << 7 | 1 << 2, preferred=True)


@pytest.mark.parametrize("origin", [Origin.IMPORTED, Origin.RECOVERED])
def test_a_specification_that_completes_an_allocation_records_its_devices(origin: Origin) -> None:
    """Its CPUs stay where they are: the devices are recorded, and judged."""
    rules = beside_kubelet(SINGLE)
    asked = pod(app("main", guaranteed("cpu=2 memory=1Gi")))
    allocation = replace(allocated(rules, asked), spec_digest="", origin=origin)
    ledger = charged(rules, rules.empty_ledger(), allocation)
    decision = admit(rules, ledger, with_devices(asked, main=[nic(0, 1)]))
    assert decision.already_admitted
    assert decision.allocation is not None
    (main,) = decision.allocation.containers
    assert (main.cpus, list(given_devices(main))) == (allocation.containers[0].cpus, [nic(0, 1)])
    (near,) = [e for e in verdict(rules, decision.allocation) if e.quality is Quality.NEAR_DEVICE]
    assert near.why == f"{NIC} nic0 is on node 1, the container on node 0"

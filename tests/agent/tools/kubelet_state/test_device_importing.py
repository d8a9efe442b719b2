"""Devices from the kubelet's device manager to the ledger and back."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import Delivery
from agent.managers.device.manager import allocated_devices
from agent.managers.policy import NodeFit, PluginDevice
from agent.pods.model import QosClass
from agent.tools.kubelet_state.devices import DeviceEntry, DeviceState, response_of
from agent.tools.kubelet_state.exporting import kubelet_state
from agent.tools.kubelet_state.files import KubeletState
from agent.tools.kubelet_state.format import UnfitStateError
from agent.tools.kubelet_state.importing import take_over
from sysfs.mask import Mask
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.agent.pods.pods import app, guaranteed, pod, resources
from tests.agent.tools.kubelet_state.machines import cpu_state

if TYPE_CHECKING:
    from agent.managers.allocation import ContainerAllocation

GPU, NIC = "example.com/gpu", "example.com/nic"
RULES = make_rules(
    memory=False,
    devices={GPU: (PluginDevice("g0", Mask.of(0)), PluginDevice("g1", Mask.of(0, 1)))},
)
CPUS = cpu_state("0,3-15", {"u-1": {"a": "1-2"}})
DELIVERY = Delivery(MappingProxyType({"GPU": "g0"}), cdi_devices=("example.com/gpu=g0",))
G0 = DeviceEntry("u-1", "a", GPU, {0: ("g0",)}, response_of(DELIVERY))
REGISTERED = {GPU: ("g0", "g1")}
ASKED = pod(app("a", guaranteed(f"cpu=2 memory=1Gi {GPU}=1")))


def state(*entries: DeviceEntry, cpus: bool = True) -> KubeletState:
    return KubeletState(CPUS if cpus else None, None, DeviceState(entries, REGISTERED))


def only(found: KubeletState) -> ContainerAllocation:
    ledger = take_over(RULES, found).ledger
    (container,) = ledger.allocations["u-1"].containers
    return container


def test_devices_and_what_the_plugin_returned_are_taken_over() -> None:
    container = only(state(G0))
    assert container.devices == {GPU: ("g0",)}
    assert container.delivery == DELIVERY
    assert container.cpus == Mask.parse("1-2")


def test_devices_that_were_taken_over_are_given_to_no_other_pod() -> None:
    ledger = take_over(RULES, state(G0)).ledger
    assert allocated_devices(ledger) == {GPU: frozenset({"g0"})}
    decision = admit(RULES, ledger, pod(app("b", resources(limits=f"{GPU}=2")), uid="u-2"))
    assert not decision.admitted


def test_a_device_of_several_nodes_is_one_device() -> None:
    assert only(state(DeviceEntry("u-1", "a", GPU, {0: ("g1",), 1: ("g1",)}))).devices == {
        GPU: ("g1",)
    }


def test_what_is_taken_over_is_written_again_byte_for_byte() -> None:
    found = state(G0)
    ledger = take_over(RULES, found).ledger
    assert kubelet_state(RULES, ledger).devices == found.devices


def test_a_manifest_keeps_the_devices_and_what_the_plugin_returned() -> None:
    ledger = take_over(RULES, state(G0), {"u-1": ASKED}).ledger
    (container,) = ledger.allocations["u-1"].containers
    assert (container.devices, container.delivery) == ({GPU: ("g0",)}, DELIVERY)


def test_a_pod_with_devices_alone_gets_the_class_of_its_manifest() -> None:
    burstable = pod(app("a", resources("cpu=1", f"{GPU}=1")))
    ledger = take_over(RULES, state(G0, cpus=False), {"u-1": burstable}).ledger
    assert ledger.allocations["u-1"].qos is QosClass.BURSTABLE


def test_a_pod_with_devices_alone_is_not_taken_over_without_manifests() -> None:
    with pytest.raises(UnfitStateError, match=r"pod u-1 has devices alone, .* with --pods"):
        take_over(RULES, state(G0, cpus=False))


def test_a_pod_with_devices_alone_that_has_ended_is_left_out_and_noted() -> None:
    found = take_over(RULES, state(G0, cpus=False), {})
    assert not found.ledger.allocations
    assert "pod u-1 is left out: it only has devices, and --pods does not have it" in found.notes


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([replace(G0, devices={0: ("g9",)})], "g9, which agent.devices does not list"),
        ([replace(G0, resource=NIC)], "example.com/nic, of which no plugin is registered"),
        ([G0, replace(G0, uid="u-2")], "pods u-1 and u-2 both have example.com/gpu g0"),
        ([G0, G0], "example.com/gpu of container a of pod u-1 stands in two entries"),
        ([replace(G0, devices={1: ("g0",)})], "g0 is on NUMA nodes 1, agent.devices says 0"),
        ([replace(G0, devices={-1: ("g0",)})], "g0 is on NUMA nodes none, agent.devices says 0"),
        ([replace(G0, response=b"\xff\xff")], "the response of the device plugin cannot be read"),
        ([replace(G0, uid="../u")], '"../u" is not a valid uid'),
        ([replace(G0, container="A")], '"A" is not a valid name of a container'),
        ([replace(G0, resource="gpu")], '"gpu" is not a valid resource'),
        ([replace(G0, devices={0: ("g\n",)})], "is not a valid id of a device"),
    ],
)
def test_a_state_that_cannot_be_right_is_rejected_with_the_reason(
    entries: list[DeviceEntry], reason: str
) -> None:
    with pytest.raises(UnfitStateError) as caught:
        take_over(RULES, state(*entries))
    assert reason in str(caught.value)


def test_all_reasons_are_reported_at_once() -> None:
    bad = replace(G0, devices={0: ("g8", "g9")})
    with pytest.raises(UnfitStateError) as caught:
        take_over(RULES, state(bad, replace(G0, uid="u-2", resource=NIC)))
    assert len(caught.value.reasons) == 4  # two devices, one resource, one pod without a class


@pytest.mark.parametrize("number", [0, 2])
def test_a_manifest_with_another_number_of_devices_is_rejected(number: int) -> None:
    asked = pod(app("a", guaranteed(f"cpu=2 memory=1Gi {GPU}={number}")))
    expected = f"container a asks for {number} {GPU}, allocated are 1"
    with pytest.raises(UnfitStateError, match=expected):
        take_over(RULES, state(G0), {"u-1": asked})


def test_containers_of_one_pod_may_use_a_device_in_turn() -> None:
    found = take_over(RULES, state(G0, replace(G0, container="early")))
    devices = [each.devices for each in found.ledger.allocations["u-1"].containers]
    assert devices == [{GPU: ("g0",)}] * 2


def test_devices_of_a_plugin_are_taken_over_and_noted() -> None:
    found = DeviceState((replace(G0, resource=NIC, devices={-1: ("n0",)}),), {NIC: ()})
    taken = take_over(RULES, KubeletState(CPUS, None, found))
    assert allocated_devices(taken.ledger) == {NIC: frozenset({"n0"})}
    assert any(note.startswith(f"agent.devices does not list {NIC}") for note in taken.notes)
    written = kubelet_state(RULES, taken.ledger).devices
    assert written is not None
    assert written.registered == {**REGISTERED, NIC: ("n0",)}


def test_devices_of_an_ignored_resource_are_left_to_who_provides_them() -> None:
    rules = make_rules(memory=False, fit=NodeFit(ignored=frozenset({GPU})))
    found = take_over(rules, state(G0, replace(G0, uid="u-2")))
    assert not allocated_devices(found.ledger)
    expected = f"agent.ignoredResources lists {GPU}: its devices are left out"
    assert expected in found.notes


def test_beside_a_kubelet_devices_of_its_plugins_are_left_to_the_kubelet() -> None:
    rules = make_rules(memory=False, fit=NodeFit(beside_kubelet=True))
    found = take_over(rules, state(G0, replace(G0, uid="u-2")))
    assert not allocated_devices(found.ledger)
    expected = (
        f"{GPU} is a resource of the kubelet's plugins (agent.kubelet.enabled): its devices are "
        "left out"
    )
    assert expected in found.notes


def test_of_several_resources_the_first_delivers_what_the_container_gets() -> None:
    (allocation,) = take_over(RULES, state(G0)).ledger.allocations.values()
    (container,) = allocation.containers
    both = replace(container, devices={NIC: ("n0",), GPU: ("g0",)})
    ledger = ledger_with(replace(allocation, containers=(both,)))
    written = kubelet_state(RULES, ledger).devices
    assert written is not None
    assert [(each.resource, each.response) for each in written.entries] == [
        (GPU, response_of(DELIVERY)),
        (NIC, b""),
    ]


def test_without_devices_there_is_no_file() -> None:
    rules = make_rules(memory=False)
    assert kubelet_state(rules, rules.empty_ledger()).devices is None
    assert kubelet_state(RULES, RULES.empty_ledger()).devices == DeviceState((), REGISTERED)

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from hypothesis import given, settings
from msgspec.structs import replace

from agent.api.documents.document import decode, encode
from agent.api.documents.map import MapDocument, MapOwnerDocument
from agent.api.map import map_of_allocations, map_of_host
from agent.api.map_warnings import WARNINGS_LISTED
from agent.config.model import Config
from agent.managers.allocation import (
    DEVICES,
    ContainerAllocation,
    Isolation,
    MemoryBlock,
    PodAllocation,
)
from agent.managers.device.kubelet import KUBELET_DEVICES, KubeletListing
from agent.managers.machine import Machine
from agent.managers.memory.state import NodeMemory
from agent.managers.policy import PluginDevice
from agent.managers.violations import Violation
from agent.pods.model import ContainerKind, GivenDevice, QosClass
from agent.server.configured import situate
from sysfs.described import regular_host, with_memory_only_nodes
from sysfs.host import MemoryClass
from sysfs.mask import Mask
from tests.agent.api.maps import occupied_hosts
from tests.agent.managers.hosts import GIB, make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.sysfs.hosts import hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sysfs.host import Host
    from tests.agent.api.maps import Occupied

APP, INIT = ContainerKind.APP, ContainerKind.INIT


def _drawn(case: Occupied) -> MapDocument:
    return map_of_allocations(case.host, case.rules, case.ledger)


def _owners(case: Occupied, cpu: int) -> set[tuple[str, str | None]]:
    """Say who has a CPU, container by container."""
    found: set[tuple[str, str | None]] = set()
    for uid, pod in case.ledger.allocations.items():
        users = [c for c in pod.containers if c.cpus is not None and cpu in c.cpus]
        own = [c for c in users if c.isolation is Isolation.CONTAINER and c.kind is not INIT]
        if own:
            found |= {(uid, container.name) for container in own}
        elif users or (pod.cpus is not None and cpu in pod.cpus):
            found.add((uid, None))
    return found


@settings(max_examples=60, deadline=None)
@given(occupied_hosts())
def test_every_cpu_of_a_host_is_on_the_map_once_with_its_use_and_owners(case: Occupied) -> None:
    document = _drawn(case)
    assert [cpu.id for cpu in document.cpus] == [cpu.id for cpu in case.host.cpus]
    for drawn in document.cpus:
        owners = _owners(case, drawn.id)
        assert {(owner.uid, owner.container) for owner in drawn.owners} == owners
        if drawn.id in case.host.offline:
            expected = "offline"
        elif owners:
            expected = "exclusive" if any(container for _, container in owners) else "pod"
        else:
            expected = "reserved" if drawn.id in case.rules.policy.cpu.reserved else "shared"
        assert drawn.use == expected
        assert drawn.isolated == (drawn.id in case.host.isolated)


@settings(max_examples=60, deadline=None)
@given(occupied_hosts())
def test_a_core_is_named_exactly_if_its_threads_have_different_owners(case: Occupied) -> None:
    threads: dict[int, list[int]] = {}
    for cpu in case.host.cpus:
        if cpu.core is not None:
            threads.setdefault(cpu.core, []).append(cpu.id)
    expected = {
        str(Mask.from_ids(ids))
        for ids in threads.values()
        if len({frozenset(_owners(case, cpu)) for cpu in ids}) > 1
        or any(len(_owners(case, cpu)) > 1 for cpu in ids)
    }
    found = [each.cpus for each in _drawn(case).warnings if each.reason == "SharedCore"]
    assert sorted(found) == sorted(expected)


@settings(max_examples=30, deadline=None)
@given(occupied_hosts())
def test_a_map_survives_the_wire(case: Occupied) -> None:
    document = _drawn(case)
    assert decode(encode(document), MapDocument) == document


@settings(max_examples=30, deadline=None)
@given(hosts())
def test_the_map_of_a_host_alone_says_nothing_of_pods(host: Host) -> None:
    document = map_of_host(host)
    assert (document.policy, document.pods, document.warnings) == (None, (), ())
    uses = Counter(cpu.use for cpu in document.cpus)
    assert uses == +Counter(online=len(host.online), offline=len(host.offline))
    totals = {node.id: node.memory[0].total for node in document.nodes}
    assert totals == {node.id: node.memory_bytes for node in host.nodes}


HOST = regular_host(cores_per_node=4, threads=2, memory_bytes=16 * GIB, hugepages=[(2 << 20, 512)])


def _pod(name: str, *containers: ContainerAllocation, cpus: Mask | None = None) -> PodAllocation:
    return PodAllocation(name, name, "shop", QosClass.GUARANTEED, "x", containers, cpus)


def _own(
    name: str, cpus: str, mems: str = "", devices: Mapping[str, tuple[str, ...]] | None = None
) -> ContainerAllocation:
    memory = (MemoryBlock("memory", GIB, Mask.parse(mems)),) if mems else ()
    own = ContainerAllocation(name, APP, Isolation.CONTAINER, Mask.parse(cpus), memory)
    return own if devices is None else own.with_part(DEVICES, devices)


def _map(
    *pods: PodAllocation,
    not_found: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType({}),
    invalid: tuple[Violation, ...] = (),
    devices: Mapping[str, tuple[PluginDevice, ...]] | None = None,
) -> MapDocument:
    rules = make_rules(Machine.of(HOST), devices=devices)
    return map_of_allocations(HOST, rules, ledger_with(*pods), not_found=not_found, invalid=invalid)


def _reasons(document: MapDocument) -> list[str]:
    return [each.reason for each in document.warnings]


def test_a_sibling_in_the_shared_pool_shares_the_core() -> None:
    (warning,) = _map(_pod("a", _own("main", "1"))).warnings
    assert warning.message == (
        "core 1 is shared: CPU 1 of shop/a container main; CPU 9 is in the node's shared pool"
    )
    assert (warning.uids, warning.cpus) == (("a",), "1,9")


def test_whole_cores_and_the_sibling_of_a_reserved_cpu_are_not_named() -> None:
    assert _reasons(_map(_pod("a", _own("main", "1,9")))) == []


def test_a_sibling_that_stays_idle_is_its_pods_and_shares_no_core() -> None:
    document = _map(replace(_pod("a", _own("main", "1")), idle=Mask.of(9)))
    assert _reasons(document) == []
    (sibling,) = (each for each in document.cpus if each.id == 9)
    assert sibling.owners == (MapOwnerDocument(uid="a", idle=True),)


def test_memory_on_another_node_than_the_cpus_is_named() -> None:
    document = _map(
        _pod("near", _own("main", "1,9", "0")),
        _pod("far", _own("main", "2,10", "1")),
        _pod("wide", _own("main", "3,11", "0-1")),
    )
    assert [warning.message for warning in document.warnings] == [
        "shop/far container main: CPUs 2,10 are on node 0, its memory on node 1",
        "shop/wide container main: CPUs 3,11 are on node 0, its memory on nodes 0-1",
    ]


def test_containers_that_are_not_found_are_named() -> None:
    pod = _pod("a", *(_own(f"c{number}", "1,9") for number in range(6)))
    assert "NotStarted" not in _reasons(_map(pod))
    absent = ("c1", "c2", "c3", "c4", "c5")
    document = _map(pod, not_found={"a": ("not started", absent)})
    assert document.pods[0].not_found == absent
    assert (document.warnings[-1].reason, document.warnings[-1].message) == (
        "NotStarted",
        "shop/a: not started in its cgroup: c1, c2, c3, c4 and 1 more",
    )


def test_an_invalid_allocation_is_named_with_its_remedy() -> None:
    violation = Violation("a", "shop/a", None, "cpu offline", "CPU 1 is offline", "switch it on")
    document = _map(_pod("a", _own("main", "1,9")), invalid=(violation,))
    assert [(each.reason, each.message) for each in document.warnings] == [
        ("AllocationInvalid", str(violation))
    ]


def test_warnings_are_bounded_and_the_rest_is_counted() -> None:
    violations = tuple(
        Violation("a", "shop/a", None, "rule", f"number {number}", "none")
        for number in range(WARNINGS_LISTED + 5)
    )
    document = _map(invalid=violations)
    assert (len(document.warnings), document.more_warnings) == (WARNINGS_LISTED, 5)


def test_nodes_have_their_classes_of_memory_though_no_pod_can_ask_for_one() -> None:
    host = with_memory_only_nodes(regular_host(), [GIB])
    [*others, last] = host.nodes
    host = replace(host, nodes=(*others, replace(last, backing=MemoryClass.CXL)))
    rules = situate(Config(), host).rules
    drawn = map_of_allocations(host, rules, rules.empty_ledger())
    assert [node.memory_class for node in drawn.nodes] == ["dram"] * len(others) + ["cxl"]


def test_memory_is_split_into_reserved_allocated_and_free() -> None:
    charge = {node: NodeMemory(1, Mask.of(node), {"memory": (2 + node) * GIB}) for node in (0, 1)}
    document = map_of_allocations(HOST, make_rules(Machine.of(HOST)), ledger_with(memory=charge))
    for node in document.nodes:
        memory, pages = node.memory
        # One GiB is reserved and one is in huge pages.
        assert (memory.total, memory.reserved) == (16 * GIB, 2 * GIB)
        assert (memory.allocated, memory.free) == ((2 + node.id) * GIB, (12 - node.id) * GIB)
        assert (pages.type, pages.total, pages.free) == ("hugepages-2Mi", GIB, GIB)


def test_without_a_memory_policy_nothing_is_said_of_free_memory() -> None:
    rules = make_rules(Machine.of(HOST), memory=False)
    document = map_of_allocations(HOST, rules, rules.empty_ledger())
    assert {memory.free for node in document.nodes for memory in node.memory} == {None}


def test_devices_are_named_with_the_container_that_has_them() -> None:
    devices = {
        "x/gpu": (PluginDevice("g0", Mask.of(0)), PluginDevice("g1", Mask.of(1), healthy=False))
    }
    document = _map(_pod("a", _own("main", "1,9", devices={"x/gpu": ("g0",)})), devices=devices)
    first, second = document.devices
    assert (first.name, first.nodes, first.owner) == (
        "g0",
        "0",
        MapOwnerDocument(uid="a", container="main"),
    )
    assert (second.name, second.nodes, second.owner, second.healthy) == ("g1", "1", None, False)


def test_devices_of_the_kubelet_are_on_the_map_with_the_pod_that_has_each() -> None:
    recorded = {"x/nic": {"n0": "0", "gone": "1"}}
    mine = _pod("a", _own("main", "1,9").with_part(KUBELET_DEVICES, recorded))
    allocatable = (
        GivenDevice("x/nic", "n0", Mask.of(0)),
        GivenDevice("x/nic", "n1", Mask.of(0, 1)),
        GivenDevice("x/nic", "n2"),
        GivenDevice("x/gpu", "g0", Mask.of(0)),
    )
    kubelet = KubeletListing({("shop", "b"): {"c": (allocatable[2],)}}, allocatable)
    own = {"x/gpu": (PluginDevice("g0", Mask.of(0)),)}
    rules = make_rules(Machine.of(HOST), devices=own)
    document = map_of_allocations(HOST, rules, ledger_with(mine), kubelet=kubelet)
    owner = MapOwnerDocument(uid="a", container="main")
    assert [
        (each.name, each.nodes, each.healthy, each.owner, each.pod)
        for each in document.devices
        if each.kubelet
    ] == [
        ("gone", "1", False, owner, ""),
        ("n0", "0", True, owner, ""),
        ("n1", "0-1", True, None, ""),
        ("n2", "", True, None, "shop/b"),
    ]
    assert [each.name for each in document.devices if not each.kubelet] == ["g0"]


def test_devices_that_were_recorded_are_on_the_map_while_the_kubelet_does_not_answer() -> None:
    recorded = {"x/nic": {"n0": "1"}}
    document = _map(_pod("a", _own("main", "1,9").with_part(KUBELET_DEVICES, recorded)))
    (device,) = document.devices
    assert (device.name, device.nodes, device.healthy, device.kubelet) == ("n0", "1", True, True)
    assert device.owner == MapOwnerDocument(uid="a", container="main")

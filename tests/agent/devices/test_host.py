"""Which devices of a host each resource has, and what a container gets with them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.devices import HostDeviceClass
from agent.devices.host import remembering
from agent.devices.host_delivery import deliver
from agent.devices.host_selection import Selection, select
from agent.managers.delivery import DeviceNode
from sysfs.devices import DeviceFunction, Functions, read_functions
from sysfs.files import SysfsTree
from sysfs.host import Device
from sysfs.links import Link
from tests.sysfs.pci import PciTree, network_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

VF: Final = "example.com/vf"
NIC: Final = "example.com/nic"
FUNCTIONS: Final = tuple(f"0000:3b:02.{number}" for number in range(4))
PORTS: Final = ("0000:3b:00.0", "0000:3b:00.1")


def selected(root: Path, *classes: HostDeviceClass) -> Selection:
    return select(classes, read_functions(SysfsTree(root)))


def functions(root: Path) -> Mapping[str, DeviceFunction]:
    return read_functions(SysfsTree(root)).functions


def nodes_of(root: Path) -> list[str]:
    """Return the device nodes that come with all devices of a host."""
    return [node.host_path for node in deliver(VF, functions(root).values()).device_nodes]


def ids(selection: Selection, resource: str = VF) -> tuple[str, ...]:
    return tuple(device.id for device in selection.offer.devices[resource])


def healthy(selection: Selection, resource: str = VF) -> tuple[str, ...]:
    return tuple(device.id for device in selection.offer.devices[resource] if device.healthy)


@pytest.fixture
def network(tmp_path: Path) -> PciTree:
    return network_host(tmp_path)


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({"virtual_functions_of": "ens?f[0-3]"}, FUNCTIONS),
        ({"virtual_functions_of": "ens1f0", "driver": "vfio-pci"}, FUNCTIONS[:2]),
        ({"driver": "vfio-pci"}, FUNCTIONS[:2]),
        ({"vendor": "8086", "device": "1889"}, FUNCTIONS),
        ({"pci_class": "02"}, PORTS + FUNCTIONS),
        ({"pci_class": "020000", "driver": "ice"}, PORTS),
        ({"interface": "ens1f?"}, PORTS),
        ({"interface": "ens1f*"}, PORTS + FUNCTIONS[2:]),
        ({"address": "0000:3b:02.[13]"}, (FUNCTIONS[1], FUNCTIONS[3])),
        ({"pci_class": "0207"}, ()),
        ({"vendor": "8086", "device": "1889", "driver": "ice"}, ()),
    ],
)
def test_a_class_has_the_devices_that_meet_all_its_criteria(
    network: PciTree, criteria: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert ids(selected(network.root, HostDeviceClass(VF, **criteria))) == expected


def test_the_classes_of_one_resource_are_joined_without_a_condition(network: PciTree) -> None:
    classes = [HostDeviceClass(VF, address=f"*.{end}") for end in ("[0-2]", "[2-3]")]
    selection = selected(network.root, *classes, HostDeviceClass(NIC, driver="ice"))
    assert ids(selection) == PORTS + FUNCTIONS
    assert not any("count" in line for line in selection.conditions if "nic" not in line)


def test_a_device_of_two_resources_counts_for_the_first_with_a_condition(network: PciTree) -> None:
    vf = HostDeviceClass(VF, virtual_functions_of="ens1f0")
    everything = HostDeviceClass(NIC, pci_class="02")
    selection = selected(network.root, vf, everything)
    assert (ids(selection), ids(selection, NIC)) == (FUNCTIONS, PORTS)
    assert any(
        line.startswith(
            f"agent.hostDevices: {FUNCTIONS[0]} and 3 more are of {VF} and of {NIC} and count for"
        )
        for line in selection.conditions
    )
    assert ids(selected(network.root, everything, vf), NIC) == PORTS + FUNCTIONS


def test_a_class_without_a_device_is_a_condition_and_its_resource_is_known(tmp_path: Path) -> None:
    PciTree(tmp_path)
    selection = selected(tmp_path, HostDeviceClass(VF, driver="vfio-pci", vendor="8086"))
    assert selection.offer.devices == {VF: ()}
    (line,) = selection.conditions
    assert f'agent.hostDevices["{VF}"]: no device meets vendor 8086, driver vfio-pci' in line


def test_a_port_without_virtual_functions_is_named_with_their_file(network: PciTree) -> None:
    (line,) = selected(network.root, HostDeviceClass(VF, virtual_functions_of="*f1")).conditions
    assert "ens1f1 has no virtual functions" in line
    assert "/sys/class/net/ens1f1/device/sriov_numvfs" in line
    vf = HostDeviceClass(VF, virtual_functions_of="ens1f0", driver="ice")
    (line,) = selected(network.root, vf).conditions
    assert "no device meets driver ice, virtualFunctionsOf ens1f0; compare with" in line


def test_an_interface_is_healthy_as_long_as_its_link_is_up(network: PciTree) -> None:
    nic = HostDeviceClass(NIC, interface="ens1f?")
    selection = selected(network.root, nic)
    assert healthy(selection, NIC) == PORTS[:1]
    assert selection.faults[NIC, PORTS[1]] == "the link of ens1f1 is down"
    network.set_link(PORTS[1], "ens1f1", "up")
    assert healthy(selected(network.root, nic), NIC) == PORTS


def test_a_device_with_several_interfaces_is_healthy_if_one_is_up(network: PciTree) -> None:
    network.add_interface(PORTS[0], "ens1f0d1", "down")
    nic = HostDeviceClass(NIC, interface="ens1f0")
    assert healthy(selected(network.root, nic), NIC) == PORTS[:1]
    network.set_link(PORTS[0], "ens1f0", "dormant")
    (fault,) = selected(network.root, nic).faults.values()
    assert fault == "the link of ens1f0 is dormant and the link of ens1f0d1 is down"


def test_virtual_functions_go_by_their_physical_functions_link(network: PciTree) -> None:
    vf = HostDeviceClass(VF, virtual_functions_of="ens1f0")
    assert healthy(selected(network.root, vf)) == FUNCTIONS
    network.set_link(PORTS[0], "ens1f0", "down")
    selection = selected(network.root, vf)
    assert healthy(selection) == ()
    assert set(selection.faults.values()) == {"the link of ens1f0 is down"}
    assert selection.conditions == (
        f"{VF}: {FUNCTIONS[0]} and 3 more are not healthy: the link of ens1f0 is down",
    )


def test_an_enabled_interface_of_a_virtual_function_goes_by_its_own_link(network: PciTree) -> None:
    for number, state in ((2, "up"), (3, "down")):
        network.add_interface(FUNCTIONS[number], f"ens1f0v{number}", state, flags=0x1003)
    network.set_link(PORTS[0], "ens1f0", "down")
    network.set_link(PORTS[0], "ens1f0", "up")
    vf = HostDeviceClass(VF, driver="iavf", virtual_functions_of="ens1f0")
    assert healthy(selected(network.root, vf)) == (FUNCTIONS[2],)
    network.set_link(PORTS[0], "ens1f0", "down")
    assert healthy(selected(network.root, vf)) == (FUNCTIONS[2],)


def test_a_virtual_function_whose_link_is_disabled_is_not_healthy(network: PciTree) -> None:
    live = [Link("ens1f0", PORTS[0], "up", disabled_functions=frozenset({1, 3}))]
    found = read_functions(SysfsTree(network.root), live)
    selection = select([HostDeviceClass(VF, virtual_functions_of="ens1f0")], found)
    assert healthy(selection) == (FUNCTIONS[0], FUNCTIONS[2])
    assert "disabled" in selection.faults[VF, FUNCTIONS[1]]


def test_a_virtual_function_of_a_port_out_of_sight_is_healthy(network: PciTree) -> None:
    network.move_away(PORTS[0], "ens1f0")
    assert healthy(selected(network.root, HostDeviceClass(VF, device="1889"))) == FUNCTIONS


def test_a_device_without_the_driver_of_its_class_is_not_healthy(network: PciTree) -> None:
    network.unbind(FUNCTIONS[0])
    network.bind(FUNCTIONS[1], "iavf")
    vf = HostDeviceClass(VF, virtual_functions_of="ens1f0", driver="vfio-pci")
    selection = selected(network.root, vf)
    assert (ids(selection), healthy(selection)) == (FUNCTIONS[:1], ())
    assert "bind vfio-pci" in selection.faults[VF, FUNCTIONS[0]]


@pytest.mark.parametrize(
    ("kind", "works"),
    [
        *((kind, False) for kind in ("010802", "088000", "0b4000", "108000", "120000")),
        *((kind, True) for kind in ("058000", "070001", "118000", "ff0000")),
    ],
)
def test_a_device_without_a_driver_is_healthy_where_it_can_be_used_without_one(
    tmp_path: Path, kind: str, *, works: bool
) -> None:
    PciTree(tmp_path).add("0000:86:00.0", kind=kind)
    selection = selected(tmp_path, HostDeviceClass(VF, pci_class=kind[:2]))
    assert bool(healthy(selection)) is works
    assert ["no driver is bound to it" in line for line in selection.conditions] == (
        [] if works else [True]
    )


@pytest.mark.parametrize(("state", "works"), [("live", True), ("resetting", True), ("dead", False)])
def test_a_drive_whose_controller_is_dead_is_not_healthy(
    tmp_path: Path, state: str, *, works: bool
) -> None:
    tree = PciTree(tmp_path)
    place = tree.add("0000:86:00.0", kind="010802", driver="nvme")
    tree.add_node(f"{place}/nvme/nvme5", "nvme5")
    tree.write({f"{place}/nvme/nvme5/state": f"{state}\n"})
    selection = selected(tmp_path, HostDeviceClass(VF, pci_class="0108"))
    assert bool(healthy(selection)) is works
    if not works:
        (line,) = selection.conditions
        assert line.startswith(f"{VF}: 0000:86:00.0 is not healthy: its controller is dead")


@pytest.mark.parametrize(
    ("driver", "kind", "works"),
    [
        ("snd_hda_intel", "040300", False),
        ("", "040300", True),
        ("vfio-pci", "040300", True),
        ("pci-stub", "040300", True),
        ("pcieport", "060400", True),
        ("", "060400", True),
        ("shpchp", "060400", False),
        ("lpc_ich", "060100", False),
    ],
)
def test_a_group_that_a_driver_of_the_host_uses_cannot_be_opened(
    tmp_path: Path, driver: str, kind: str, *, works: bool
) -> None:
    tree = PciTree(tmp_path)
    tree.add("0000:70:00.0", kind="030000", driver="vfio-pci", group=7)
    tree.add("0000:70:00.1", kind=kind, driver=driver, group=7)
    selection = selected(tmp_path, HostDeviceClass(VF, pci_class="03"))
    assert bool(healthy(selection)) is works
    if not works:
        (line,) = selection.conditions
        assert f"{driver} is bound to 0000:70:00.1 of that group" in line


def test_a_vfio_device_without_an_iommu_group_is_not_healthy(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    tree.add("0000:86:00.0", driver="vfio-pci")
    tree.add("0000:86:00.1", driver="vfio-pci", group=0)
    selection = selected(tmp_path, HostDeviceClass(VF, driver="vfio-pci"))
    assert healthy(selection) == ("0000:86:00.1",)
    assert "IOMMU" in selection.faults[VF, "0000:86:00.0"]


def test_of_the_devices_of_one_iommu_group_one_is_given(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    for number, driver in enumerate(("vfio-pci", "vfio-pci", "ice", "ice")):
        tree.add(f"0000:86:00.{number}", driver=driver, group=9 + number // 2)
    classes, found = (HostDeviceClass(VF, pci_class="02"),), read_functions(SysfsTree(tmp_path))
    selection = select(classes, found)
    assert healthy(selection) == ("0000:86:00.0", "0000:86:00.2", "0000:86:00.3")
    (line,) = selection.conditions
    assert "only one process can open IOMMU group 9, in which 0000:86:00.0 is as well" in line
    of_a_pod = select(classes, found, {VF: ("0000:86:00.1",)})
    assert healthy(of_a_pod) == ("0000:86:00.1", "0000:86:00.2", "0000:86:00.3")
    assert ids(of_a_pod) == ids(selection)


@pytest.mark.parametrize("asked", ["0000:3b:02.?", "0000:3b:02.1"])
def test_a_group_that_a_pod_may_have_open_is_not_given_again(network: PciTree, asked: str) -> None:
    first, second = FUNCTIONS[:2]
    network.link(f"{network.place(second)}/iommu_group", "sys/kernel/iommu_groups/60")
    disabled = [Link("ens1f0", PORTS[0], "up", disabled_functions=frozenset({0}))]
    found = read_functions(SysfsTree(network.root), disabled)
    classes = (HostDeviceClass(VF, address=asked, driver="vfio-pci"),)
    assert healthy(select(classes, found)) == (second,)
    for allocated, given_since in (({VF: (first,)}, ()), ({}, (first,))):
        selection = select(classes, found, allocated, given_since)
        assert healthy(selection) == ()
        assert f"in which {first} is as well" in selection.faults[VF, second]


def test_vfio_devices_come_with_addresses_and_the_nodes_of_their_groups(network: PciTree) -> None:
    found = functions(network.root)
    delivery = deliver(VF, [found[FUNCTIONS[1]], found[FUNCTIONS[0]]])
    assert delivery.pci_addresses == (FUNCTIONS[1], FUNCTIONS[0])
    addresses = f"{FUNCTIONS[1]},{FUNCTIONS[0]}"
    info = json.loads(delivery.environment["PCIDEVICE_EXAMPLE_COM_VF_INFO"])
    assert delivery.environment["PCIDEVICE_EXAMPLE_COM_VF"] == addresses
    assert info[FUNCTIONS[0]] == {
        "generic": {"deviceID": FUNCTIONS[0]},
        "vfio": {"dev-mount": "/dev/vfio/60", "mount": "/dev/vfio/vfio"},
    }
    assert list(info) == sorted((FUNCTIONS[0], FUNCTIONS[1]))
    paths = ("/dev/vfio/vfio", "/dev/vfio/61", "/dev/vfio/60")
    assert delivery.device_nodes == tuple(DeviceNode(path, path, "rw") for path in paths)


def test_a_vfio_device_comes_with_its_character_device_and_iommufd(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    place = tree.add("0000:86:00.0", driver="vfio-pci", group=4)
    tree.add_node(f"{place}/vfio-dev/vfio3", "vfio/devices/vfio3")
    tree.add_node("sys/class/misc/iommu", "iommu")
    group = ["/dev/vfio/vfio", "/dev/vfio/4"]
    assert nodes_of(tmp_path) == [*group, "/dev/vfio/devices/vfio3", "/dev/iommu"]


def test_an_rdma_device_comes_with_its_verbs_and_its_clock(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    place = tree.add("0000:af:00.0", ids="15b3:1017", driver="mlx5_core")
    tree.add_node(f"{place}/infiniband_verbs/uverbs0", "infiniband/uverbs0")
    tree.add_node(f"{place}/infiniband_mad/issm0", "infiniband/issm0")
    tree.add_node(f"{place}/infiniband_mad/umad0", "infiniband/umad0")
    tree.add_node(f"{place}/ptp/ptp3", "ptp3")
    tree.add_node("sys/class/misc/rdma_cm", "infiniband/rdma_cm")
    delivery = deliver(NIC, functions(tmp_path).values())
    names = {"uverbs": "uverbs0", "rdma_cm": "rdma_cm", "issm": "issm0", "umad": "umad0"}
    rdma = {kind: f"/dev/infiniband/{name}" for kind, name in names.items()}
    info = json.loads(delivery.environment["PCIDEVICE_EXAMPLE_COM_NIC_INFO"])
    assert info["0000:af:00.0"]["rdma"] == rdma
    paths = {node.host_path for node in delivery.device_nodes}
    assert paths == {*rdma.values(), "/dev/ptp3"}


def test_a_group_without_an_iommu_has_another_node(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    tree.add("0000:86:00.0", driver="mlx5_vfio_pci", group=4)
    tree.write({"sys/kernel/iommu_groups/4/name": "vfio-noiommu\n"})
    assert nodes_of(tmp_path) == ["/dev/vfio/vfio", "/dev/vfio/noiommu-4"]


def test_an_interface_comes_with_its_name_and_without_nodes(network: PciTree) -> None:
    found = functions(network.root)
    delivery = deliver(NIC, [found[FUNCTIONS[2]], found[PORTS[1]]])
    assert delivery.environment == {
        "PCIDEVICE_EXAMPLE_COM_NIC": f"{FUNCTIONS[2]},{PORTS[1]}",
        "PCIDEVICE_EXAMPLE_COM_NIC_INFO": (
            '{"0000:3b:00.1":{"generic":{"deviceID":"0000:3b:00.1"}},'
            '"0000:3b:02.2":{"generic":{"deviceID":"0000:3b:02.2"}}}'
        ),
        "NETDEVICE_EXAMPLE_COM_NIC": "ens1f0v2,ens1f1",
    }
    assert delivery.device_nodes == ()


def test_an_interface_on_no_pci_device_comes_with_its_name_alone() -> None:
    delivery = deliver(NIC, [DeviceFunction(Device("net", "eth9", "", 0), interfaces=("eth9",))])
    assert delivery.environment == {"NETDEVICE_EXAMPLE_COM_NIC": "eth9"}
    assert delivery.pci_addresses == ()


def test_nvme_comes_with_its_controller_and_namespaces(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    place = tree.add("0000:5e:00.0", kind="010802", driver="nvme")
    tree.add_node(f"{place}/nvme/nvme0", "nvme0")
    tree.add_node(f"{place}/nvme/nvme0/nvme0n1", "nvme0n1")
    assert nodes_of(tmp_path) == ["/dev/nvme0", "/dev/nvme0n1"]


_NIC: Final = HostDeviceClass(NIC, interface="ens1f0")


def test_a_device_whose_interface_moved_to_a_container_stays_in_its_class(network: PciTree) -> None:
    before = read_functions(SysfsTree(network.root))
    network.move_away(PORTS[0], "ens1f0")
    found = remembering(before, read_functions(SysfsTree(network.root)))
    selection = select([_NIC, HostDeviceClass(VF, virtual_functions_of="ens1f0")], found)
    assert healthy(selection, NIC) == PORTS[:1]
    assert healthy(selection) == FUNCTIONS


def _with_another_driver(network: PciTree) -> None:
    network.move_away(PORTS[0], "ens1f0")
    network.bind(PORTS[0], "vfio-pci")


def _of_another_device(network: PciTree) -> None:
    for port, name in zip(PORTS, ("ens1f0", "ens1f1"), strict=True):
        network.move_away(port, name)
    network.add_interface(PORTS[1], "ens1f0")


def _gone(network: PciTree) -> None:
    network.remove(PORTS[0])


@pytest.mark.parametrize(
    ("change", "left"), [(_with_another_driver, ()), (_of_another_device, PORTS[1:]), (_gone, ())]
)
def test_an_interface_that_the_device_cannot_have_any_more_is_forgotten(
    network: PciTree, change: Callable[[PciTree], None], left: tuple[str, ...]
) -> None:
    before = read_functions(SysfsTree(network.root))
    change(network)
    found = remembering(before, read_functions(SysfsTree(network.root)))
    assert ids(select([_NIC], found), NIC) == left


_DRIVERS: Final = ("", "ice", "vfio-pci")
_NAMES: Final = ("ens1", "ens2", "eth0")


@st.composite
def _functions(draw: st.DrawFn) -> Functions:
    found: dict[str, DeviceFunction] = {}
    names = [*_NAMES]
    for number in range(draw(st.integers(0, 6))):
        address = f"0000:3b:00.{number}"
        own = tuple(names.pop() for _ in range(draw(st.integers(0, 1))) if names)
        place = Device(
            "pci",
            address,
            address,
            draw(st.sampled_from([None, 0, 1])),
            vendor=draw(st.sampled_from(["", "0x8086", "0x15b3"])),
            device=draw(st.sampled_from(["0x1592", "0x1889"])),
            device_class=draw(st.sampled_from(["", "0x020000", "0x020700", "0x010802"])),
        )
        found[address] = DeviceFunction(
            place=place,
            driver=draw(st.sampled_from(_DRIVERS)),
            iommu_group=draw(st.none() | st.just(7)),
            physical_function=draw(st.sampled_from(["", *found])),
            interfaces=own,
        )
    links = {
        name: Link(name, state=draw(st.sampled_from(["up", "down"])), enabled=draw(st.booleans()))
        for name in _NAMES
    }
    return Functions(found, links)


_CRITERIA: Final = st.fixed_dictionaries(
    {},
    optional={
        "pci_class": st.sampled_from(["02", "0200", "010802"]),
        "vendor": st.just("8086"),
        "device": st.just("1889"),
        "driver": st.sampled_from(_DRIVERS[1:]),
        "address": st.sampled_from(["*.1", "*"]),
        "interface": st.sampled_from(["ens*", "eth0"]),
        "virtual_functions_of": st.sampled_from(["ens1", "e*"]),
    },
).filter(bool)
_CLASSES: Final = st.lists(
    st.builds(
        lambda resource, criteria: HostDeviceClass(resource, **criteria),
        st.sampled_from(["a.b/c", "a.b/d"]),
        _CRITERIA,
    ),
    min_size=1,
    max_size=4,
    unique=True,
)


def _matches(pattern: str, names: Iterable[str]) -> bool:
    expression = re.escape(pattern).replace(r"\*", ".*")
    return any(re.fullmatch(expression, name) for name in names)


def _criteria(asked: HostDeviceClass, function: DeviceFunction, found: Functions) -> list[bool]:
    """Return whether each criterion is met that a class has; the driver is the last."""
    place, physical = function.place, found.functions.get(function.physical_function)
    ports = physical.interfaces if physical else ()
    met: list[Any] = [
        asked.pci_class and (place.device_class.startswith(f"0x{asked.pci_class}"),),
        asked.vendor and (place.vendor == f"0x{asked.vendor}",),
        asked.device and (place.device == f"0x{asked.device}",),
        asked.address and (_matches(asked.address, [place.address]),),
        asked.interface and (_matches(asked.interface, function.interfaces),),
        asked.virtual_functions_of and (_matches(asked.virtual_functions_of, ports),),
    ]
    others = [each[0] for each in met if each]
    if not asked.driver:
        return others
    return [*others, function.driver == asked.driver or (bool(others) and not function.driver)]


def _reference(classes: Sequence[HostDeviceClass], found: Functions) -> dict[str, list[str]]:
    chosen: dict[str, list[str]] = {each.resource: [] for each in classes}
    for address in sorted(found.functions):
        for each in classes:
            if all(_criteria(each, found.functions[address], found)):
                chosen[each.resource].append(address)
                break
    return chosen


@given(_CLASSES, _functions())
def test_devices_are_as_a_reference_says(classes: list[HostDeviceClass], found: Functions) -> None:
    selection = select(classes, found)
    chosen = _reference(classes, found)
    assert {resource: list(ids(selection, resource)) for resource in chosen} == chosen
    assert selection.offer.devices.keys() == chosen.keys()


@given(_CLASSES, _functions())
def test_a_selection_agrees_with_itself(classes: list[HostDeviceClass], found: Functions) -> None:
    selection = select(classes, found)
    offered = [
        (resource, device)
        for resource, devices in selection.offer.devices.items()
        for device in devices
    ]
    listed = [device.id for _, device in offered]
    assert len(listed) == len(set(listed))
    for resource, device in offered:
        assert device.healthy == ((resource, device.id) not in selection.faults)
        node = found.functions[device.id].place.node
        assert list(device.nodes) == ([] if node is None else [node])
    assert len(selection.conditions) == len(set(selection.conditions))
    assert select(classes, found) == selection

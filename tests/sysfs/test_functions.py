from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.devices import (
    BLOCK_DIRECTORY,
    GENERIC_DIRECTORY,
    PCI_DIRECTORY,
    DeviceFunction,
    read_functions,
)
from sysfs.files import SysfsTree
from sysfs.links import NET_DIRECTORY, Link
from tests.sysfs.machines import Machine, machines
from tests.sysfs.pci import PciTree, network_host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NIC = "0000:3b:00.0"
NVME = "0000:5e:00.0"
REAL = [machine for machine in machines() if "pcilocality" in machine.name]


def read(root: Path) -> dict[str, DeviceFunction]:
    """Return the devices of a tree that has nothing odd."""
    tree = SysfsTree(root)
    found = read_functions(tree)
    assert tree.warnings == ()
    return dict(found.functions)


def test_a_device_has_its_driver_its_iommu_group_and_its_node(tmp_path: Path) -> None:
    PciTree(tmp_path).add(NIC, "15b3:101d", "020000", node=1, driver="mlx5_core", group=17)
    (function,) = read(tmp_path).values()
    assert (function.id, function.driver, function.iommu_group) == (NIC, "mlx5_core", 17)
    assert (function.place.vendor, function.place.device) == ("0x15b3", "0x101d")
    assert (function.place.device_class, function.place.node) == ("0x020000", 1)
    assert function.isolated


def test_a_group_of_vfio_without_an_iommu_isolates_nothing(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    tree.add(NIC, driver="vfio-pci", group=0)
    tree.write({"sys/kernel/iommu_groups/0/name": "vfio-noiommu\n"})
    (function,) = read(tmp_path).values()
    assert (function.iommu_group, function.isolated) == (0, False)


def test_physical_and_virtual_functions_know_each_other(tmp_path: Path) -> None:
    network_host(tmp_path)
    functions = read(tmp_path)
    addresses = [f"0000:3b:02.{number}" for number in range(4)]
    assert functions[NIC].virtual_functions == dict(enumerate(addresses))
    assert [functions[each].physical_function for each in addresses] == [NIC] * 4
    assert functions["0000:3b:00.1"].virtual_functions == {}
    assert functions[NIC].physical_function == ""


def test_interfaces_are_those_of_the_device_whatever_bus_is_between(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    place = tree.add(NIC, "1af4:1041", driver="virtio-pci")
    tree.add("0000:3b:00.1")
    tree.write({f"{place}/virtio2/net/eth0/operstate": "up\n"})
    tree.link(f"{NET_DIRECTORY}/eth0", f"{place}/virtio2/net/eth0")
    functions = read(tmp_path)
    assert functions[NIC].interfaces == ("eth0",)
    assert functions["0000:3b:00.1"].interfaces == ()


def test_an_interface_on_no_pci_device_is_a_device_by_its_name(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    tree.write({"sys/devices/platform/soc/net/eth9/operstate": "up\n"})
    tree.write({"sys/devices/platform/soc/numa_node": "1\n"})
    tree.link("sys/devices/platform/soc/driver", "sys/bus/platform/drivers/stmmac")
    tree.link("sys/devices/platform/soc/net/eth9/device", "sys/devices/platform/soc")
    tree.link(f"{NET_DIRECTORY}/eth9", "sys/devices/platform/soc/net/eth9")
    (function,) = read(tmp_path).values()
    assert (function.id, function.place.address, function.driver) == ("eth9", "", "stmmac")
    assert (function.interfaces, function.place.node) == (("eth9",), 1)


def test_nvme_has_the_nodes_of_its_controller_and_of_its_namespaces(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    place = tree.add(NVME, "144d:a80a", "010802", driver="nvme")
    controller = f"{place}/nvme/nvme1"
    tree.add_node(controller, "nvme1")
    for name in ("nvme1n1", "ng1n1", "hwmon3"):
        tree.add_node(f"{controller}/{name}", name)
    for name in ("\udcff", "a b", "x" * 65):  # names that no driver gives
        tree.add_node(f"{place}/nvme/{name}", "nvme0")
    # One behind one of several paths is that of its subsystem.
    tree.write({f"{controller}/nvme0c1n4/uevent": "DEVTYPE=disk\n"})
    subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    for directory, name in ((BLOCK_DIRECTORY, "nvme0n4"), (GENERIC_DIRECTORY, "ng0n4")):
        tree.add_node(f"{subsystem}/{name}", name)
        tree.link(f"{directory}/{name}", f"{subsystem}/{name}")
    assert [each.removeprefix("/dev/") for each in read(tmp_path)[NVME].nodes] == [
        *("nvme1", "ng1n1", "nvme0n4", "ng0n4", "nvme1n1")
    ]


def test_graphics_and_accelerators_have_their_nodes_and_connectors_none(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    place = tree.add("0000:86:00.0", "1002:740f", "038000", driver="amdgpu")
    tree.add_node(f"{place}/drm/card1", "dri/card1")
    tree.add_node(f"{place}/drm/renderD128", "dri/renderD128")
    tree.write({f"{place}/drm/card1-DP-1/uevent": "DEVTYPE=drm_connector\n"})
    place = tree.add("0000:87:00.0", "1da3:1020", "120000", driver="habanalabs")
    tree.add_node(f"{place}/accel/accel0", "accel/accel0")
    functions = read(tmp_path)
    assert functions["0000:86:00.0"].nodes == ("/dev/dri/card1", "/dev/dri/renderD128")
    assert functions["0000:87:00.0"].nodes == ("/dev/accel/accel0",)


def test_netlinks_link_wins_and_a_link_that_netlink_alone_knows_is_placed_by_it(
    tmp_path: Path,
) -> None:
    tree = PciTree(tmp_path)
    tree.add(NIC)
    tree.add_interface(NIC, "ens1f0", "down")
    live = [Link("ens1f0", state="up"), Link("ens9", NIC, "dormant"), Link("lo")]
    found = read_functions(SysfsTree(tmp_path), live)
    assert found.functions[NIC].interfaces == ("ens1f0", "ens9")
    assert dict(found.links) == {"ens1f0": live[0], "ens9": live[1]}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("driver", "sys/bus/pci/drivers/a b"),
        ("driver", "sys/bus/pci/drivers/" + "d" * 65),
        ("driver", "sys/bus/pci/drivers/\udcff"),
        ("iommu_group", "sys/kernel/iommu_groups/x"),
        ("iommu_group", "sys/kernel/iommu_groups/" + "9" * 99),
        ("physfn", "sys/devices/elsewhere"),
        *((name, "") for name in ("driver", "physfn", "iommu_group")),  # a file in its place
    ],
)
def test_a_link_to_nothing_that_it_can_be_costs_that_fact(
    tmp_path: Path, name: str, target: str
) -> None:
    tree = PciTree(tmp_path)
    place = tree.add(NIC, "8086:1592")
    if target:
        tree.link(f"{place}/{name}", target)
    else:
        tree.write({f"{place}/{name}": "ice"})
    sysfs = SysfsTree(tmp_path)
    function = read_functions(sysfs).functions[NIC]
    assert (function.driver, function.iommu_group, function.physical_function) == ("", None, "")
    assert function.place.vendor == "0x8086"
    warning, *more = sysfs.warnings
    assert name in warning
    assert not target or (f"{name}: found" in warning and not more)
    warning.encode()


@pytest.mark.parametrize("name", ["../sda", "/sda", "a//b", "a b", "n" * 65, "dri/..", ""])
def test_no_node_lies_outside_of_dev(tmp_path: Path, name: str) -> None:
    tree = PciTree(tmp_path)
    place = tree.add(NVME)
    tree.add_node(f"{place}/nvme/nvme0", name)
    tree.add_node(f"{place}/nvme/nvme0/nvme0n1", "nvme0n1")
    sysfs = SysfsTree(tmp_path)
    assert read_functions(sysfs).functions[NVME].nodes == ("/dev/nvme0n1",)
    assert "a path below /dev" in sysfs.warnings[0]


def test_a_device_that_leads_out_of_the_tree_has_no_facts_of_another_host(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree, outside = PciTree(root), PciTree(tmp_path / "outside")
    place = outside.add(NIC, driver="ice", group=3)
    outside.add_node(f"{place}/nvme/nvme0", "nvme0")
    (root / PCI_DIRECTORY / NIC).symlink_to(outside.root / place)
    function = read_functions(SysfsTree(tree.root)).functions[NIC]
    assert (function.driver, function.iommu_group, function.nodes) == ("", None, ())


def test_virtual_functions_in_a_circle_are_read_once(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    place = tmp_path / tree.add(NIC)
    tree.write({f"{tree.place(NIC)}/sriov_numvfs": "1"})
    for name in ("physfn", "virtfn0"):
        (place / name).symlink_to(f"../{NIC}")
    function = read(tmp_path)[NIC]
    assert (function.physical_function, function.virtual_functions) == (NIC, {0: NIC})


@pytest.mark.shared
@pytest.mark.parametrize("machine", REAL, ids=lambda machine: machine.name)
def test_a_real_host_shows_its_drivers_and_which_interfaces_are_up(
    machine: Machine, machine_root: Callable[[Machine], Path]
) -> None:
    found = read_functions(SysfsTree(machine_root(machine)))
    ports = [f"0000:0{bus}:00.{port}" for bus in (2, 3) for port in (0, 1)]
    drivers = {each: found.functions[each].driver for each in (*ports, "0000:43:00.0")}
    assert drivers == dict.fromkeys(ports, "bnx2") | {"0000:43:00.0": "ib_qib"}
    assert found.functions["0000:43:00.0"].place.node == 2
    up = {name for name, link in found.links.items() if link.is_up}
    assert (up, len(found.links)) == ({"eth0", "ib0"}, 5)

"""Trees with PCI devices as drivers show them: interfaces, virtual functions, NVMe, graphics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sysfs.devices import PCI_DIRECTORY
from sysfs.links import NET_DIRECTORY
from tests.sysfs.trees import NODE, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEVICES = "sys/devices/pci0000:00"


class PciTree:
    """A host's PCI bus below a root; every method adds to it or changes it."""

    def __init__(self, root: Path, nodes: int = 2) -> None:
        self.root = root
        for node in range(nodes):
            (root / NODE / f"node{node}").mkdir(parents=True, exist_ok=True)
        (root / PCI_DIRECTORY).mkdir(parents=True, exist_ok=True)
        (root / NET_DIRECTORY).mkdir(parents=True, exist_ok=True)

    def place(self, address: str) -> str:
        """Return the directory of a device, below the root."""
        return f"{_DEVICES}/{address}"

    def write(self, files: Mapping[str, str]) -> None:
        lay_out(self.root, files)

    def link(self, name: str, target: str) -> None:
        """Link a name below the root to a name below the root, relatively as sysfs does."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(self.root / target, path.parent))

    def add(
        self,
        address: str,
        ids: str = "8086:1592",
        kind: str = "020000",
        *,
        node: int = -1,
        driver: str = "",
        group: int | None = None,
    ) -> str:
        """Add a device with vendor and device id, class, node, driver and IOMMU group."""
        place = self.place(address)
        vendor, _, device = ids.partition(":")
        self.write(
            {
                f"{place}/vendor": f"0x{vendor}\n",
                f"{place}/device": f"0x{device}\n",
                f"{place}/class": f"0x{kind}\n",
                f"{place}/numa_node": f"{node}\n",
            }
        )
        self.link(f"{PCI_DIRECTORY}/{address}", place)
        if driver:
            self.bind(address, driver)
        if group is not None:
            self.link(f"{place}/iommu_group", f"sys/kernel/iommu_groups/{group}")
        return place

    def bind(self, address: str, driver: str) -> None:
        self.link(f"{self.place(address)}/driver", f"sys/bus/pci/drivers/{driver}")

    def unbind(self, address: str) -> None:
        (self.root / self.place(address) / "driver").unlink()

    def remove(self, address: str) -> None:
        (self.root / PCI_DIRECTORY / address).unlink()

    def add_interface(self, address: str, name: str, state: str = "up", flags: int = 0x1003) -> str:
        """Add an interface of a device, and return its directory."""
        place = f"{self.place(address)}/net/{name}"
        self.write({f"{place}/operstate": f"{state}\n", f"{place}/flags": f"{flags:#x}\n"})
        self.link(f"{place}/device", self.place(address))
        self.link(f"{NET_DIRECTORY}/{name}", place)
        return place

    def set_link(self, address: str, name: str, state: str) -> None:
        self.write({f"{self.place(address)}/net/{name}/operstate": f"{state}\n"})

    def move_away(self, address: str, name: str) -> None:
        """Take an interface out of sight, as if a container had moved it to its own namespace."""
        (self.root / NET_DIRECTORY / name).unlink()
        place = self.root / self.place(address) / "net" / name
        for file in place.iterdir():
            file.unlink()
        place.rmdir()

    def add_virtual_function(self, physical: str, number: int, address: str, driver: str) -> None:
        """Make a device that was added a virtual function of another one, bound to a driver."""
        place, own = self.place(physical), self.place(address)
        self.link(f"{place}/virtfn{number}", own)
        self.link(f"{own}/physfn", place)
        self.bind(address, driver)
        count = sum(1 for name in (self.root / place).iterdir() if name.name.startswith("virtfn"))
        self.write({f"{place}/sriov_numvfs": f"{count}\n"})

    def add_node(self, directory: str, name: str) -> None:
        """Add a directory whose device node is `/dev/<name>`."""
        self.write({f"{directory}/uevent": f"MAJOR=1\nMINOR=2\nDEVNAME={name}\n"})


def network_host(root: Path) -> PciTree:
    """Return two ports of a network card: one with four virtual functions, one with the cable out.

    The first two virtual functions are bound to `vfio-pci` (IOMMU groups 60 and 61), the others to
    `iavf` with interfaces that are administratively down.
    """
    tree = PciTree(root)
    for port, state in enumerate(("up", "down")):
        address = f"0000:3b:00.{port}"
        tree.add(address, node=1, driver="ice", group=50 + port)
        tree.add_interface(address, f"ens1f{port}", state)
    for number in range(4):
        address = f"0000:3b:02.{number}"
        tree.add(address, "8086:1889", node=1, group=60 + number)
        driver = "vfio-pci" if number < 2 else "iavf"
        tree.add_virtual_function("0000:3b:00.0", number, address, driver)
        if driver == "iavf":
            tree.add_interface(address, f"ens1f0v{number}", "down", flags=0x1002)
    return tree

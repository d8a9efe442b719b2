"""Trees of devices: whatever drivers show of them, what is offered can be delivered.

An input is what was done to the files and links of one valid tree: JSON of
{name: its content in base64, "-> target" for a link, null where it was removed}.
"""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from agent.config.devices import HostDeviceClass
from agent.devices.host import deliver, select
from sysfs.devices import PCI_DIRECTORY, read_functions
from sysfs.files import SysfsTree
from sysfs.links import NET_DIRECTORY
from tests.fuzz.damage import damaged_bytes
from tests.fuzz.target import Target, demand
from tests.sysfs.pci import network_host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.fuzz.target import Check

_CLASSES: Final = (
    HostDeviceClass("example.com/vf", virtual_functions_of="ens1f0"),
    HostDeviceClass("example.com/nvme", pci_class="0108"),
    HostDeviceClass("example.com/nic", interface="*"),
    HostDeviceClass("example.com/any", address="0000:*", driver="vfio-pci"),
)
_NODES: Final = (b"0", b"-1", b"7", b"65536", b"9" * 30, b"", b"0x1", b"\xff")
_TEXTS: Final = (
    b"DEVNAME=../../etc/shadow",
    b"DEVNAME=/dev/sda\nDEVNAME=b",
    b"DEVNAME=" + b"n" * 200,
    b"DEVNAME=\xc3\xa9",
    b"up",
    b"down",
    b"UP\n",
    b"0x1003",
    b"0x0",
    b"0x010802",
    b"99999",
)
_TARGETS: Final = (
    "/etc",
    "..",
    ".",
    "",
    "a" * 200,
    "../0000:3b:00.0",
    "../0000:3b:02.0",
    "../../../../etc/passwd",
    "../../../bus/pci/drivers/vfio-pci",
    "x\udcffy",
    "a\nb",
    "../../../kernel/iommu_groups/99999999999",
)


def _lay(root: Path) -> None:
    tree = network_host(root)
    place = tree.add("0000:5e:00.0", "144d:a80a", "010802", node=0, driver="nvme", group=9)
    tree.add_node(f"{place}/nvme/nvme0", "nvme0")
    tree.add_node(f"{place}/nvme/nvme0/nvme0n1", "nvme0n1")


@cache
def _valid() -> dict[str, bytes | str]:
    """Return the content of each file and the target of each link of the valid tree."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        _lay(root)
        return {
            str(path.relative_to(root)): str(path.readlink())
            if path.is_symlink()
            else path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_symlink() or path.is_file()
        }


def make_bus(random: Random) -> bytes:
    """Draw what is done to one to five files or links of the tree."""
    changed: dict[str, str | None] = {}
    for _ in range(random.randint(1, 5)):
        name = random.choice(tuple(_valid()))
        changed[name] = _change(random, _valid()[name])
    return json.dumps(changed).encode()


def _change(random: Random, valid: bytes | str) -> str | None:
    kind = random.randrange(5)
    if kind == 0:
        return None
    if isinstance(valid, str) or kind == 1:
        return f"-> {random.choice(_TARGETS)}"
    if kind == 2:
        content = damaged_bytes(random, valid, most=2)
    else:
        content = random.choice((*_NODES, *_TEXTS))
    return base64.b64encode(content).decode()


@dataclass(frozen=True, slots=True)
class Bus:
    """A tree on a disk, to which one input after the other is done and undone."""

    root: Path

    def check(self, data: bytes) -> bool:
        """Try one tree."""
        changed: dict[str, str | None] = json.loads(data)
        try:
            for name, content in changed.items():
                self._put(name, content)
            return _check(self.root)
        finally:
            for name in changed:
                valid = _valid()[name]
                encoded = base64.b64encode(valid).decode() if isinstance(valid, bytes) else ""
                self._put(name, encoded or f"-> {valid!s}")

    def _put(self, name: str, content: str | None) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        if content is None or content == "-> ":
            return
        if content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_bytes(base64.b64decode(content))


def _check(root: Path) -> bool:
    """Read the tree and deliver what it offers; return whether no fact was left out."""
    tree = SysfsTree(root)
    found = read_functions(tree)
    selection = select(_CLASSES, found)
    for line in (*tree.warnings, *selection.conditions):
        line.encode()
    ids = [device.id for devices in selection.offer.devices.values() for device in devices]
    demand(len(ids) == len(set(ids)), f"a device is offered twice: {ids}")
    for resource, devices in selection.offer.devices.items():
        for device in devices:
            demand(set(device.nodes) <= {0, 1}, f"{device.id} is on nodes {device.nodes}")
            delivery = deliver(resource, [found.functions[device.id]])
            for node in delivery.device_nodes:
                parts = node.host_path.split("/")
                demand(parts[:2] == ["", "dev"] and ".." not in parts, f"node {node.host_path}")
                demand(not device.healthy or "None" not in node.host_path, "no group is one")
            text = "".join([*delivery.environment, *delivery.environment.values()])
            demand(text.isprintable(), f"environment {delivery.environment}")
    return not tree.warnings


@contextmanager
def open_bus() -> Iterator[Check]:
    """Lay the valid tree out, for as long as inputs are tried."""
    with TemporaryDirectory() as directory:
        root = Path(directory) / "host"
        _lay(root)
        assert {PCI_DIRECTORY, NET_DIRECTORY} <= {str(Path(name).parent) for name in _valid()}
        yield Bus(root).check


BUSES: Final = Target("device-tree", make_bus, open_bus)

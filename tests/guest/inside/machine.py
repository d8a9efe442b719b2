"""The machine as the kernel shows it: its nodes and their CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.guest.inside.kernel import ids

NODES: Final = Path("/sys/devices/system/node")


def nodes() -> dict[int, frozenset[int]]:
    """Return the CPUs of each online node."""
    online = ids((NODES / "online").read_text())
    return {node: ids((NODES / f"node{node}/cpulist").read_text()) for node in sorted(online)}


def memory_nodes() -> frozenset[int]:
    """Return the nodes that have memory."""
    return ids((NODES / "has_memory").read_text())


def cpus() -> frozenset[int]:
    """Return the online CPUs."""
    return ids(Path("/sys/devices/system/cpu/online").read_text())


def nodes_of(members: frozenset[int]) -> frozenset[int]:
    """Return the nodes that a set of CPUs lies on."""
    return frozenset(node for node, own in nodes().items() if own & members)


def cores_of(cpus: frozenset[int]) -> frozenset[int]:
    """Return every thread of the cores that a set of CPUs lies on."""
    base = Path("/sys/devices/system/cpu")
    file = "topology/thread_siblings_list"
    return frozenset().union(*(ids((base / f"cpu{cpu}" / file).read_text()) for cpu in cpus))


def local_devices(kind: str) -> dict[str, int]:
    """Return the PCI devices whose node is known, with it, by address; `kind` begins the class.

    "0x02" are network cards, "0x01" is storage.
    """
    found = {}
    for device in Path("/sys/bus/pci/devices").iterdir():
        node = int((device / "numa_node").read_text())
        if (device / "class").read_text().startswith(kind) and node >= 0:
            found[device.name] = node
    return found

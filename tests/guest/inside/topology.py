"""What `numawarden topology` says, beside what the kernel shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.guest.inside import kernel, machine
from tests.guest.inside.agent import PROGRAM
from tests.guest.inside.commands import run

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks


def shown() -> dict[str, Any]:
    """Return `numawarden topology` of this machine."""
    loaded: dict[str, Any] = json.loads(run(PROGRAM, "topology", "--output", "json"))
    return loaded


def check(checks: Checks) -> dict[str, Any]:
    """Compare what is shown of nodes, CPUs, memory and devices with the kernel's files."""
    host = shown()
    nodes = {node["id"]: node for node in host["nodes"]}
    own = {number: kernel.ids(node["cpus"]) for number, node in nodes.items()}
    checks.equal("topology: the nodes' CPUs", own, machine.nodes())
    memory = {number: node["memory_bytes"] for number, node in nodes.items()}
    checks.equal("topology: the nodes' memory", memory, _memory(nodes))
    distances = {
        number: [node["distances"][str(other)] for other in sorted(nodes)]
        for number, node in nodes.items()
    }
    checks.equal("topology: the nodes' distances", distances, _distances(nodes))
    found = {cpu["id"]: cpu["package"] for cpu in host["cpus"]}
    checks.equal("topology: the CPUs' packages", found, _packages(found))
    devices = {d["address"]: d["node"] for d in host["devices"] if d["address"]}
    checks.equal("topology: the devices' nodes", devices, _device_nodes())
    return host


def _memory(nodes: dict[int, Any]) -> dict[int, int]:
    amounts = {}
    for node in nodes:
        lines = (machine.NODES / f"node{node}/meminfo").read_text().splitlines()
        (total,) = (line.split() for line in lines if "MemTotal:" in line)
        amounts[node] = int(total[-2]) * 1024
    return amounts


def _distances(nodes: dict[int, Any]) -> dict[int, list[int]]:
    files = {node: machine.NODES / f"node{node}/distance" for node in nodes}
    return {node: [int(v) for v in file.read_text().split()] for node, file in files.items()}


def _packages(cpus: dict[int, int]) -> dict[int, int]:
    base = Path("/sys/devices/system/cpu")
    file = "topology/physical_package_id"
    return {cpu: int((base / f"cpu{cpu}" / file).read_text()) for cpu in cpus}


def _device_nodes() -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for device in Path("/sys/bus/pci/devices").iterdir():
        node = int((device / "numa_node").read_text())
        found[device.name] = None if node < 0 else node
    return found

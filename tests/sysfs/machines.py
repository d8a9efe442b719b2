"""The captured machines of the shared folder: what is known of each, and unpacking one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sysfs.mask import Mask
from tests.shared import shared_dir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Files that are large in the archives and state no fact.
_UNWANTED: Final = (
    *("cpufreq", "cpuidle", "power", "thermal_throttle", "microcode", "crash_notes*", "acpi_cppc"),
    *("statistics", "queues", "msi_irqs", "memory[0-9]*", "vulnerabilities", "cgroup", "irq"),
    *("uevent", "size", "number_of_sets", "ways_of_associativity", "coherency_line_size"),
    *("write_policy", "allocation_policy", "physical_line_partition"),
    *("modalias", "revision", "firmware_node", "hotplug", "subsystem*", "msi_*", "ppin"),
    *("remove", "rescan", "resource*", "config", "broken_parity_status", "numastat", "vmstat"),
    *("virtual/dmi", "virtual/mem", "kernel/debug", "firmware", "device-tree"),
)


@dataclass(frozen=True)
class Machine:
    """What an independent reading of one archive found, in the units of `Host`."""

    name: str
    archive: str
    root: str
    counts: Mapping[str, int]
    online: Mask
    isolated: Mask
    node_cpus: Mapping[int, Mask]
    node_memory: Mapping[int, int | None]
    distances: tuple[str, ...]
    memory_only: Mask
    hugepage_sizes: frozenset[int]


def machines() -> list[Machine]:
    """Return all machines; none where there is no shared folder."""
    shared = shared_dir()
    if shared is None or not (shared / "hosts/expected.json").exists():
        return []
    return [_machine(record) for record in json.loads((shared / "hosts/expected.json").read_text())]


def unpack(machine: Machine, directory: Path) -> Path:
    """Unpack the facts of a machine below a directory and return the root that has `sys`."""
    shared = shared_dir()
    assert shared is not None
    # tar takes a tenth of the time that tarfile takes.
    options = [f"--exclude=*/{name}" for name in _UNWANTED]
    members = [] if machine.root == "." else [machine.root]
    subprocess.run(
        ["tar", "-xf", shared / "hosts" / machine.archive, "-C", directory, *options, *members],
        check=True,
    )
    return directory / machine.root


def _machine(record: dict[str, object]) -> Machine:
    counted = ("cpus", "packages", "dies", "clusters", "cores", "threads_per_core")
    nodes = record["nodes"]
    assert isinstance(nodes, dict)
    return Machine(
        name=str(record["name"]),
        archive=str(record["archive"]),
        root=str(record["root_in_archive"]),
        counts={key: _integer(record[key]) for key in (*counted, "l3_groups", "pci_devices")},
        online=Mask.parse(str(record["online"])),
        isolated=Mask.parse(str(record["isolated"] or "")),
        node_cpus={int(node): _cpus(facts["cpus"]) for node, facts in nodes.items()},
        node_memory={int(node): _bytes(facts["memory_kib"]) for node, facts in nodes.items()},
        distances=tuple(_strings(record["distances"])),
        memory_only=Mask.from_ids(_integer(node) for node in _list(record["memory_only_nodes"])),
        hugepage_sizes=frozenset(_page_size(name) for name in _strings(record["hugepage_sizes"])),
    )


def _cpus(text: str) -> Mask:
    return Mask() if text == "-" else Mask.parse(text)


def _bytes(kib: int | None) -> int | None:
    return None if kib is None else kib * 1024


def _page_size(name: str) -> int:
    return int(name.removeprefix("hugepages-").removesuffix("kB")) * 1024


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _strings(value: object) -> list[str]:
    return [str(item) for item in _list(value)]

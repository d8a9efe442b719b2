"""Laying out a described host as a tree that discovery reads back."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from sysfs.cpus import HYBRID_PMUS
from sysfs.devices import NET_KIND, PCI_DIRECTORY, PCI_KIND
from sysfs.links import NET_DIRECTORY
from sysfs.mask import Mask
from sysfs.nodes import HOST_MEMINFO, NODE_DIRECTORY, TIER, TIER_DIRECTORY
from sysfs.siblings import CPU_DIRECTORY, UNCORE_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sysfs.host import CoreKind, Cpu, Device, Host, Node

_KIB = 1024


def write_tree(host: Host, root: Path) -> Path:
    """Write the host below a root directory without a tree and return the root.

    `discover(write_tree(host, root)) == host` holds for every host that the kernel can show:
    group ids are the lowest online CPU of the group, memory is whole KiB, and an interface
    with a PCI address stands where that PCI device of the host stands. Raises
    `FileExistsError` if the root has a tree already, `ValueError` on memory of broken KiB.
    """
    (root / "sys").mkdir(parents=True)
    _write_cpu_sets(host, root)
    _write_topology(host, root)
    _write_kinds(host, root)
    _write_nodes(host, root)
    for device in host.devices:
        _write_device(device, root)
    return root


def _write(root: Path, name: str, content: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n", encoding="ascii")


def _write_cpu_sets(host: Host, root: Path) -> None:
    present = host.online | host.offline
    for name, members in (
        ("possible", present),
        ("present", present),
        ("online", host.online),
        ("offline", host.offline),
        ("isolated", host.isolated),
        ("nohz_full", host.nohz_full),
    ):
        _write(root, f"{CPU_DIRECTORY}/{name}", members)


def _write_topology(host: Host, root: Path) -> None:
    online = [cpu for cpu in host.cpus if cpu.online]
    cores = _members(online, lambda cpu: cpu.core)
    packages = _members(online, lambda cpu: cpu.package)
    clusters = _members(online, lambda cpu: cpu.cluster)
    dies = _members(online, lambda cpu: cpu.die)
    uncores = _members(online, lambda cpu: cpu.uncore)
    for cpu in host.cpus:
        _write_cpu(cpu, root)
    for cpu in online:
        _write_group(root, cpu, ("core_cpus_list", "core_id"), cpu.core, cores)
        _write_group(root, cpu, ("package_cpus_list", "physical_package_id"), cpu.package, packages)
        _write_group(root, cpu, ("cluster_cpus_list", "cluster_id"), cpu.cluster, clusters)
        _write_group(root, cpu, ("die_cpus_list", "die_id"), cpu.die, dies)
        _write_uncore(root, cpu, uncores, host.uncore_bytes)


def _members(cpus: list[Cpu], group_of: Callable[[Cpu], int | None]) -> Mapping[int | None, Mask]:
    bits: dict[int | None, int] = defaultdict(int)
    for cpu in cpus:
        bits[group_of(cpu)] |= 1 << cpu.id
    return {group: Mask(members) for group, members in bits.items()}


def _write_cpu(cpu: Cpu, root: Path) -> None:
    directory = f"{CPU_DIRECTORY}/cpu{cpu.id}"
    _write(root, f"{directory}/online", int(cpu.online))
    if cpu.node is not None:
        (root / directory / f"node{cpu.node}").symlink_to(f"../../node/node{cpu.node}")


def _write_group(
    root: Path,
    cpu: Cpu,
    names: tuple[str, str],
    group: int | None,
    members: Mapping[int | None, Mask],
) -> None:
    if group is None:
        return
    directory = f"{CPU_DIRECTORY}/cpu{cpu.id}/topology"
    _write(root, f"{directory}/{names[0]}", members[group])
    _write(root, f"{directory}/{names[1]}", group)


def _write_uncore(
    root: Path, cpu: Cpu, members: Mapping[int | None, Mask], sizes: Mapping[int, int]
) -> None:
    if cpu.uncore is None:
        return
    directory = f"{CPU_DIRECTORY}/cpu{cpu.id}/cache/index3"
    _write(root, f"{directory}/level", UNCORE_LEVEL)
    _write(root, f"{directory}/type", "Unified")
    _write(root, f"{directory}/id", cpu.uncore)
    _write(root, f"{directory}/shared_cpu_list", members[cpu.uncore])
    if cpu.uncore in sizes:
        _write(root, f"{directory}/size", f"{sizes[cpu.uncore] >> 10}K")


def _write_kinds(host: Host, root: Path) -> None:
    written: set[CoreKind] = set()
    for pmu, kind in HYBRID_PMUS:
        members = Mask.from_ids(cpu.id for cpu in host.cpus if cpu.kind is kind)
        if members and kind not in written:
            _write(root, f"sys/devices/{pmu}/cpus", members)
            written.add(kind)


def _write_nodes(host: Host, root: Path) -> None:
    everything = Mask.from_ids(node.id for node in host.nodes)
    with_cpus = Mask.from_ids(node.id for node in host.nodes if node.cpus)
    with_memory = Mask.from_ids(node.id for node in host.nodes if node.memory_bytes != 0)
    _write(root, f"{NODE_DIRECTORY}/online", everything)
    _write(root, f"{NODE_DIRECTORY}/possible", everything)
    _write(root, f"{NODE_DIRECTORY}/has_cpu", with_cpus)
    _write(root, f"{NODE_DIRECTORY}/has_memory", with_memory)
    for node in host.nodes:
        _write_node(node, everything, root)
    for tier in sorted({node.tier for node in host.nodes if node.tier is not None}):
        members = Mask.from_ids(node.id for node in host.nodes if node.tier == tier)
        _write(root, f"{TIER_DIRECTORY}/{TIER}{tier}/nodelist", members)
    known = [node.memory_bytes for node in host.nodes if node.memory_bytes is not None]
    if len(known) == len(host.nodes):
        _write(root, HOST_MEMINFO, f"MemTotal: {_kib(sum(known)):>15} kB")


def _write_node(node: Node, everything: Mask, root: Path) -> None:
    directory = f"{NODE_DIRECTORY}/node{node.id}"
    _write(root, f"{directory}/cpulist", node.cpus)
    if node.memory_bytes is not None:
        total = _kib(node.memory_bytes)
        _write(root, f"{directory}/meminfo", f"Node {node.id} MemTotal: {total:>15} kB")
    distances = " ".join(str(node.distances[other]) for other in everything)
    _write(root, f"{directory}/distance", distances)
    for pool in node.hugepages:
        size = _kib(pool.size_bytes)
        _write(root, f"{directory}/hugepages/hugepages-{size}kB/nr_hugepages", pool.count)


def _kib(size_bytes: int) -> int:
    kib, rest = divmod(size_bytes, _KIB)
    if rest:
        raise ValueError(f"the kernel shows memory in whole KiB, not {size_bytes} bytes")
    return kib


def _write_device(device: Device, root: Path) -> None:
    node = -1 if device.node is None else device.node
    if device.kind == PCI_KIND:
        directory = f"{PCI_DIRECTORY}/{device.address}"
        for name, value in (
            ("vendor", device.vendor),
            ("device", device.device),
            ("class", device.device_class),
        ):
            if value:
                _write(root, f"{directory}/{name}", value)
        _write(root, f"{directory}/numa_node", node)
        _write(root, f"{directory}/local_cpulist", device.cpus)
    elif device.kind == NET_KIND and device.address:
        link = root / NET_DIRECTORY / device.name / "device"
        link.parent.mkdir(parents=True)
        link.symlink_to(f"../../../bus/pci/devices/{device.address}")
    elif device.kind == NET_KIND:
        _write(root, f"{NET_DIRECTORY}/{device.name}/device/numa_node", node)
    else:
        raise ValueError(f"a tree has no place for a device of kind {device.kind!r}")

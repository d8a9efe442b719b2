"""Describing hosts without having them, and laying them out as trees that discovery reads back.

`regular_host` describes a regular machine, and `with_...` what makes one irregular.
"""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sysfs.cpus import CPU_DIRECTORY, HYBRID_PMUS, UNCORE_LEVEL
from sysfs.devices import NET_KIND, PCI_DIRECTORY, PCI_KIND
from sysfs.host import Cpu, Host, HugePages, MemoryClass, Node
from sysfs.links import NET_DIRECTORY
from sysfs.mask import EMPTY, Mask
from sysfs.nodes import (
    BANDWIDTHS,
    DAX_DIRECTORY,
    HOST_MEMINFO,
    INITIATORS,
    KMEM,
    NODE_DIRECTORY,
    TIER,
    TIER_DIRECTORY,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from sysfs.host import CoreKind, Device

SAME_NODE: Final = 10
SAME_PACKAGE: Final = 12
OTHER_PACKAGE: Final = 21
MEMORY_ONLY: Final = 28

_GIB: Final = 1 << 30


def regular_host(  # noqa: PLR0913  # a machine has that many numbers, each named at the call
    packages: int = 2,
    nodes_per_package: int = 1,
    cores_per_node: int = 4,
    threads: int = 2,
    memory_bytes: int = 16 * _GIB,
    *,
    uncores_per_node: int = 1,
    hugepages: Iterable[tuple[int, int]] = (),
    adjacent_threads: bool = False,
) -> Host:
    """Return a machine of equal packages, numbered as Linux numbers x86 machines.

    The threads of core *c* are CPUs *c*, *c + all cores*, …, or with `adjacent_threads` CPUs
    *c x threads*, … . Every node has `memory_bytes` and the `hugepages` pools, given as
    (size in bytes, count). A package is one die; a node's cores are dealt to its
    `uncores_per_node` caches in order, the last ones taking fewer where they do not divide.
    """
    nodes = packages * nodes_per_package
    cores = nodes * cores_per_node

    def threads_of(core: int) -> Mask:
        first, step = (core * threads, 1) if adjacent_threads else (core, cores)
        return Mask.from_ids(range(first, first + step * threads, step))

    per_uncore = -(-cores_per_node // uncores_per_node)
    cpus = [
        cpu
        for core in range(cores)
        for cpu in _cores_cpus(core, threads_of, cores_per_node, nodes_per_package, per_uncore)
    ]
    cpus.sort(key=lambda cpu: cpu.id)
    pools = tuple(HugePages(size, count) for size, count in sorted(hugepages))
    return Host(
        cpus=tuple(cpus),
        nodes=tuple(
            Node(
                id=node,
                cpus=Mask.from_ids(cpu.id for cpu in cpus if cpu.node == node),
                memory_bytes=memory_bytes,
                hugepages=pools,
                distances=_row(node, nodes, nodes_per_package),
            )
            for node in range(nodes)
        ),
    )


def with_offline(host: Host, offline: Mask) -> Host:
    """Return the host after these CPUs went offline: no topology, in no node's `cpus`."""
    online = host.online - offline
    cpus = tuple(
        cpu
        if cpu.id in online
        else Cpu(cpu.id, False, cpu.isolated, None, None, None, None, cpu.node, None)  # noqa: FBT003
        for cpu in host.cpus
    )
    return replace(
        host,
        cpus=_relabelled(cpus),
        nodes=tuple(replace(node, cpus=node.cpus & online) for node in host.nodes),
        devices=tuple(replace(device, cpus=device.cpus & online) for device in host.devices),
    )


def with_memory_only_nodes(host: Host, memory_bytes: Iterable[int]) -> Host:
    """Return the host with one more node without CPUs for each amount of memory."""
    amounts = tuple(memory_bytes)
    first = max(node.id for node in host.nodes) + 1
    added = range(first, first + len(amounts))
    nodes = tuple(replace(node, distances=_extended(node.distances, added)) for node in host.nodes)
    known = [node.id for node in host.nodes]
    more = tuple(
        Node(id=node, cpus=EMPTY, memory_bytes=amount, distances=_far_row(node, [*known, *added]))
        for node, amount in zip(added, amounts, strict=True)
    )
    return replace(host, nodes=nodes + more)


def _cores_cpus(
    core: int,
    threads_of: Callable[[int], Mask],
    cores_per_node: int,
    nodes_per_package: int,
    per_uncore: int,
) -> list[Cpu]:
    node, place = divmod(core, cores_per_node)
    package = node // nodes_per_package
    first_core = package * nodes_per_package * cores_per_node
    uncore_core = node * cores_per_node + place // per_uncore * per_uncore
    members = threads_of(core)
    return [
        Cpu(
            id=cpu,
            online=True,
            isolated=False,
            core=members.lowest,
            cluster=None,
            die=threads_of(first_core).lowest,
            package=package,
            node=node,
            uncore=threads_of(uncore_core).lowest,
        )
        for cpu in members
    ]


def _relabelled(cpus: tuple[Cpu, ...]) -> tuple[Cpu, ...]:
    """Name each group after its lowest member again."""
    labels: dict[tuple[str, int], int] = {}

    def label(kind: str, group: int | None, cpu: int) -> int | None:
        return None if group is None else labels.setdefault((kind, group), cpu)

    return tuple(
        replace(
            cpu,
            core=label("core", cpu.core, cpu.id),
            cluster=label("cluster", cpu.cluster, cpu.id),
            die=label("die", cpu.die, cpu.id),
            uncore=label("uncore", cpu.uncore, cpu.id),
        )
        for cpu in cpus
    )


def _row(node: int, nodes: int, nodes_per_package: int) -> Mapping[int, int]:
    package = node // nodes_per_package
    return MappingProxyType(
        {
            other: SAME_NODE
            if other == node
            else SAME_PACKAGE
            if other // nodes_per_package == package
            else OTHER_PACKAGE
            for other in range(nodes)
        }
    )


def _extended(row: Mapping[int, int], added: Iterable[int]) -> Mapping[int, int]:
    return MappingProxyType({**row, **dict.fromkeys(added, MEMORY_ONLY)})


def _far_row(node: int, nodes: Iterable[int]) -> Mapping[int, int]:
    return MappingProxyType({other: SAME_NODE if other == node else MEMORY_ONLY for other in nodes})


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
    devices = Mask.from_ids(n.id for n in host.nodes if n.backing is MemoryClass.GPU)
    if devices:
        _write(root, INITIATORS, devices)
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
    if node.bandwidth is not None:
        _write(root, f"{directory}/{BANDWIDTHS[0]}", node.bandwidth)
    if node.backing is MemoryClass.CXL:
        _write_dax(root, f"sys/devices/platform/decoder0.0/region{node.id}", node.id)
    elif node.backing is MemoryClass.PMEM:
        _write_dax(root, f"sys/devices/platform/ndbus0/region{node.id}", node.id)
    for pool in node.hugepages:
        size = _kib(pool.size_bytes)
        _write(root, f"{directory}/hugepages/hugepages-{size}kB/nr_hugepages", pool.count)


def _write_dax(root: Path, region: str, node: int) -> None:
    name = f"dax{node}.0"
    _write(root, f"{region}/{name}/target_node", node)
    (root / region / name / "driver").symlink_to(f"../{KMEM}")
    link = root / DAX_DIRECTORY / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../{region.removeprefix('sys/')}/{name}")


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

"""A host as JSON: what `numawarden topology --output json` prints and the API returns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sysfs.host import Cpu, Device, Host, HugePages, Node


class CpuView(TypedDict):
    """One logical CPU; group ids as in `sysfs.host.Cpu`, null where there is no such group."""

    id: int
    online: bool
    isolated: bool
    core: int | None
    cluster: int | None
    die: int | None
    package: int | None
    node: int | None
    uncore: int | None
    kind: str


class HugePagesView(TypedDict):
    """The pool of one page size, in bytes and pages."""

    size_bytes: int
    count: int


class NodeView(TypedDict):
    """One NUMA node; `cpus` in the kernel's list format, distances by node id as text.

    `memory_bytes` is null if the host does not report it, `tier` if there are no memory tiers; the
    smaller one is faster.
    """

    id: int
    cpus: str
    memory_bytes: int | None
    hugepages: list[HugePagesView]
    distances: dict[str, int]
    tier: int | None


# The functional form, because `class` is a keyword.
DeviceView = TypedDict(
    "DeviceView",
    {
        "kind": str,
        "name": str,
        "address": str,
        "node": int | None,
        "cpus": str,
        "vendor": str,
        "device": str,
        "class": str,
    },
)


class Totals(TypedDict):
    """Counts over the whole host; groups are those with an online CPU.

    `threads_per_core` is that of the core with the most online threads, `memory_only_nodes` the
    nodes without online CPUs, `memory_bytes` the sum over the nodes, null where one is unknown. A
    group that the kernel does not report is counted 0 times.
    """

    cpus: int
    online: int
    memory_bytes: int | None
    packages: int
    dies: int
    clusters: int
    cores: int
    threads_per_core: int
    uncore_caches: int
    nodes: int
    memory_only_nodes: int


class TopologyView(TypedDict):
    """One host; sets of CPUs in the kernel's list format, a line for each odd file.

    `uncore_bytes` is the size of each uncore cache by its id as text, where it is known.
    """

    cpus: list[CpuView]
    nodes: list[NodeView]
    devices: list[DeviceView]
    offline: str
    isolated: str
    nohz_full: str
    uncore_bytes: dict[str, int]
    totals: Totals
    warnings: list[str]


def topology_view(host: Host) -> TopologyView:
    """Return the host as plain values of JSON, everything in ascending order of ids."""
    return TopologyView(
        cpus=[_cpu_view(cpu) for cpu in host.cpus],
        nodes=[_node_view(node) for node in host.nodes],
        devices=[_device_view(device) for device in host.devices],
        offline=str(host.offline),
        isolated=str(host.isolated),
        nohz_full=str(host.nohz_full),
        uncore_bytes={str(cache): size for cache, size in sorted(host.uncore_bytes.items())},
        totals=totals(host),
        warnings=list(host.warnings),
    )


def totals(host: Host) -> Totals:
    """Return the host's counts, enumerated and never divided."""
    online = [cpu for cpu in host.cpus if cpu.online]
    threads = Counter(cpu.core for cpu in online)
    return Totals(
        cpus=len(host.cpus),
        online=len(online),
        memory_bytes=_sum(node.memory_bytes for node in host.nodes),
        packages=_groups(cpu.package for cpu in online),
        dies=_groups(cpu.die for cpu in online),
        clusters=_groups(cpu.cluster for cpu in online),
        cores=len(threads),
        threads_per_core=max(threads.values(), default=0),
        uncore_caches=_groups(cpu.uncore for cpu in online),
        nodes=len(host.nodes),
        memory_only_nodes=len(host.memory_only_nodes),
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    found = list(amounts)
    known = [amount for amount in found if amount is not None]
    return sum(known) if len(known) == len(found) else None


def _groups(ids: Iterable[int | None]) -> int:
    return len({group for group in ids if group is not None})


def _cpu_view(cpu: Cpu) -> CpuView:
    return CpuView(
        id=cpu.id,
        online=cpu.online,
        isolated=cpu.isolated,
        core=cpu.core,
        cluster=cpu.cluster,
        die=cpu.die,
        package=cpu.package,
        node=cpu.node,
        uncore=cpu.uncore,
        kind=cpu.kind.value,
    )


def _node_view(node: Node) -> NodeView:
    return NodeView(
        id=node.id,
        cpus=str(node.cpus),
        memory_bytes=node.memory_bytes,
        hugepages=[_hugepages_view(pool) for pool in node.hugepages],
        distances={str(other): distance for other, distance in sorted(node.distances.items())},
        tier=node.tier,
    )


def _hugepages_view(pool: HugePages) -> HugePagesView:
    return HugePagesView(size_bytes=pool.size_bytes, count=pool.count)


def _device_view(device: Device) -> DeviceView:
    return DeviceView(
        {
            "kind": device.kind,
            "name": device.name,
            "address": device.address,
            "node": device.node,
            "cpus": str(device.cpus),
            "vendor": device.vendor,
            "device": device.device,
            "class": device.device_class,
        }
    )

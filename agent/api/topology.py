"""A host as JSON: what `numawarden topology -o json` prints and `GET /v1/topology` answers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypedDict, cast

from msgspec import json

from agent.values import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sysfs.host import Host


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
    #: What the firmware says of reads by the nearest CPUs, in MB/s.
    bandwidth: int | None
    #: The class of the device that has the memory, null for none.
    backing: str | None
    #: "" where the host does not show it.
    memory_class: str


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
    facts = json.decode(json.encode(host, enc_hook=plain))  # tuples are lists, ids as keys texts
    for node in facts["nodes"]:
        node["memory_class"] = str(host.memory_classes.get(node["id"], ""))
    for device in facts["devices"]:
        device["class"] = device.pop("device_class")
    facts.update(offline=str(host.offline), isolated=str(host.isolated), totals=totals(host))
    return cast("TopologyView", {key: facts[key] for key in TopologyView.__annotations__})


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

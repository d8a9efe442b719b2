"""Describing hosts without having them: regular machines, and what makes them irregular."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sysfs.host import Cpu, Host, HugePages, Node
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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

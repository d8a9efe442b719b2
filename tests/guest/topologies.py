"""The NUMA machines the guests are: named, small, each for what it makes possible."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Final

#: A node of the reference pods' size: the pods of KEP-5526 ask for 4Gi and 5Gi.
#: Pages that the guest never touches cost the host nothing.
LARGE_MIB: Final = 6144
SMALL_MIB: Final = 512


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node: memory in MiB (0: none) and CPUs as a kernel list ("": none)."""

    memory_mib: int
    cpus: str


@dataclass(frozen=True, slots=True)
class Topology:
    """A machine: QEMU's `-smp` value, nodes in order, distances between nodes (ACPI SLIT).

    `cpu` is QEMU's CPU model; `firmware` a BIOS file other than the default; `locality` puts an
    NVMe disk and a network card on a PCI root of node 1; `arguments` are more for the kernel.
    """

    smp: str
    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, int, int], ...] = ()
    cpu: str = "Nehalem"
    firmware: str | None = None
    locality: bool = False
    arguments: str = ""

    @property
    def memory_mib(self) -> int:
        """The memory of all nodes."""
        return sum(node.memory_mib for node in self.nodes)


def _span(index: int, size: int) -> str:
    return f"{index * size}-{index * size + size - 1}"


def _paired(count: int, near: int, far: int) -> tuple[tuple[int, int, int], ...]:
    """Return distances of `count` nodes of which each half is one socket."""
    half = count // 2
    return tuple(
        (one, other, near if one // half == other // half else far)
        for one, other in combinations(range(count), 2)
    )


TOPOLOGIES: Final[dict[str, Topology]] = {
    # 2 sockets, 4 cores each, 2 threads a core; siblings are 0-1, 2-3, ...
    "two-sockets": Topology(
        smp="16,sockets=2,cores=4,threads=2",
        nodes=(Node(LARGE_MIB, "0-7"), Node(LARGE_MIB, "8-15")),
        distances=((0, 1, 21),),
        locality=True,
    ),
    "isolated-cpus": Topology(
        smp="16,sockets=2,cores=4,threads=2",
        nodes=(Node(LARGE_MIB, "0-7"), Node(LARGE_MIB, "8-15")),
        arguments="isolcpus=12-15",
    ),
    # 2 sockets of 2 nodes: 0 and 1 are near to each other, 2 and 3 too.
    "four-nodes": Topology(
        smp="16,sockets=2,cores=4,threads=2",
        nodes=tuple(Node(SMALL_MIB, _span(node, 4)) for node in range(4)),
        distances=_paired(4, 12, 21),
    ),
    "eight-nodes": Topology(
        smp="64,sockets=2,cores=16,threads=2",
        nodes=tuple(Node(SMALL_MIB, _span(node, 8)) for node in range(8)),
        distances=_paired(8, 12, 32),
    ),
    # Linux numbers nodes with CPUs first: its node 2 has CPUs alone, its node 3 memory alone.
    "uneven-nodes": Topology(
        smp="12,sockets=3,cores=2,threads=2",
        nodes=(
            Node(SMALL_MIB, "0-3"),
            Node(SMALL_MIB, "4-7"),
            Node(SMALL_MIB, ""),
            Node(0, "8-11"),
        ),
    ),
    # Each socket has two dies and so two L3 caches: 0-3, 4-7, 8-11, 12-15. The default BIOS
    # makes QEMU 10 fail an assertion on dies of an Intel model; qboot does not.
    "split-caches": Topology(
        smp="16,sockets=2,dies=2,cores=2,threads=2",
        nodes=(Node(SMALL_MIB, "0-7"), Node(SMALL_MIB, "8-15")),
        distances=((0, 1, 21),),
        cpu="Icelake-Server-noTSX",
        firmware="qboot.rom",
    ),
}

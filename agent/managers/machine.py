"""The machine as the managers use it (the kubelet's MachineInfo), built from a host's facts."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field

from agent.managers.cpu.topology import CpuTopology
from agent.managers.topology.distances import Closest
from agent.managers.topology.hint import is_listed
from sysfs.host import CoreKind, WithheldCpus, union_of
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from sysfs.host import Host


class MachineNode(Struct, frozen=True):
    """One NUMA node: bytes of memory (null: not reported), huge pages {page size in bytes: count}.

    `distances` are by node id; keys are text.
    """

    id: int
    #: A policy that manages memory is rejected where the host does not report it
    #: (`agent.config.host_checks`), so sums may use `known_memory`.
    memory_bytes: int | None = field(name="memory")
    hugepages: Mapping[int, int]
    #: ACPI SLIT distances, that to this node included.
    distances: Mapping[int, int]
    #: What the memory is made of (`sysfs.host.MemoryClass`), "" where the host does not show it.
    memory_class: str = ""

    @property
    def known_memory(self) -> int:
        """The memory in bytes, 0 where it is not known."""
        return self.memory_bytes or 0


class Machine(Struct, frozen=True, dict=True):
    """CPUs and NUMA nodes of one host; nodes without CPUs count for topology and memory.

    `withheld` are online CPUs that are not among `cpus`, since pods cannot have them.
    """

    cpus: CpuTopology
    nodes: tuple[MachineNode, ...]
    withheld: tuple[WithheldCpus, ...] = ()
    #: Those of `isolcpus=`, offline ones included.
    isolated: Mask = EMPTY
    #: The online CPUs by the kind of their cores.
    core_kinds: Mapping[CoreKind, Mask] = MappingProxyType({})

    @classmethod
    def of(cls, host: Host) -> Self:
        """Build from the facts of a host; raises `CpuTopologyError` when no CPU is online."""
        nodes = (
            MachineNode(
                id=node.id,
                memory_bytes=node.memory_bytes,
                hugepages={pages.size_bytes: pages.count for pages in node.hugepages},
                distances=node.distances,
                memory_class=str(host.memory_classes.get(node.id, "")),
            )
            for node in host.nodes
        )
        kinds = {
            kind: Mask.from_ids(cpu.id for cpu in host.cpus if cpu.online and cpu.kind is kind)
            for kind in CoreKind
        }
        topology = CpuTopology.from_host(host)
        return cls(topology, tuple(nodes), host.withheld, host.isolated, MappingProxyType(kinds))

    @cached_property
    def withheld_cpus(self) -> Mask:
        """All online CPUs that pods cannot have."""
        return union_of(self.withheld)

    @cached_property
    def node_mask(self) -> Mask:
        """All NUMA nodes, memory-only ones included."""
        return Mask.from_ids(node.id for node in self.nodes)

    @cached_property
    def nearest(self) -> Mapping[int, Mask]:
        """By node the nodes with CPUs that are nearest to its memory: itself, where it has CPUs."""
        with_cpus = [node.id for node in self.nodes if self.cpus.cpus_in_nodes(Mask.of(node.id))]
        found = {}
        for node in self.nodes:
            distance = min([node.distances.get(each, 0) for each in with_cpus], default=0)
            near = Mask.from_ids(
                each for each in with_cpus if node.distances.get(each, 0) == distance
            )
            found[node.id] = Mask.of(node.id) if node.id in with_cpus else near
        return MappingProxyType(found)

    @cached_property
    def unknown_memory(self) -> Mask:
        """The NUMA nodes whose amount of memory the host does not report."""
        return Mask.from_ids(node.id for node in self.nodes if node.memory_bytes is None)

    @cached_property
    def closest(self) -> Closest:
        """The order of sets of nodes by distance."""
        return Closest({node.id: node.distances for node in self.nodes})

    @cached_property
    def lists_hints(self) -> bool:
        """Whether hints are listed one by one; a machine with many nodes has families of hints."""
        return is_listed(self.node_mask.bits)

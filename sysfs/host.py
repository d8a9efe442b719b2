"""A host's facts: immutable values, complete after discovery."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: How much faster than DRAM memory is of another class. HBM has three times the bandwidth, channels
#: of DRAM differ by less than this.
_FASTER: Final = 1.5


class CoreKind(StrEnum):
    """The kind of a core on a hybrid machine; every core of any other machine is STANDARD."""

    STANDARD = "standard"
    PERFORMANCE = "performance"
    EFFICIENCY = "efficiency"


class Cpu(Struct, frozen=True):
    """One logical CPU (hardware thread).

    `core`, `cluster`, `die` and `uncore` are host-wide group ids: the lowest CPU id of the group
    (sysfs ids repeat across packages and may be -1). `package` and `node` are the kernel's ids.
    Offline CPUs have no topology: every group is None, `node` is the kernel's if known.
    """

    id: int
    online: bool
    isolated: bool
    core: int | None
    cluster: int | None
    die: int | None
    package: int | None
    node: int | None
    uncore: int | None
    kind: CoreKind = CoreKind.STANDARD


class MemoryClass(StrEnum):
    """What the memory of a node is made of, as far as the host shows it."""

    DRAM = "dram"
    HBM = "hbm"
    CXL = "cxl"
    PMEM = "pmem"
    #: Of a device that accesses memory itself.
    GPU = "gpu"


class HugePages(Struct, frozen=True):
    """Pages of one size on one node: `size_bytes` each, `count` of them in the pool."""

    size_bytes: int
    count: int


class Node(Struct, frozen=True):
    """One NUMA node.

    `cpus` are the online CPUs of the node, `memory_bytes` its MemTotal, None where that is not
    known, `distances` maps every node id (this one included) to the ACPI SLIT distance as the
    kernel shows it, `tier` is the number of its memory tier: a smaller one is faster, None where
    the kernel has none for it. `bandwidth` is what the firmware says of reads by the nearest CPUs,
    in MB/s. `backing` is the device that a node without CPUs has its memory from, where known.
    """

    id: int
    cpus: Mask
    memory_bytes: int | None
    hugepages: tuple[HugePages, ...] = ()
    distances: Mapping[int, int] = MappingProxyType({})
    tier: int | None = None
    bandwidth: int | None = None
    backing: MemoryClass | None = None


class Device(Struct, frozen=True):
    """One PCI device or network interface and where it is attached.

    `address` is the PCI address (`0000:41:00.0`) or, for an interface without a PCI parent, "".
    `node` is None where the kernel gives no NUMA node (-1 or no ancestor with `numa_node`).
    """

    kind: str
    name: str
    address: str
    node: int | None
    cpus: Mask = EMPTY
    vendor: str = ""
    device: str = ""
    device_class: str = ""


class WithheldCpus(Struct, frozen=True):
    """Online CPUs that the cgroup of all pods cannot have, and the cgroup that withholds them.

    `cgroup` is its path with a leading slash. `allows` are the CPUs that a cgroup above the pods
    has; None: the cgroup is a cpuset partition elsewhere, which has the CPUs to itself.
    """

    cpus: Mask
    cgroup: str
    allows: Mask | None = None

    @property
    def place(self) -> str:
        """Where the CPUs are, as the end of a sentence about them."""
        if self.allows is None:
            return f"belong to the partition {self.cgroup}"
        return f"are outside of {self._narrow}, which allows only {self.allows}"

    @property
    def remedy(self) -> str:
        """What gives the CPUs back to pods."""
        return "end that partition" if self.allows is None else f"widen {self._narrow}"

    @property
    def _narrow(self) -> str:
        return self.cgroup if self.cgroup != "/" else "the root of the cgroup tree"

    def __str__(self) -> str:
        return f"CPUs {self.cpus} {self.place}"


def union_of(withheld: Iterable[WithheldCpus]) -> Mask:
    """Return all CPUs that are withheld."""
    return Mask.union(each.cpus for each in withheld)


class Host(Struct, frozen=True, dict=True):
    """All facts of one host, ordered by id.

    `warnings` has a line for each odd file that cost a fact: the file, what was found, and what
    is not known now. `uncore_bytes` is the size of each uncore cache by `Cpu.uncore`, where the
    host reports it. `withheld` is not in sysfs: who reads the host's cgroups adds it.
    """

    cpus: tuple[Cpu, ...]
    nodes: tuple[Node, ...]
    devices: tuple[Device, ...] = ()
    nohz_full: Mask = EMPTY
    warnings: tuple[str, ...] = ()
    uncore_bytes: Mapping[int, int] = MappingProxyType({})
    withheld: tuple[WithheldCpus, ...] = ()

    @cached_property
    def withheld_cpus(self) -> Mask:
        """All online CPUs that pods cannot have."""
        return union_of(self.withheld)

    @cached_property
    def usable(self) -> Mask:
        """All CPUs that pods can have: online, and not withheld."""
        return self.online - self.withheld_cpus

    @cached_property
    def online(self) -> Mask:
        """All online CPUs."""
        return Mask.from_ids(cpu.id for cpu in self.cpus if cpu.online)

    @cached_property
    def offline(self) -> Mask:
        """All CPUs that are present but not online."""
        return Mask.from_ids(cpu.id for cpu in self.cpus if not cpu.online)

    @cached_property
    def isolated(self) -> Mask:
        """All CPUs that the kernel keeps out of its scheduling domains (`isolcpus=`)."""
        return Mask.from_ids(cpu.id for cpu in self.cpus if cpu.isolated)

    @cached_property
    def nodes_with_memory(self) -> Mask:
        """Nodes that have memory, as far as is known: those of unknown size count."""
        return Mask.from_ids(node.id for node in self.nodes if node.memory_bytes != 0)

    @cached_property
    def memory_classes(self) -> Mapping[int, MemoryClass]:
        """The class of memory by node, of those nodes where the host shows one.

        Memory beside CPUs is taken for DRAM. A node without CPUs has the class of its device, else
        what its speed says beside that of DRAM: faster is HBM, as fast is DRAM, slower is unknown.
        """
        usual = [node for node in self.nodes if node.cpus and node.memory_bytes != 0]
        bandwidth = max([node.bandwidth or 0 for node in usual], default=0)
        tiers = {node.tier for node in usual if node.tier is not None}
        found = {}
        for node in self.nodes:
            if node.memory_bytes == 0:
                continue
            ratio = (node.bandwidth or 0) / bandwidth if bandwidth else 0
            if node.cpus:
                found[node.id] = MemoryClass.DRAM
            elif node.backing is not None:
                found[node.id] = node.backing
            elif ratio >= _FASTER or (tiers and node.tier is not None and node.tier < min(tiers)):
                found[node.id] = MemoryClass.HBM
            elif ratio > 1 / _FASTER or (not ratio and node.tier in tiers):
                found[node.id] = MemoryClass.DRAM
        return MappingProxyType(found)

    @cached_property
    def memory_only_nodes(self) -> Mask:
        """Nodes with no online CPU: HBM, CXL or GPU memory.

        A node that the firmware made for a device alone (a generic initiator, 0 bytes) counts.
        """
        return Mask.from_ids(node.id for node in self.nodes if not node.cpus)

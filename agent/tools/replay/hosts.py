"""The host of a sequence: a regular shape, an unpacked capture, or all CPUs and nodes by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.config.kinds import bytes_at, quantity_at
from agent.managers.cpu.topology import CpuTopology, CpuTopologyError
from agent.managers.machine import Machine, MachineNode
from agent.pods.quantity import ZERO, Quantity, QuantityError
from agent.yaml import Field, Reader, shown
from sysfs.described.shapes import regular_host, with_memory_only_nodes, with_offline
from sysfs.discover import discover
from sysfs.files import SysfsError
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sysfs.host import Host

_KINDS: Final = ("shape", "root", "rows")
#: The numbers of a shape: key, keyword of `regular_host`, default, most.
_NUMBERS: Final = (
    ("packages", "packages", 2, 64),
    ("nodesPerPackage", "nodes_per_package", 1, 16),
    ("coresPerNode", "cores_per_node", 4, 512),
    ("threads", "threads", 2, 8),
    ("uncoresPerNode", "uncores_per_node", 1, 64),
)
_SHAPE_KEYS: Final = (
    *(key for key, *_ in _NUMBERS),
    "memory",
    "hugepages",
    "adjacentThreads",
    "offline",
    "memoryOnlyNodes",
)
_NODE_KEYS: Final = ("id", "memory", "hugepages", "distances")
_MOST_NODES: Final = 64
_MOST_CPUS: Final = 8192
_MOST_MEMORY: Final = 1 << 60
_MOST_PAGES: Final = 1 << 40
_DEFAULT_MEMORY: Final = 16 << 30
_LONGEST_ROW: Final = 5


class DescribedHost(Struct, frozen=True):
    """A machine, and the CPUs that it has but that do not run."""

    machine: Machine
    offline: Mask = EMPTY

    @classmethod
    def of(cls, host: Host) -> DescribedHost:
        """Return a host as the managers see it."""
        return cls(Machine.of(host), host.offline)


class HostReader(Reader):
    """Reads `host`; paths are relative to the folder of the file."""

    def host(self, field: Field, folder: Path) -> DescribedHost | None:
        """Return the described host, None beside the mistakes that keep it from being one."""
        before = len(self.problems)
        self.entries(field)
        self.reject_unknown(field, _KINDS)
        kinds = [child for child in map(field.child, _KINDS) if child is not None]
        if len(kinds) != 1:
            self.reject(field, f"give exactly one of {', '.join(_KINDS)}")
            return None
        try:
            host = self._by_kind(field, kinds[0], folder)
        except (CpuTopologyError, SysfsError, OSError) as error:
            self.reject(kinds[0], str(error))
            return None
        return host if len(self.problems) == before else None

    def _by_kind(self, field: Field, kind: Field, folder: Path) -> DescribedHost | None:
        if field.child("rows") is not None:
            return self._rows(kind)
        host = self._shape(kind) if field.child("shape") is not None else self._root(kind, folder)
        return DescribedHost.of(host) if host is not None else None

    def _root(self, field: Field, folder: Path) -> Host | None:
        text = self.text(field)
        if text is None:
            return None
        root = folder / text
        if not root.is_dir():
            self.reject(field, f"{root} is not a directory with an unpacked capture")
            return None
        return discover(root, devices=False)

    def _shape(self, field: Field) -> Host | None:
        self.entries(field)
        self.reject_unknown(field, _SHAPE_KEYS)
        numbers = {
            keyword: self._number(field, key, default, most)
            for key, keyword, default, most in _NUMBERS
        }
        memory_only = tuple(self._sizes(field.child("memoryOnlyNodes")))
        nodes = numbers["packages"] * numbers["nodes_per_package"]
        cpus = nodes * numbers["cores_per_node"] * numbers["threads"]
        if nodes + len(memory_only) > _MOST_NODES or cpus > _MOST_CPUS:
            most = f"{_MOST_NODES} NUMA nodes and {_MOST_CPUS} CPUs"
            self.reject(field, f"{nodes} nodes with {cpus} CPUs are more than {most}")
            return None
        host = regular_host(
            memory_bytes=self._memory(field, _DEFAULT_MEMORY),
            hugepages=self._hugepages(field).items(),
            adjacent_threads=self._flag(field, "adjacentThreads"),
            **numbers,
        )
        return self._altered(field, host, memory_only)

    def _altered(self, field: Field, host: Host, memory_only: tuple[int, ...]) -> Host:
        offline = self.mask(field.child("offline"))
        if offline - host.online:
            self.reject(field, f"offline names CPUs {offline - host.online} that it does not have")
        return with_memory_only_nodes(with_offline(host, offline & host.online), memory_only)

    def _rows(self, field: Field) -> DescribedHost | None:
        self.entries(field)
        self.reject_unknown(field, ("cpus", "nodes", "offline"))
        before = len(self.problems)
        cpus, nodes = field.child("cpus"), field.child("nodes")
        if cpus is None or nodes is None:
            self.reject(field, "cpus and nodes are needed")
            return None
        rows = [self._row(item) for item in self.items(cpus)]
        found = tuple(self._nodes(nodes))
        for row in rows:
            if row[3] not in {node.id for node in found}:
                self.reject(cpus, f"CPU {row[0]} is in node {row[3]}, which is not listed in nodes")
        if len(self.problems) > before:
            return None
        return DescribedHost(
            Machine(CpuTopology.from_rows(rows), found), self.mask(field.child("offline"))
        )

    def _row(self, item: Field) -> tuple[int, int, int, int, int]:
        numbers = [self.integer(number, -1, MAX_ID) for number in self.items(item)]
        if len(numbers) not in (_LONGEST_ROW - 1, _LONGEST_ROW):
            self.reject(item, "a CPU is [cpu, core, package, node] or [..., node, uncore cache]")
            return 0, 0, 0, 0, -1
        cpu, core, package, node, *uncore = (-1 if number is None else number for number in numbers)
        return cpu, core, package, node, uncore[0] if uncore else -1

    def _nodes(self, field: Field) -> Iterable[MachineNode]:
        items = list(self.items(field))
        if len(items) > _MOST_NODES:
            self.reject(field, f"{len(items)} nodes are more than {_MOST_NODES}")
            return
        ids = [self._node_id(item) for item in items]
        for item, number in zip(items, ids, strict=True):
            self.reject_unknown(item, _NODE_KEYS)
            if ids.count(number) > 1:
                self.reject(item, f"node {number} is listed twice")
            yield MachineNode(
                id=number,
                memory_bytes=self._memory(item, 0),
                hugepages=self._hugepages(item),
                distances=self._distances(item, ids),
            )

    def _node_id(self, item: Field) -> int:
        self.entries(item)
        number = item.child("id")
        if number is None:
            self.reject(item, "id is missing")
            return 0
        return self.integer(number, 0, MAX_ID) or 0

    def _distances(self, item: Field, ids: list[int]) -> dict[int, int]:
        field = item.child("distances")
        if field is None:
            return {}
        found = [self.integer(number, 1, 255) or 0 for number in self.items(field)]
        if len(found) != len(ids):
            self.reject(field, f"{len(found)} distances, give one to each of {len(ids)} nodes")
            return {}
        return dict(zip(ids, found, strict=True))

    def _hugepages(self, parent: Field) -> dict[int, int]:
        """Return the numbers of pages by size in bytes (`2Mi: 512`)."""
        field = parent.child("hugepages")
        pools: dict[int, int] = {}
        for text, entry in (self.entries(field) if field is not None else {}).items():
            size = _bytes(text)
            if size <= 0:
                self.reject(entry, f"{shown(text)} is not a page size such as 2Mi")
            pools[size] = self.integer(entry, 0, _MOST_PAGES) or 0
        return pools

    def _memory(self, parent: Field, default: int) -> int:
        field = parent.child("memory")
        size = None if field is None else bytes_at(self, field, 0, _MOST_MEMORY)
        return default if size is None else size

    def _sizes(self, field: Field | None) -> Iterable[int]:
        for item in self.items(field) if field is not None else ():
            yield (quantity_at(self, item) or ZERO).value

    def _number(self, parent: Field, key: str, default: int, most: int) -> int:
        field = parent.child(key)
        number = self.integer(field, 1, most) if field is not None else default
        return default if number is None else number

    def _flag(self, parent: Field, key: str) -> bool:
        field = parent.child(key)
        return field is not None and self.boolean(field) is True

    def mask(self, field: Field | None, of: str = "CPUs") -> Mask:
        """Return the list of a field (a set of CPUs or NUMA nodes), empty without one."""
        text = self.amount(field) if field is not None else None
        if field is None or text is None:
            return EMPTY
        try:
            return Mask.parse(text)
        except ValueError as error:
            self.reject(field, f"{shown(text)} is not a list of {of} such as 0-1,8: {error}")
            return EMPTY


def _bytes(text: str) -> int:
    """Return the bytes that a quantity names, 0 where the text is none."""
    try:
        return Quantity.parse(text).as_int64() or 0
    except QuantityError:
        return 0

"""A host as nested parts for drawing: packages, dies, nodes, caches and their cores."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.topology import totals
from sysfs.host import CoreKind
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sysfs.host import Cpu, Host, Node

    #: What a level is called, and the group of a CPU on it.
    Level = tuple[str, Callable[[Cpu], int | None]]

_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class Core(Struct, frozen=True):
    """The online threads of one core, and which of them are isolated."""

    kind: CoreKind
    threads: Mask
    isolated: Mask


class Part(Struct, frozen=True):
    """One package, die, node or cache: its online CPUs, what it holds, and a note of its own."""

    kind: str
    id: int | None
    cpus: Mask
    note: str
    children: tuple[Part, ...]
    cores: tuple[Core, ...]

    def shape(self) -> object:
        """Return a value that is equal for parts that differ in their ids alone."""
        cores = tuple((core.kind, len(core.threads), len(core.isolated)) for core in self.cores)
        return self.kind, self.note, tuple(child.shape() for child in self.children), cores


def parts_of(host: Host) -> tuple[Part, ...]:
    """Return the host's outermost parts with everything below; only online CPUs are in a part.

    Packages are around dies, nodes and caches, in this order, except where a group has CPUs of
    several groups of the level above: then it is drawn around them, so that it is drawn once. A
    node that cannot be (it is neither around nor inside of packages) has its note once.
    """
    notes = {node.id: node_note(node) for node in host.nodes}
    online = [cpu for cpu in host.cpus if cpu.online]
    return _split(online, _nested(online, _levels(host)), notes)


def alike(parts: Iterable[Part]) -> list[tuple[Part, ...]]:
    """Return the parts in runs of equal shape."""
    return [tuple(run) for _, run in groupby(parts, key=Part.shape)]


def summary(part: Part) -> str:
    """Describe what a part holds without naming any CPU."""
    if not part.children:
        return cores_summary(part.cores)
    runs = alike(part.children)
    return " + ".join(_run_summary(run) for run in runs)


def cores_summary(cores: Sequence[Core]) -> str:
    """Count cores by kind and threads: `6 performance cores x 2 threads + 8 efficiency cores`."""
    counts = Counter((core.kind, len(core.threads)) for core in cores)
    return " + ".join(
        f"{counted(number, f'{_prefix(kind)}core')}{f' x {threads} threads' if threads > 1 else ''}"
        for (kind, threads), number in counts.items()
    )


def node_note(node: Node) -> str:
    """Describe a node's memory and huge page pools."""
    pools = "".join(
        f", {pool.count} x {size_text(pool.size_bytes)} pages"
        for pool in node.hugepages
        if pool.count
    )
    if node.memory_bytes is None:
        return "memory unknown" + pools
    return (size_text(node.memory_bytes) if node.memory_bytes else "no memory") + pools


def size_text(size_bytes: int) -> str:
    """Return a size in the largest unit that it reaches: `15.6 GiB`, `2 MiB`."""
    for unit, size in _UNITS:
        if size_bytes >= size:
            whole, rest = divmod(size_bytes, size)
            return f"{size_bytes / size:.1f} {unit}" if rest else f"{whole} {unit}"
    return f"{size_bytes} B"


def plural(noun: str) -> str:
    """Return the plural of a level's or core's name."""
    return noun if noun == "L3" else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 core`, `2 cores`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def _levels(host: Host) -> tuple[Level, ...]:
    """Leave out redundant levels: dies that are packages, caches without a CPU."""
    counts = totals(host)
    levels: list[Level] = [("package", lambda cpu: cpu.package)]
    if counts["dies"] > counts["packages"]:
        levels.append(("die", lambda cpu: cpu.die))
    levels.append(("node", lambda cpu: cpu.node))
    if counts["uncore_caches"]:
        levels.append(("L3", lambda cpu: cpu.uncore))
    return tuple(levels)


def _nested(cpus: Sequence[Cpu], levels: Sequence[Level]) -> list[Level]:
    """Return the levels from the outermost to the innermost, in their order where it does."""
    ordered: list[Level] = []
    for level in levels:
        inner = (
            place
            for place, other in enumerate(ordered)
            if _is_inside(cpus, other, level) and not _is_inside(cpus, level, other)
        )
        ordered.insert(next(inner, len(ordered)), level)
    return ordered


def _is_inside(cpus: Sequence[Cpu], inner: Level, outer: Level) -> bool:
    pairs = {(inner[1](cpu), outer[1](cpu)) for cpu in cpus}
    return len(pairs) == len({group for group, _ in pairs})


def _in_order(group: int | None) -> tuple[bool, int]:
    return group is None, group or 0


def _split(cpus: Sequence[Cpu], levels: Sequence[Level], notes: dict[int, str]) -> tuple[Part, ...]:
    if not levels:
        return ()
    (kind, group_of), deeper = levels[0], levels[1:]
    groups: dict[int | None, list[Cpu]] = {}
    for cpu in cpus:
        groups.setdefault(group_of(cpu), []).append(cpu)
    return tuple(
        Part(
            kind=kind,
            id=group,
            cpus=Mask.from_ids(cpu.id for cpu in members),
            note=_note(group, notes) if kind == "node" else "",
            children=_split(members, deeper, notes),
            cores=() if deeper else _cores(members),
        )
        for group, members in sorted(groups.items(), key=lambda item: _in_order(item[0]))
    )


def _note(node: int | None, notes: dict[int, str]) -> str:
    """Return a node's note when it is first drawn, and later that it was."""
    if node is None:
        return ""
    note = notes.get(node, "")
    notes[node] = "memory as above"
    return note


def _cores(cpus: Sequence[Cpu]) -> tuple[Core, ...]:
    groups: dict[int | None, list[Cpu]] = {}
    for cpu in cpus:
        groups.setdefault(cpu.core, []).append(cpu)
    return tuple(
        Core(
            kind=members[0].kind,
            threads=Mask.from_ids(cpu.id for cpu in members),
            isolated=Mask.from_ids(cpu.id for cpu in members if cpu.isolated),
        )
        for members in groups.values()
    )


def _run_summary(run: tuple[Part, ...]) -> str:
    first = run[0]
    note = f"{first.note}, " if first.note else ""
    inner = f"{note}{summary(first)}"
    if len(run) == 1:
        return inner if first.id is None else f"1 {first.kind} ({inner})"
    return f"{len(run)} {plural(first.kind)} ({inner} each)"


def _prefix(kind: CoreKind) -> str:
    return "" if kind is CoreKind.STANDARD else f"{kind.value} "

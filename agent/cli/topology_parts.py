"""A host as nested parts for drawing: packages, dies, nodes, caches and their cores."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.topology_view import totals
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
    """Return the host's packages with everything below; only online CPUs are in a part."""
    notes = {node.id: node_note(node) for node in host.nodes}
    return _split([cpu for cpu in host.cpus if cpu.online], _levels(host), notes)


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
    """Leave out what tells nothing: dies that are packages, caches that no CPU has."""
    counts = totals(host)
    levels: list[Level] = [("package", lambda cpu: cpu.package)]
    if counts["dies"] > counts["packages"]:
        levels.append(("die", lambda cpu: cpu.die))
    levels.append(("node", lambda cpu: cpu.node))
    if counts["uncore_caches"]:
        levels.append(("L3", lambda cpu: cpu.uncore))
    return tuple(levels)


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
            note=notes.get(group, "") if kind == "node" and group is not None else "",
            children=_split(members, deeper, notes),
            cores=() if deeper else _cores(members),
        )
        for group, members in groups.items()
    )


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

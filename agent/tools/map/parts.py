"""Nested parts of a host: packages, dies, nodes and caches, down to cores with their threads."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.api.host.map import CpuUse, MapCpuDocument
from sysfs.host import CoreKind
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agent.api.host.map import MapDocument

    #: What a level is called, and the group of a CPU on it.
    Level = tuple[str, Callable[[MapCpuDocument], int | None]]


class MappedCore(Struct, frozen=True):
    """One core with its online threads, or one offline CPU, of which no core is known."""

    kind: str
    threads: tuple[MapCpuDocument, ...]


class MappedPart(Struct, frozen=True):
    """One package, die, node or cache: its online CPUs and what is inside; cores if nothing is.

    `first` is false where a node that nests in no order is drawn again. Parts of kind `offline`
    have the offline CPUs of the node `id`.
    """

    kind: str
    id: int | None
    cpus: Mask
    children: tuple[MappedPart, ...]
    cores: tuple[MappedCore, ...]
    first: bool = True

    def shape(self) -> object:
        """Return a value that is equal for parts that differ in their ids alone.

        CPUs that a pod has are never alike: it matters where they are.
        """
        cores = tuple(
            (
                core.kind,
                tuple((cpu.use, cpu.isolated, cpu.owners, cpu.cordoned) for cpu in core.threads),
            )
            for core in self.cores
        )
        place = self.cpus.bits if any(core_owners(core) for core in self.cores) else None
        children = tuple(child.shape() for child in self.children)
        return self.kind, self.first, self.id is None, place, children, cores

    def all_cores(self) -> Iterator[MappedCore]:
        """Yield the cores of this part and of all inside of it."""
        yield from self.cores
        for child in self.children:
            yield from child.all_cores()


def core_owners(core: MappedCore) -> bool:
    """Return whether any thread of a core has an owner."""
    return any(cpu.owners for cpu in core.threads)


def parts_of(document: MapDocument) -> tuple[MappedPart, ...]:
    """Return the outermost parts of a host with all inside, and its offline CPUs by node last.

    Packages are around dies, nodes and caches, in this order, except where a group has CPUs of
    several groups of the level above: then it is drawn around them, so that it is drawn once. Only
    a node that is neither around nor inside of packages is drawn several times, `first` once. Every
    CPU is in exactly one part without children. Nodes without online CPUs are in none.
    """
    online = [cpu for cpu in document.cpus if cpu.use is not CpuUse.OFFLINE]
    offline = [cpu for cpu in document.cpus if cpu.use is CpuUse.OFFLINE]
    return (*_split(online, _nested(online, _levels(online)), set()), *_offline(offline))


def alike(
    parts: Iterable[MappedPart], key: Callable[[MappedPart], object] = MappedPart.shape
) -> list[tuple[MappedPart, ...]]:
    """Return the parts in runs of equal shape."""
    return [tuple(run) for _, run in groupby(parts, key=key)]


def cores_text(cores: Iterable[MappedCore]) -> str:
    """Count cores by kind and threads: `6 performance cores x 2 threads + 8 efficiency cores`."""
    counts = Counter((core.kind, len(core.threads)) for core in cores)
    return " + ".join(
        f"{counted(number, f'{_prefix(kind)}core')}{f' x {threads} threads' if threads > 1 else ''}"
        for (kind, threads), number in counts.items()
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 core`, `2 cores`, `2 L3`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of the name of a level or core."""
    return noun if noun == "L3" else f"{noun}s"


def _prefix(kind: str) -> str:
    return "" if kind == CoreKind.STANDARD else f"{kind} "


def _levels(cpus: Sequence[MapCpuDocument]) -> tuple[Level, ...]:
    """Leave out what says nothing: unknown packages and caches, dies that are packages."""
    packages = {cpu.package for cpu in cpus} - {None}
    dies = {cpu.die for cpu in cpus} - {None}
    levels: list[Level] = []
    if packages:
        levels.append(("package", lambda cpu: cpu.package))
    if len(dies) > len(packages):
        levels.append(("die", lambda cpu: cpu.die))
    levels.append(("node", lambda cpu: cpu.node))
    if any(cpu.uncore is not None for cpu in cpus):
        levels.append(("L3", lambda cpu: cpu.uncore))
    return tuple(levels)


def _nested(cpus: Sequence[MapCpuDocument], levels: Sequence[Level]) -> list[Level]:
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


def _is_inside(cpus: Sequence[MapCpuDocument], inner: Level, outer: Level) -> bool:
    pairs = {(inner[1](cpu), outer[1](cpu)) for cpu in cpus}
    return len(pairs) == len({group for group, _ in pairs})


def _split(
    cpus: Sequence[MapCpuDocument], levels: Sequence[Level], drawn: set[int]
) -> tuple[MappedPart, ...]:
    if not levels:
        return ()
    (kind, group_of), deeper = levels[0], levels[1:]
    parts: list[MappedPart] = []
    for group, members in _groups(cpus, group_of):
        again = kind == "node" and group in drawn
        if kind == "node" and group is not None:
            drawn.add(group)
        parts.append(
            MappedPart(
                kind=kind,
                id=group,
                cpus=Mask.from_ids(cpu.id for cpu in members),
                children=_split(members, deeper, drawn),
                cores=() if deeper else _cores(members),
                first=not again,
            )
        )
    return tuple(parts)


def _groups(
    cpus: Iterable[MapCpuDocument], group_of: Callable[[MapCpuDocument], int | None]
) -> list[tuple[int | None, list[MapCpuDocument]]]:
    groups: dict[int | None, list[MapCpuDocument]] = defaultdict(list)
    for cpu in cpus:
        groups[group_of(cpu)].append(cpu)
    return sorted(groups.items(), key=lambda group: (group[0] is None, group[0] or 0))


def _cores(cpus: Sequence[MapCpuDocument]) -> tuple[MappedCore, ...]:
    cores: dict[int | None, list[MapCpuDocument]] = defaultdict(list)
    for cpu in cpus:
        cores[cpu.core].append(cpu)
    return tuple(MappedCore(threads[0].kind, tuple(threads)) for threads in cores.values())


def _offline(cpus: Sequence[MapCpuDocument]) -> Iterator[MappedPart]:
    for node, members in _groups(cpus, lambda cpu: cpu.node):
        yield MappedPart(
            kind="offline",
            id=node,
            cpus=Mask.from_ids(cpu.id for cpu in members),
            children=(),
            cores=tuple(MappedCore(cpu.kind, (cpu,)) for cpu in members),
        )

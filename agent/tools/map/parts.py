"""The parts of a host as a map nests them: packages, dies, nodes and caches, down to cores.

In goes a `MapDocument`, out come `MappedPart`s (`parts_of`). The text and the page draw the same
parts. Every CPU is in exactly one part without children.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.api.documents.map import CpuUse, MapCpuDocument
from agent.tools.map.words import counted
from sysfs.host import CoreKind
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agent.api.documents.map import MapDocument

    #: The name of a level, and the group of a CPU on it.
    Level = tuple[str, Callable[[MapCpuDocument], int | None]]


class MappedCore(Struct, frozen=True):
    """The online threads of a core; or an offline CPU, of which the core is not known."""

    kind: str
    threads: tuple[MapCpuDocument, ...]


class MappedPart(Struct, frozen=True):
    """One package, die, node or cache, or the offline CPUs of a node."""

    #: `package`, `die`, `node`, `L3` or `offline`.
    kind: str
    #: The id of the package, die, node or cache, None where it is not known; of `offline` the node.
    id: int | None
    cpus: Mask
    children: tuple[MappedPart, ...]
    #: The cores of a part without children.
    cores: tuple[MappedCore, ...]
    #: False where a node is drawn again: it is neither around nor inside of packages.
    first: bool = True

    def shape(self) -> object:
        """Return a value that is equal for parts that differ only in their ids.

        A part with CPUs of a pod is equal to no other part: a reader looks for these CPUs.
        """
        cores = tuple(
            (
                core.kind,
                tuple((cpu.use, cpu.isolated, cpu.owners, cpu.cordoned) for cpu in core.threads),
            )
            for core in self.cores
        )
        place = self.cpus.bits if any(has_owner(core) for core in self.cores) else None
        children = tuple(child.shape() for child in self.children)
        return self.kind, self.first, self.id is None, place, children, cores

    def all_cores(self) -> Iterator[MappedCore]:
        """Yield the cores of this part and of all inside of it."""
        yield from self.cores
        for child in self.children:
            yield from child.all_cores()


def has_owner(core: MappedCore) -> bool:
    """Return whether any thread of a core has an owner."""
    return any(cpu.owners for cpu in core.threads)


def parts_of(document: MapDocument) -> tuple[MappedPart, ...]:
    """Return the outermost parts of a host, and its offline CPUs by node last.

    1. Packages are around dies, dies around nodes, nodes around caches.
    2. A group with CPUs of several groups of the level above is drawn around these instead, so
       that it is drawn once: a node with two packages is around the packages.
    3. A node that is neither around nor inside of packages is drawn several times, once `first`.
    4. A node without online CPUs is in no part, except its offline CPUs.
    """
    online = [cpu for cpu in document.cpus if cpu.use is not CpuUse.OFFLINE]
    offline = [cpu for cpu in document.cpus if cpu.use is CpuUse.OFFLINE]
    return (*_split(online, _nested(online, _levels(online)), set()), *_offline(offline))


def runs_of(
    parts: Iterable[MappedPart], key: Callable[[MappedPart], object] = MappedPart.shape
) -> list[tuple[MappedPart, ...]]:
    """Return neighbours of equal shape as runs."""
    return [tuple(run) for _, run in groupby(parts, key=key)]


def cores_text(cores: Iterable[MappedCore]) -> str:
    """Count cores by kind and threads: `6 performance cores x 2 threads + 8 efficiency cores`."""
    counts = Counter((core.kind, len(core.threads)) for core in cores)
    return " + ".join(
        f"{counted(number, f'{_prefix(kind)}core')}{f' x {threads} threads' if threads > 1 else ''}"
        for (kind, threads), number in counts.items()
    )


def _prefix(kind: str) -> str:
    return "" if kind == CoreKind.STANDARD else f"{kind} "


def _levels(cpus: Sequence[MapCpuDocument]) -> tuple[Level, ...]:
    """Return the levels of a host: no unknown packages and caches, no dies if each is a package."""
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
    """Return the levels from the outermost to the innermost (steps 1 and 2 of `parts_of`)."""
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

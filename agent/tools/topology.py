"""Drawing a host for a terminal of 80 columns or more."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from agent.api.topology import totals
from sysfs.host import CoreKind
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from sysfs.host import Cpu, Device, Host, Node

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


def _plural(noun: str) -> str:
    """Return the plural of a level's or core's name."""
    return noun if noun == "L3" else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 core`, `2 cores`."""
    return f"{number} {noun if number == 1 else _plural(noun)}"


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
    return f"{len(run)} {_plural(first.kind)} ({inner} each)"


def _prefix(kind: CoreKind) -> str:
    return "" if kind is CoreKind.STANDARD else f"{kind.value} "


#: The most columns that fit in 80 characters with ids and distances of up to three digits.
_MATRIX_NODES: Final = 16


def distance_lines(host: Host) -> Iterator[str]:
    """Yield one line for each row of the matrix, or for each group of nodes with equal rows."""
    rows = {node.id: node.distances for node in host.nodes}
    return _matrix(rows) if len(rows) <= _MATRIX_NODES else _ranges(rows)


def _matrix(rows: Mapping[int, Mapping[int, int]]) -> Iterator[str]:
    values = [*rows, *(distance for row in rows.values() for distance in row.values())]
    width = max(len(str(value)) for value in values) + 1
    head = len("node ") + width
    yield " " * head + "".join(f"{node:>{width}}" for node in rows)
    for node, row in rows.items():
        yield f"node{node:>{width + 1}}" + "".join(
            f"{row.get(other, '-'):>{width}}" for other in rows
        )


def _ranges(rows: Mapping[int, Mapping[int, int]]) -> Iterator[str]:
    groups: dict[tuple[int | None, tuple[tuple[int, Mask], ...]], list[int]] = {}
    for node, row in rows.items():
        groups.setdefault((row.get(node), _by_distance(node, row)), []).append(node)
    for (local, others), nodes in groups.items():
        yield _range_line(local, others, Mask.from_ids(nodes))


def _range_line(local: int | None, others: tuple[tuple[int, Mask], ...], nodes: Mask) -> str:
    if len(nodes) == 1:
        others = tuple((distance, members - nodes) for distance, members in others)
    words = ", ".join(f"{distance} to {members}" for distance, members in others if members)
    return f"node{'s' if len(nodes) > 1 else ''} {nodes}: {local} to itself, {words}"


def _by_distance(node: int, row: Mapping[int, int]) -> tuple[tuple[int, Mask], ...]:
    """Return the nodes at each distance; the node itself counts among its nearest.

    So the nodes of one package, each nearest to all others of it, have equal rows.
    """
    members: dict[int, int] = {}
    for other, distance in row.items():
        if other != node:
            members[distance] = members.get(distance, 0) | 1 << other
    nearest = min(members)
    members[nearest] |= 1 << node
    return tuple((distance, Mask(members[distance])) for distance in sorted(members))


#: Above this many CPUs, neighbours that differ in their ids alone share a line.
_COLLAPSE_ABOVE: Final = 128
#: Two neighbours alike are quicker read than their summary; packages are what people see.
_SHORTEST_RUN: Final[Mapping[str, int]] = {"package": 9, "die": 9, "node": 3, "L3": 3}
#: A cache with more cores than this shows the first and the last of them.
_CORES_ONE_BY_ONE: Final = 16
_LONGEST_LIST: Final = 44


class _Scale(Struct, frozen=True):
    """Whether neighbours that are alike share a line, and whether every list is shown whole."""

    collapse: bool
    full: bool


#: What a PCI device is, by its base class (PCI Code and ID Assignment specification, 1).
_CLASSES: Final[Mapping[str, str]] = {
    "01": "storage",
    "02": "network",
    "03": "display",
    "04": "multimedia",
    "05": "memory",
    "06": "bridge",
    "08": "system",
    "0b": "processor",
    "0c": "serial bus",
    "0d": "wireless",
    "10": "encryption",
    "12": "accelerator",
}
#: These are what people place work by, so each is named with its address.
_NAMED_CLASSES: Final = ("display", "accelerator", "network", "memory", "processor")


def picture(host: Host, *, full: bool = False) -> Iterator[RenderableType]:
    """Yield what to print, from top to bottom; a `*` stands behind isolated CPUs.

    With `full` nothing is summed up or cut: every node with its CPUs, every core with its threads.
    """
    yield _headline(host)
    scale = _Scale(collapse=len(host.cpus) > _COLLAPSE_ABOVE and not full, full=full)
    tree = Tree(Text("machine", style="bold"))
    _grow(tree, parts_of(host), scale)
    for node in host.nodes:
        if not node.cpus:
            tree.add(_line(f"node {node.id}", f"{node_note(node)}, no CPUs"))
    yield tree
    yield from _sets(host)
    if len(host.nodes) > 1:
        yield Text("distances", style="bold")
        yield from (
            Padding(Text(line), (0, 0, 0, 2), expand=False) for line in distance_lines(host)
        )
    yield from _devices(host)


def plain_lines(part: RenderableType) -> Iterator[str]:
    """Yield the lines of a part of a picture as they are, for output that is not a terminal.

    A terminal's width means nothing to them: nothing is wrapped, nothing padded.
    """
    if isinstance(part, Tree):
        yield str(part.label)
        yield from _branches(part, "")
    elif isinstance(part, Padding):
        yield f"{' ' * part.left}{part.renderable}"
    else:
        yield str(part)


def _branches(tree: Tree, indent: str) -> Iterator[str]:
    for child in tree.children:
        last = child is tree.children[-1]
        yield f"{indent}{'└── ' if last else '├── '}{child.label}"
        yield from _branches(child, indent + ("    " if last else "│   "))


def id_list(ids: Mask, noun: str = "CPU") -> str:
    """Return the list, or its ends and how many they are where it is too long to be read."""
    text = str(ids)
    if len(text) <= _LONGEST_LIST:
        return text
    runs = text.split(",")
    return f"{','.join(runs[:3])},...,{runs[-1]} ({len(ids)} {_plural(noun)})"


def _headline(host: Host) -> Text:
    counts = totals(host)
    groups = (
        (counts["packages"], "package"),
        (counts["dies"], "die"),
        (counts["clusters"], "cluster"),
        (counts["cores"], "core"),
        (counts["uncore_caches"], "L3 cache"),
        (counts["nodes"], "node"),
        (counts["memory_only_nodes"], "memory-only node"),
    )
    words = [f"{counted(counts['cpus'], 'CPU')} ({counts['online']} online)"]
    words += [counted(number, name) for number, name in groups if number]
    return Text(", ".join(words), style="bold")


def _grow(tree: Tree, parts: tuple[Part, ...], scale: _Scale) -> None:
    for run in alike(parts):
        if scale.collapse and len(run) >= _SHORTEST_RUN[run[0].kind]:
            tree.add(_run_line(run))
            continue
        for part in run:
            branch = tree.add(_part_line(part, scale))
            _grow(branch, part.children, scale)
            if part.cores:
                branch.add(_cores_line(part, scale))


def _part_line(part: Part, scale: _Scale) -> Text:
    name = f"no {part.kind}" if part.id is None else f"{part.kind} {part.id}"
    note = f"{part.note}, " if part.note else ""
    return _line(name, f"{note}CPUs {part.cpus if scale.full else id_list(part.cpus)}")


def _run_line(run: tuple[Part, ...]) -> Text:
    ids = Mask.from_ids(part.id for part in run if part.id is not None)
    cpus = Mask.from_ids(cpu for part in run for cpu in part.cpus)
    note = f"{run[0].note}, " if run[0].note else ""
    name = f"{len(run)} {_plural(run[0].kind)} {id_list(ids, run[0].kind)}"
    return _line(name, f"each {note}{summary(run[0])}; CPUs {id_list(cpus)}")


def _cores_line(part: Part, scale: _Scale) -> Text:
    isolated = Mask.from_ids(cpu for core in part.cores for cpu in core.isolated)
    text = cores_summary(part.cores)
    cores = ["+".join(_thread(cpu, isolated) for cpu in core.threads) for core in part.cores]
    cut = len(cores) > _CORES_ONE_BY_ONE and not scale.full
    if cut:
        cores[3:-1] = ["..."]
    text += f": {' '.join(cores)}"
    if isolated and cut:
        text += f", isolated {id_list(isolated)}"
    return Text(text)


def _thread(cpu: int, isolated: Mask) -> str:
    return f"{cpu}*" if cpu in isolated else str(cpu)


def _line(name: str, rest: str) -> Text:
    return Text.assemble((name, "bold"), f"  {rest}")


def _sets(host: Host) -> Iterator[Text]:
    for name, members in (
        ("offline", host.offline),
        ("isolated (*)", host.isolated),
        ("without a tick", host.nohz_full),
    ):
        if members:
            yield _line(name, str(members))


def _devices(host: Host) -> Iterator[RenderableType]:
    groups: dict[int | None, list[Device]] = {}
    for device in host.devices:
        groups.setdefault(device.node, []).append(device)
    if groups:
        yield Text("devices", style="bold")
    for node in sorted(groups, key=lambda node: (node is None, node or 0)):
        place = "no node" if node is None else f"node {node}"
        words = ", ".join(_device_words(groups[node]))
        yield Padding(Text(f"{place}: {words}"), (0, 0, 0, 2), expand=False)


def _device_words(devices: list[Device]) -> Iterator[str]:
    counts: dict[str, int] = {}
    shown = {device.address for device in devices if device.kind == "net"}
    for device in devices:
        name = _CLASSES.get(device.device_class[2:4], "other")
        if device.kind == "net":
            yield f"{device.name} ({device.address})" if device.address else device.name
        elif name == "network" and device.address in shown:
            continue
        elif name in _NAMED_CLASSES:
            yield f"{name} {device.address}"
        else:
            counts[name] = counts.get(name, 0) + 1
    yield from (f"{number} x {name}" for name, number in sorted(counts.items()))

"""A map as lines of text, for terminals and pipes."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.map import CpuUse
from agent.pods.model import MEMORY, full_name
from agent.tools.map.parts import (
    MEANINGS,
    NOT_THERE,
    Line,
    MappedPart,
    Marks,
    TextSpan,
    Tone,
    alike,
    broken,
    cores_text,
    counted,
    indented,
    line,
    marks_of,
    parts_of,
    plain,
    plural,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from agent.api.map import (
        MapContainerDocument,
        MapDeviceDocument,
        MapDocument,
        MapMemoryDocument,
        MapNodeDocument,
        MapPodDocument,
    )
    from agent.tools.map.parts import MappedCore


#: Above this many CPUs cores are counted, and neighbours that differ in their ids alone share a
#: line.
COLLAPSE_ABOVE: Final = 128
#: Two neighbours alike are quicker read than their summary; packages and nodes are looked up.
_SHORTEST_RUN: Final = {"package": 9, "die": 9, "node": 9, "L3": 3, "offline": 3}
_LONGEST_LIST: Final = 44
#: The most warnings in a map that is not full.
_WARNINGS: Final = 12
_INDENT: Final = 2
#: What is counted of each use where cores are not drawn.
_USES: Final = {
    ".": "shared",
    "R": "reserved",
    "/": "cordoned",
    "x": "offline",
    "-": "withheld",
    "i": "isolated",
    "o": "of other pods",
    "*": "allocated twice",
}


class MapLayout(Struct, frozen=True):
    """The form of a picture.

    `width` in columns, None for output that is not a terminal, where no line is broken. `full`
    leaves nothing out. `focus` is the uid of a pod: only its nodes are shown, and with its cores.
    """

    width: int | None = None
    full: bool = False
    focus: str | None = None
    ascii_only: bool = False


def map_lines(document: MapDocument, layout: MapLayout = MapLayout()) -> Iterator[Line]:  # noqa: B008  # frozen
    """Yield the lines of a map: the host, its parts with cores, pods and warnings, distances."""
    for each in _Picture(document, layout).lines():
        yield from (each,) if layout.width is None else broken(each, layout.width)


class Fold(Struct, frozen=True):
    """The outermost parts of a host from `start` up to `end` that are alike, and what they are."""

    start: int
    end: int
    text: str


def folds_of(document: MapDocument, parts: Sequence[MappedPart]) -> Iterator[Fold]:
    """Yield the runs of equal outermost parts that share a line in a map that is not full.

    `parts` are those of `parts_of`.
    """
    picture, start = _Picture(document, MapLayout()), 0
    for run in picture.runs(parts):
        end = start + len(run)
        if picture.is_folded(run):
            yield Fold(start, end, plain(picture.folded(run)))
        start = end


class _Picture:
    def __init__(self, document: MapDocument, layout: MapLayout) -> None:
        self._document = document
        self._layout = layout
        self._marks: Marks = marks_of(document, layout.focus)
        self._nodes = {node.id: node for node in document.nodes}
        self._cordoned_nodes = frozenset(node.id for node in document.nodes if node.cordoned)
        self._tiered = len({node.tier for node in document.nodes} - {None}) > 1
        self._classes = memory_classes(document.nodes)
        self._devices = by_node(document.devices)
        focused = layout.focus is not None
        self._counting = len(document.cpus) > COLLAPSE_ABOVE and not layout.full and not focused
        self._shown = self._focused_nodes() if focused else None

    def lines(self) -> Iterator[Line]:
        document = self._document
        parts = parts_of(document)
        yield from headlines(document, parts)
        yield from self._parts(parts, 0)
        yield from self._memory_only()
        yield from self._elsewhere()
        yield from self._sets()
        if document.policy is None and len(document.nodes) > 1:
            yield line(TextSpan("distances", Tone.HEADING))
            yield from (line(f"  {row}") for row in distance_lines(document.nodes))
        if document.policy is not None:
            yield self._legend()
            full = self._layout.full
            yield from pod_lines(document, self._marks, full=full)
            yield from self._warnings()

    def _parts(self, parts: Sequence[MappedPart], depth: int) -> Iterator[Line]:
        for run in self.runs(parts):
            if self.is_folded(run):
                yield indented(depth, self.folded(run))
                continue
            for part in run:
                if not self._is_left_out(part):
                    yield from self._part(part, depth)

    def runs(self, parts: Sequence[MappedPart]) -> Sequence[Sequence[MappedPart]]:
        """Return parts in runs of those that differ in their ids alone."""
        return alike(parts, self._likeness) if self._counting else [(part,) for part in parts]

    def is_folded(self, run: Sequence[MappedPart]) -> bool:
        """Return whether a run is so long that it gets one line."""
        return self._counting and len(run) >= _SHORTEST_RUN[run[0].kind]

    def _part(self, part: MappedPart, depth: int) -> Iterator[Line]:
        """Yield a part; what is alone in another with the same CPUs stands in the same line."""
        chain = [part]
        while len(chain[-1].children) == 1:
            chain.append(chain[-1].children[0])
        names = ", ".join(self._name(each) for each in chain)
        last = chain[-1]
        counts: tuple[str | TextSpan, ...] = ()
        if self._counting and last.cores:
            counts = (f": {cores_text(last.cores)}", *self._uses(last))
        cpus = part.cpus if self._layout.full else id_list(part.cpus)
        yield indented(depth, line(TextSpan(names, Tone.HEADING), f"  CPUs {cpus}", *counts))
        for each in chain:
            if each.kind == "node" and each.id is not None:
                yield from self._node(each, depth + _INDENT)
        yield from self._parts(last.children, depth + _INDENT)
        if last.cores and not self._counting:
            width = None if self._layout.width is None else self._layout.width - depth - _INDENT
            for row in core_columns(last.cores, self._marks, width):
                yield indented(depth + _INDENT, row)

    def _name(self, part: MappedPart) -> str:
        if part.kind == "offline":
            return "offline" if part.id is None else f"offline, node {part.id}"
        size = self._document.uncore_bytes.get(str(part.id)) if part.kind == "L3" else None
        name = f"no {part.kind}" if part.id is None else f"{part.kind} {part.id}"
        if part.kind == "node" and part.id in self._cordoned_nodes:
            name += " (cordoned)"
        return name if size is None else f"{name} ({size_text(size)})"

    def _node(self, part: MappedPart, depth: int) -> Iterator[Line]:
        if not part.first:
            yield indented(depth, line("memory and devices as above"))
            return
        node = self._nodes.get(part.id if part.id is not None else -1)
        if node is not None:
            for each in self._belongings(node):
                yield indented(depth, each)

    def _belongings(self, node: MapNodeDocument) -> Iterator[Line]:
        if self._tiered and node.tier is not None:
            yield line(f"{'memory tier':<14}", str(node.tier))
        if node.id in self._classes:
            yield line(f"{'memory class':<14}", self._classes[node.id])
        yield from memory_lines(node, ascii_only=self._layout.ascii_only)
        yield from device_lines(self._devices.get(str(node.id), ()), self._marks)

    def folded(self, run: Sequence[MappedPart]) -> Line:
        """Return the line of a run."""
        first = run[0]
        ids = Mask.from_ids(part.id for part in run if part.id is not None)
        cpus = Mask.from_ids(cpu for part in run for cpu in part.cpus)
        name = f"{len(run)} {plural(first.kind)} {id_list(ids, first.kind)}"
        nodes = set(_nodes_in(first))
        if nodes and nodes <= self._cordoned_nodes:
            name += " (cordoned)"
        node = self._nodes.get(first.id) if first.kind == "node" and first.id is not None else None
        counts = [] if node is None else [memory_text(node, self._classes)]
        size = self._document.uncore_bytes.get(str(first.id)) if first.kind == "L3" else None
        counts += [] if size is None else [size_text(size)]
        counts += [counted(number, kind) for kind, number in _kinds_inside(first).items()]
        offered = Counter(
            device.resource
            for number in _nodes_in(first)
            for device in self._devices.get(str(number), ())
        )
        counts += [f"{number} {resource}" for resource, number in offered.items() if resource]
        counts.append(cores_text(first.all_cores()))
        return line(
            TextSpan(name, Tone.HEADING),
            f"  CPUs {id_list(cpus)}: each {', '.join(counts)}",
            *self._uses(first),
        )

    def _likeness(self, part: MappedPart) -> object:
        """Return a value that is equal for parts that may share a line."""
        nodes = [self._nodes[node] for node in _nodes_in(part) if node in self._nodes]
        sizes = [self._document.uncore_bytes.get(str(cache)) for cache in _caches_in(part)]
        return (
            part.shape(),
            sizes,
            [
                (node.tier, node.memory_class, node.cordoned, *map(plain, memory_lines(node)))
                for node in nodes
            ],
            [Counter(map(_device_shape, self._devices.get(str(node.id), ()))) for node in nodes],
        )

    def _uses(self, part: MappedPart) -> Iterator[str | TextSpan]:
        """Yield how many CPUs of a part have which use, pods by their labels."""
        if self._document.policy is None:
            return
        counts: Counter[TextSpan] = Counter(
            mark for core in part.all_cores() for mark in map(self._marks.of, core.threads)
        )
        before = "; "
        for mark, number in sorted(counts.items(), key=lambda found: found[0].text in _USES):
            yield f"{before}{number} "
            yield TextSpan(_USES.get(mark.text, mark.text), mark.tone)
            before = ", "

    def _memory_only(self) -> Iterator[Line]:
        """Yield the nodes without online CPUs."""
        with_cpus = Mask.from_ids(node.id for node in self._document.nodes if node.cpus)
        bare = [node for node in self._document.nodes if not node.cpus]
        shown = [node for node in bare if self._shown is None or node.id in self._shown]
        texts = [
            ", ".join(
                filter(
                    None,
                    (
                        memory_text(node, self._classes),
                        nearest_text(node, with_cpus),
                        "cordoned" if node.cordoned else "",
                    ),
                )
            )
            for node in shown
        ]
        place = 0
        while place < len(shown):
            end = place + 1
            while end < len(shown) and texts[end] == texts[place]:
                end += 1
            if self._counting and end - place >= _SHORTEST_RUN["node"]:
                ids = Mask.from_ids(node.id for node in shown[place:end])
                name = f"{end - place} nodes {id_list(ids, 'node')}"
                yield line(TextSpan(name, Tone.HEADING), f"  no CPUs: each {texts[place]}")
            else:
                for node in shown[place:end]:
                    yield from self._without_cpus(node, nearest_text(node, with_cpus))
            place = end

    def _without_cpus(self, node: MapNodeDocument, nearest: str) -> Iterator[Line]:
        words = f"  no CPUs; {nearest}" if nearest else "  no CPUs"
        words += "; cordoned" if node.cordoned else ""
        yield line(TextSpan(f"node {node.id}", Tone.HEADING), words)
        for each in self._belongings(node):
            yield indented(_INDENT, each)

    def _elsewhere(self) -> Iterator[Line]:
        """Yield the devices that are near no single known node."""
        for name, each in elsewhere(self._devices, self._nodes, self._marks):
            yield line(TextSpan(f"{name}  ", Tone.HEADING), *each)

    def _sets(self) -> Iterator[Line]:
        isolated = Mask.from_ids(cpu.id for cpu in self._document.cpus if cpu.isolated)
        name = "isolated (*)" if self._document.policy is None else "isolated"
        for name_of, text in ((name, str(isolated)), ("without a tick", self._document.nohz_full)):
            if text:
                yield line(TextSpan(name_of, Tone.HEADING), f"  CPUs {text}")
        yield from self._cordoned()

    def _cordoned(self) -> Iterator[Line]:
        nodes = Mask.from_ids(self._cordoned_nodes)
        cpus = Mask.from_ids(cpu.id for cpu in self._document.cpus if cpu.cordoned)
        owned = Mask.from_ids(cpu.id for cpu in self._document.cpus if cpu.cordoned and cpu.owners)
        words = [f"{'nodes' if len(nodes) > 1 else 'node'} {nodes}"] if nodes else []
        words += [f"CPUs {cpus}"] if cpus else []
        words += [f"still allocated {owned}"] if owned else []
        if words:
            yield line(TextSpan("cordoned", Tone.HEADING), f"  {', '.join(words)}")

    def _legend(self) -> Line:
        signs = {self._marks.of(cpu).text for cpu in self._document.cpus} & MEANINGS.keys()
        if any(each.reason == "SharedCore" for each in self._document.warnings):
            signs.add("!")
        words = ["A, B: one container's, a, b: the pod's"] if self._marks.labels else []
        words += [f"{sign} {MEANINGS[sign]}" for sign in MEANINGS if sign in signs]
        return line(TextSpan("  ".join(words), Tone.FAINT))

    def _warnings(self) -> Iterator[Line]:
        focus = self._layout.focus
        found = [each for each in self._document.warnings if focus is None or focus in each.uids]
        shown = found if self._layout.full else found[:_WARNINGS]
        for warning in shown:
            yield line(TextSpan("! ", Tone.WARNING), warning.message)
        more = len(found) - len(shown) + (self._document.more_warnings if focus is None else 0)
        if more:
            yield line(TextSpan("! ", Tone.WARNING), f"and {counted(more, 'warning')} more")

    def _focused_nodes(self) -> frozenset[int]:
        """Return the nodes of the focused pod's CPUs, memory and devices."""
        uid = self._layout.focus
        nodes = {
            cpu.node
            for cpu in self._document.cpus
            if cpu.node is not None and any(owner.uid == uid for owner in cpu.owners)
        }
        for pod in self._document.pods:
            if pod.uid == uid:
                for container in pod.containers:
                    nodes |= set(Mask.parse(container.mems))
        for device in self._document.devices:
            if device.owner is not None and device.owner.uid == uid:
                nodes |= set(Mask.parse(device.nodes))
        return frozenset(nodes)

    def _is_left_out(self, part: MappedPart) -> bool:
        """Return whether a part has no CPU of the nodes that are shown."""
        if self._shown is None:
            return False
        return all(cpu.node not in self._shown for core in part.all_cores() for cpu in core.threads)


def id_list(ids: Mask, noun: str = "CPU") -> str:
    """Return the list, or its ends and how many they are where it is too long to be read."""
    text = str(ids)
    if len(text) <= _LONGEST_LIST:
        return text
    runs = text.split(",")
    return f"{','.join(runs[:3])},...,{runs[-1]} ({counted(len(ids), noun)})"


def headlines(document: MapDocument, parts: Sequence[MappedPart]) -> Iterator[Line]:
    """Yield what the host has, enumerated and never divided, and how much of it is allocated."""
    cores = [core for part in parts if part.kind != "offline" for core in part.all_cores()]
    online = [cpu for core in cores for cpu in core.threads]
    packages, dies = ({getattr(cpu, k) for cpu in online} - {None} for k in ("package", "die"))
    groups = (
        (len(packages), "package"),
        (len(dies) if len(dies) > len(packages) else 0, "die"),
        (len(document.nodes), "node"),
        (sum(not node.cpus for node in document.nodes), "memory-only node"),
        (len({cpu.uncore for cpu in online} - {None}), "L3 cache"),
    )
    words = [f"{counted(len(document.cpus), 'CPU')} ({len(online)} online)"]
    words += [counted(number, name) for number, name in groups if number]
    words += [cores_text(cores), _memory_sum(document)]
    yield line(TextSpan(", ".join(words), Tone.HEADING))
    policy = document.policy
    if policy is not None:
        taken = sum(bool(cpu.owners) and cpu.use not in NOT_THERE for cpu in online)
        usable = taken + sum(cpu.use is CpuUse.SHARED for cpu in online)
        yield line(
            f"CPU {policy.cpu_manager_policy}, memory {policy.memory_manager_policy}, topology "
            f"{policy.topology_manager_policy} (scope {policy.topology_manager_scope}); "
            f"{taken} of {usable} CPUs allocated, {counted(len(document.pods), 'pod')}"
        )


def _device_shape(device: MapDeviceDocument) -> object:
    """Return a value that is equal for devices alike: free ones of a resource."""
    free = bool(device.resource) and device.owner is None and not device.pod
    return device.kind, device.resource, device.healthy, device.kubelet, "" if free else device.name


def _memory_sum(document: MapDocument) -> str:
    totals = [m.total for node in document.nodes for m in node.memory if m.type == MEMORY]
    known = [total for total in totals if total is not None]
    return f"{'at least ' if len(known) < len(totals) else ''}{size_text(sum(known))} of memory"


def _kinds_inside(part: MappedPart) -> Counter[str]:
    """Count the parts inside of a part by kind."""
    counts: Counter[str] = Counter()
    for child in part.children:
        counts[child.kind] += 1
        counts += _kinds_inside(child)
    return counts


def _caches_in(part: MappedPart) -> Iterator[int | None]:
    """Yield the ids of the caches in a part, itself included."""
    if part.kind == "L3":
        yield part.id
    for child in part.children:
        yield from _caches_in(child)


def _nodes_in(part: MappedPart) -> Iterator[int]:
    """Yield the nodes of a part, itself included, where they are drawn first."""
    if part.kind == "node" and part.id is not None and part.first:
        yield part.id
    for child in part.children:
        yield from _nodes_in(child)


#: The width of the names of rows: `cpu`, `+112`.
_HEAD: Final = 6


def core_columns(cores: Sequence[MappedCore], marks: Marks, width: int | None) -> Iterator[Line]:
    """Yield the rows of some cores; what is wider than `width` columns continues below.

    Above the columns are the ids of the first threads; the rows of the others are named after their
    distance to the first (`+16`) where that is the same for all cores, else their ids stand above.
    Where nothing is known of pods, the ids themselves are shown, isolated ones with a `*`. Kinds of
    cores stand apart.
    """
    kinds = [list(same) for _, same in groupby(cores, key=lambda core: core.kind)]
    for same in kinds:
        if len(kinds) > 1:
            yield (TextSpan(f"{same[0].kind} cores", Tone.HEADING),)
        cell = _cell_width(same, marks)
        fitting = len(same) if width is None else max(1, (width - _HEAD) // cell)
        for start in range(0, len(same), fitting):
            yield from _rows(same[start : start + fitting], marks, cell)


def _rows(cores: Sequence[MappedCore], marks: Marks, cell: int) -> Iterator[Line]:
    bare = all(cpu.use is CpuUse.ONLINE for core in cores for cpu in core.threads)
    marked = [list(marks.in_core(core)) for core in cores]
    distances = _distances(cores)
    # Beside ids of other threads a distance to the first would be taken for one to these.
    regular = all(len(each) == 1 for each in distances)
    for row, apart in enumerate(distances):
        here = [core.threads[row] if row < len(core.threads) else None for core in cores]
        if bare:
            texts = ["" if c is None else f"{c.id}{'*' if c.isolated else ' '}" for c in here]
            yield _row("cpu" if row == 0 else "", [(TextSpan(text),) for text in texts], cell)
            continue
        name = f"+{min(apart)}" if regular and row > 0 else ""
        if not name:
            ids = ["" if cpu is None else f"{cpu.id} " for cpu in here]
            yield _row("cpu", [(TextSpan(text, Tone.FAINT),) for text in ids], cell)
        cells = [each[row] if row < len(each) else () for each in marked]
        yield _row(name, [_with_place(spans) for spans in cells], cell)


def _distances(cores: Sequence[MappedCore]) -> list[set[int]]:
    """Return how far the n-th threads of the cores are from the first, by n."""
    found: list[set[int]] = []
    for core in cores:
        for row, cpu in enumerate(core.threads):
            if row == len(found):
                found.append(set())
            found[row].add(cpu.id - core.threads[0].id)
    return found


def _with_place(spans: Line) -> Line:
    """Return a mark with the place of the sign of a shared core behind."""
    return spans if len(spans) > 1 else (*spans, TextSpan(" "))


def _row(name: str, cells: Sequence[Line], width: int) -> Line:
    spans = [TextSpan(f"{name:<{_HEAD}}", Tone.FAINT)]
    for each in cells:
        spans.append(TextSpan(" " * (width - sum(len(span.text) for span in each))))
        spans += each
    return tuple(spans)


def _cell_width(cores: Sequence[MappedCore], marks: Marks) -> int:
    ids = max(len(str(cpu.id)) for core in cores for cpu in core.threads)
    labels = max(len(marks.of(cpu).text) for core in cores for cpu in core.threads)
    return max(ids, labels) + 2


_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
#: The length of a bar, in characters.
BAR: Final = 16
#: The most nodes whose distances are a matrix: it fits in 80 columns.
_MATRIX_NODES: Final = 16


def size_text(size_bytes: int) -> str:
    """Return a size in the largest unit that it reaches: `15.6 GiB`, `2 MiB`."""
    for unit, size in _UNITS:
        if size_bytes >= size:
            whole, rest = divmod(size_bytes, size)
            return f"{size_bytes / size:.1f} {unit}" if rest else f"{whole} {unit}"
    return f"{size_bytes} B"


def memory_lines(node: MapNodeDocument, *, ascii_only: bool = False) -> Iterator[Line]:
    """Yield a line for each memory type that a node has; a bar where allocations are known."""
    for memory in node.memory:
        if memory.total is None:
            yield line(f"{memory.type:<14}", "size unknown")
        elif memory.allocated is not None and memory.total:
            shares = _shares(memory, _huge_pages(node) if memory.type == MEMORY else 0)
            yield line(f"{memory.type:<14}", _bar(memory, ascii_only=ascii_only), shares)
        elif memory.total or memory.type == "memory":
            yield line(f"{memory.type:<14}", size_text(memory.total) if memory.total else "none")


def memory_classes(nodes: Sequence[MapNodeDocument]) -> Mapping[int, str]:
    """Return the class of each node's memory, by id; of none where all are alike."""
    if len({node.memory_class for node in nodes}) <= 1:
        return {}
    with_memory = (node for node in nodes if any(each.total for each in node.memory))
    return {node.id: node.memory_class or "unknown" for node in with_memory}


def memory_text(node: MapNodeDocument, classes: Mapping[int, str]) -> str:
    """Return the memory of a node in a few words: `16 GiB, class hbm`, `no memory`."""
    words = list(_words(node))
    if node.id in classes:
        words.append(f"class {classes[node.id]}")
    return ", ".join(words)


def _words(node: MapNodeDocument) -> Iterator[str]:
    for memory in node.memory:
        name = "" if memory.type == "memory" else f"{memory.type} "
        if memory.total is None:
            yield f"{name or 'memory '}of unknown size"
        elif memory.allocated is not None and memory.total:
            free = size_text(memory.free or 0)
            yield f"{name}{free} of {size_text(memory.total)} free"
        elif memory.total:
            yield f"{name}{size_text(memory.total)}"
        elif not name:
            yield "no memory"


def segments(memory: MapMemoryDocument, length: int = BAR) -> tuple[int, int, int]:
    """Return how many characters of a bar are allocated, free and reserved.

    What is not nothing has one character at least, as far as there is room.
    """
    total = max(memory.total or 0, memory.reserved + (memory.allocated or 0), 1)
    allocated = _share(memory.allocated or 0, total, length)
    reserved = min(_share(memory.reserved, total, length), length - allocated)
    return allocated, length - allocated - reserved, reserved


def _share(size: int, total: int, length: int) -> int:
    return max(1, round(size * length / total)) if size else 0


def _bar(memory: MapMemoryDocument, *, ascii_only: bool) -> TextSpan:
    signs = "#.-" if ascii_only else "█░▒"
    counts = segments(memory)
    return TextSpan("".join(sign * count for sign, count in zip(signs, counts, strict=True)) + "  ")


def _huge_pages(node: MapNodeDocument) -> int:
    """Return the bytes of a node's memory that are huge pages, which have lines of their own."""
    return sum(memory.total or 0 for memory in node.memory if memory.type != MEMORY)


def _shares(memory: MapMemoryDocument, huge_pages: int) -> TextSpan:
    """Return the parts of a memory type in words; of memory that is reserved some is huge pages."""
    apart = min(huge_pages, memory.reserved)
    shares = [
        f"{size_text(memory.allocated or 0)} allocated",
        f"{size_text(memory.free or 0)} free",
        *([f"{size_text(memory.reserved - apart)} reserved"] if memory.reserved > apart else []),
        *([f"{size_text(apart)} in huge pages"] if apart else []),
    ]
    over = (memory.total or 0) - memory.reserved - (memory.allocated or 0) < 0
    text = f"{size_text(memory.total or 0)}: {', '.join(shares)}"
    return TextSpan(text, Tone.WARNING if over else Tone.PLAIN)


def nearest_text(node: MapNodeDocument, with_cpus: Mask) -> str:
    """Return which nodes with CPUs are nearest to one without: `nearest CPUs: node 0 (17)`."""
    rows = {int(other): distance for other, distance in node.distances.items()}
    known = {other: distance for other, distance in rows.items() if other in with_cpus}
    if not known:
        return ""
    least = min(known.values())
    nodes = Mask.from_ids(other for other, distance in known.items() if distance == least)
    return f"nearest CPUs: node{'s' if len(nodes) > 1 else ''} {nodes} (distance {least})"


def distance_lines(nodes: Sequence[MapNodeDocument]) -> Iterator[str]:
    """Yield one line for each row of the matrix, or for each group of nodes with equal rows."""
    rows = {
        node.id: {int(other): distance for other, distance in node.distances.items()}
        for node in nodes
    }
    return _matrix(rows) if len(rows) <= _MATRIX_NODES else _ranges(rows)


def _matrix(rows: Mapping[int, Mapping[int, int]]) -> Iterator[str]:
    values = [*rows, *(distance for row in rows.values() for distance in row.values())]
    width = max(len(str(value)) for value in values) + 1
    yield " " * (len("node ") + width) + "".join(f"{node:>{width}}" for node in rows)
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


def _range_line(local: int | None, others: Iterable[tuple[int, Mask]], nodes: Mask) -> str:
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
    if not members:
        return ()
    nearest = min(members)
    members[nearest] |= 1 << node
    return tuple((distance, Mask(members[distance])) for distance in sorted(members))


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
#: Work is placed by these, so each is named with its address; QAT is a processor, encryption, or
#: both, an NVMe drive is storage of its subclass.
_NAMED: Final = (
    "display",
    "accelerator",
    "network",
    "memory",
    "processor",
    "encryption",
    "NVMe",
    "InfiniBand",
)
#: What is called otherwise than its base class, by class and subclass.
_SUBCLASSES: Final[Mapping[str, str]] = {"0108": "NVMe", "0c06": "InfiniBand", "0207": "InfiniBand"}


def by_node(devices: Iterable[MapDeviceDocument]) -> dict[str, list[MapDeviceDocument]]:
    """Return the devices by the list of their nodes, "" for no known node."""
    found: dict[str, list[MapDeviceDocument]] = defaultdict(list)
    for device in devices:
        found[device.nodes].append(device)
    return dict(found)


def device_lines(devices: Sequence[MapDeviceDocument], marks: Marks) -> Iterator[Line]:
    """Yield the devices of the host in a line, and a line for each extended resource.

    Those that the kubelet beside the agent gives are marked.
    """
    hardware = [device for device in devices if device.kind != "resource"]
    if hardware:
        yield line(f"{'devices':<14}", ", ".join(_hardware(hardware)))
    offered: dict[str, list[MapDeviceDocument]] = defaultdict(list)
    for device in devices:
        if device.kind == "resource":
            whose = " (kubelet)" if device.kubelet else ""
            offered[f"{device.resource}{whose}"].append(device)
    for name, members in offered.items():
        yield line(f"{name}: ", ", ".join(_offered(device, marks) for device in members))


def elsewhere(
    devices: Mapping[str, Sequence[MapDeviceDocument]], nodes: Container[int], marks: Marks
) -> Iterator[tuple[str, Line]]:
    """Yield the lines of devices (`by_node`) that are near no single node of a host, with where."""
    for near, members in devices.items():
        if near.isdigit() and int(near) in nodes:
            continue
        for each in device_lines(members, marks):
            yield (f"nodes {near}" if near else "no node"), each


def device_word(device: MapDeviceDocument) -> str:
    """Return what a device of the host is: `network`, `NVMe`, `other`."""
    number = device.device_class.removeprefix("0x")
    return _SUBCLASSES.get(number[:4]) or _CLASSES.get(number[:2], "other")


def _hardware(devices: Sequence[MapDeviceDocument]) -> Iterator[str]:
    behind = {device.address for device in devices if device.kind == "net"}
    counts: Counter[str] = Counter()
    for device in devices:
        word = device_word(device)
        if device.kind == "net":
            yield f"{device.name} ({device.address})" if device.address else device.name
        elif device.address in behind:
            continue
        elif word in _NAMED:
            yield f"{word} {device.address}"
        else:
            counts[word] += 1
    yield from (f"{number} x {word}" for word, number in sorted(counts.items()))


def _offered(device: MapDeviceDocument, marks: Marks) -> str:
    state = "" if device.healthy else " unhealthy"
    if device.owner is None:
        return f"{device.name}{state}{f' ({device.pod})' if device.pod else ''}"
    uid = device.owner.uid
    label = marks.labels.get(uid) or marks.names.get(uid, uid)
    return f"{device.name}{state} ({label} {device.owner.container})"


#: The most pods with CPUs that are listed in a map that is not full.
_PODS: Final = 40


def pod_lines(document: MapDocument, marks: Marks, *, full: bool) -> Iterator[Line]:
    """Yield each pod that has CPUs with its containers, and how many pods have none."""
    focus = marks.focus
    width = max((len(label) for label in marks.labels.values()), default=1)
    listed = [pod for pod in document.pods if focus == pod.uid or (focus is None and pod.cpus)]
    shown = listed if full or focus is not None else listed[:_PODS]
    for pod in shown:
        yield from _pod(pod, marks, width)
    if len(listed) > len(shown):
        yield line(f"and {counted(len(listed) - len(shown), 'pod')} with CPUs more: map --full")
    others = 0 if focus is not None else len(document.pods) - len(listed)
    if others:
        yield line(f"{counted(others, 'pod')} in the shared pool alone")


def _pod(pod: MapPodDocument, marks: Marks, width: int) -> Iterator[Line]:
    label = marks.labels.get(pod.uid, ".")
    tone = marks.tones.get(pod.uid, Tone.PLAIN)
    cpus = f"CPUs {pod.cpus}" if pod.cpus else "in the shared pool"
    cpus += f", siblings {pod.idle_cpus} idle" if pod.idle_cpus else ""
    missing = f", {len(pod.not_found)} {pod.absence}" if pod.not_found else ""
    shared = Mask.parse(pod.not_exclusive)
    lost = TextSpan(f", not exclusive: {shared}", Tone.WARNING) if shared else ""
    name = TextSpan(full_name(pod), Tone.HEADING)
    yield line(TextSpan(f"{label:<{width}} ", tone), name, f"  {cpus}", lost, missing)
    longest = max((len(container.name) for container in pod.containers), default=0)
    for container in pod.containers:
        yield line(f"{' ' * (width + 1)}  {container.name:<{longest}}  {_place(container, shared)}")


def _place(container: MapContainerDocument, shared: Mask) -> str:
    mems = f", memory on node{'s' if _several(container.mems) else ''} {container.mems}"
    memory = mems if container.mems else ""
    if container.cpus is None:
        return f"the node's shared pool{memory}"
    if container.isolation == "container":
        until = ", until the next container starts" if container.kind == "init" else ""
        alone = shared.isdisjoint(Mask.parse(container.cpus))
        return f"CPUs {container.cpus} ({'' if alone else 'not '}exclusive{until}){memory}"
    return f"CPUs {container.cpus} (the pod's shared pool){memory}"


def _several(nodes: str) -> bool:
    return "," in nodes or "-" in nodes

"""The map as lines of text: the host, its parts with cores, memory and devices, then the pods.

In goes a `MapDocument`, out come lines of spans (`map_lines`). The parts are those of `parts_of`,
which the page draws, too. A large host is summarized unless the layout is full: its cores are
counted, and neighbours that differ only in their ids share a line (`folds_of`).
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.documents.map import CpuUse
from agent.pods.model import MEMORY
from agent.tools.map.cores import core_columns
from agent.tools.map.devices import by_node, device_lines, distant_lines
from agent.tools.map.distances import distance_lines
from agent.tools.map.marks import MEANINGS, NOT_THERE, marks_of
from agent.tools.map.memory import memory_classes, memory_lines, memory_text, nearest_text
from agent.tools.map.parts import MappedPart, cores_text, parts_of, runs_of
from agent.tools.map.pods import pod_lines
from agent.tools.map.spans import Line, TextSpan, Tone, indented, line, plain, wrapped
from agent.tools.map.words import counted, id_list, named_ids, plural, size_text
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.api.documents.map import MapDeviceDocument, MapDocument, MapNodeDocument


#: A host with more CPUs is summarized.
COLLAPSE_ABOVE: Final = 128
#: Equal neighbours that share a line at least, by kind. Two caches are read faster than their
#: summary; up to eight packages or nodes stay apart because a reader looks them up by id.
_SHORTEST_RUN: Final = {"package": 9, "die": 9, "node": 9, "L3": 3, "offline": 3}
#: Warnings that a map lists unless it is full.
_WARNINGS: Final = 12
_INDENT: Final = 2
#: Words for the marks of CPUs where cores are counted.
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
    """The form of a map."""

    #: Columns; None where the output is not a terminal: no line is wrapped then.
    width: int | None = None
    #: Nothing is summarized or left out.
    full: bool = False
    #: The uid of a pod: only the nodes that it uses are drawn, with their cores.
    focus: str | None = None
    ascii_only: bool = False


def map_lines(document: MapDocument, layout: MapLayout = MapLayout()) -> Iterator[Line]:  # noqa: B008  # frozen
    """Yield the lines of a map, as wide as the layout says."""
    for spans in _Picture(document, layout).lines():
        yield from (spans,) if layout.width is None else wrapped(spans, layout.width)


class Fold(Struct, frozen=True):
    """Equal outermost parts of a host that share a line: those from `start` up to `end`."""

    start: int
    end: int
    #: The line.
    text: str


def folds_of(document: MapDocument, parts: Sequence[MappedPart]) -> Iterator[Fold]:
    """Yield the outermost parts that share a line in a map that is not full.

    `parts` are those of `parts_of`.
    """
    picture, start = _Picture(document, MapLayout()), 0
    for run in picture.runs(parts):
        end = start + len(run)
        if picture.is_folded(run):
            yield Fold(start, end, plain(picture.folded_line(run)))
        start = end


class _Picture:
    def __init__(self, document: MapDocument, layout: MapLayout) -> None:
        self._document = document
        self._layout = layout
        self._marks = marks_of(document, layout.focus)
        self._nodes = {node.id: node for node in document.nodes}
        self._cordoned_nodes = frozenset(node.id for node in document.nodes if node.cordoned)
        self._has_tiers = len({node.tier for node in document.nodes} - {None}) > 1
        self._classes = memory_classes(document.nodes)
        self._devices = by_node(document.devices)
        focused = layout.focus is not None
        #: Whether cores are counted instead of drawn.
        self._counting = len(document.cpus) > COLLAPSE_ABOVE and not layout.full and not focused
        #: The nodes that are drawn; None for all.
        self._drawn_nodes = self._focused_nodes() if focused else None

    def lines(self) -> Iterator[Line]:
        document = self._document
        parts = parts_of(document)
        yield from headlines(document, parts)
        yield from self._part_lines(parts, 0)
        yield from self._memory_only_lines()
        for place, spans in distant_lines(self._devices, self._nodes, self._marks):
            yield line(TextSpan(f"{place}  ", Tone.HEADING), *spans)
        yield from self._set_lines()
        if document.policy is None:
            if len(document.nodes) > 1:
                yield line(TextSpan("distances", Tone.HEADING))
                yield from (line(f"  {row}") for row in distance_lines(document.nodes))
            return
        yield self._legend()
        yield from pod_lines(document, self._marks, full=self._layout.full)
        yield from self._warning_lines()

    def runs(self, parts: Sequence[MappedPart]) -> Sequence[Sequence[MappedPart]]:
        """Return parts in runs of neighbours that differ only in their ids."""
        return runs_of(parts, self._likeness) if self._counting else [(part,) for part in parts]

    def is_folded(self, run: Sequence[MappedPart]) -> bool:
        """Return whether a run is long enough to share a line."""
        return self._counting and len(run) >= _SHORTEST_RUN[run[0].kind]

    def folded_line(self, run: Sequence[MappedPart]) -> Line:
        """Return the line that the parts of a run share."""
        first = run[0]
        ids = Mask.from_ids(part.id for part in run if part.id is not None)
        cpus = Mask.from_ids(cpu for part in run for cpu in part.cpus)
        name = f"{len(run)} {plural(first.kind)} {id_list(ids, first.kind)}"
        nodes = set(_nodes_in(first))
        if nodes and nodes <= self._cordoned_nodes:
            name += " (cordoned)"
        return line(
            TextSpan(name, Tone.HEADING),
            f"  CPUs {id_list(cpus)}: each {', '.join(self._contents(first))}",
            *self._uses(first),
        )

    def _contents(self, part: MappedPart) -> Iterator[str]:
        """Yield what is inside of a part in words: memory, parts, extended resources, cores."""
        if part.kind == "node" and part.id in self._nodes:
            yield memory_text(self._nodes[part.id], self._classes)
        if (size := self._cache_bytes(part)) is not None:
            yield size_text(size)
        for kind, number in _kinds_inside(part).items():
            yield counted(number, kind)
        resources = Counter(
            device.resource
            for node in _nodes_in(part)
            for device in self._devices.get(str(node), ())
            if device.resource
        )
        for resource, number in resources.items():
            yield f"{number} {resource}"
        yield cores_text(part.all_cores())

    def _cache_bytes(self, part: MappedPart) -> int | None:
        """Return the size of a cache; None where it is not known, and for other parts."""
        return self._document.uncore_bytes.get(str(part.id)) if part.kind == "L3" else None

    def _part_lines(self, parts: Sequence[MappedPart], depth: int) -> Iterator[Line]:
        for run in self.runs(parts):
            if self.is_folded(run):
                yield indented(depth, self.folded_line(run))
                continue
            for part in run:
                if self._is_drawn(part):
                    yield from self._single_part_lines(part, depth)

    def _is_drawn(self, part: MappedPart) -> bool:
        nodes = self._drawn_nodes
        return nodes is None or any(
            cpu.node in nodes for core in part.all_cores() for cpu in core.threads
        )

    def _single_part_lines(self, part: MappedPart, depth: int) -> Iterator[Line]:
        """Yield a part with all inside. A child that is alone in it stands in the same line."""
        chain = [part]
        while len(chain[-1].children) == 1:
            chain.append(chain[-1].children[0])
        names = ", ".join(map(self._name, chain))
        last = chain[-1]
        counts: tuple[str | TextSpan, ...] = ()
        if self._counting and last.cores:
            counts = (f": {cores_text(last.cores)}", *self._uses(last))
        cpus = part.cpus if self._layout.full else id_list(part.cpus)
        yield indented(depth, line(TextSpan(names, Tone.HEADING), f"  CPUs {cpus}", *counts))
        inside = depth + _INDENT
        for member in chain:
            if member.kind == "node" and member.id in self._nodes:
                node = self._nodes[member.id]
                again = (line("memory and devices as above"),)
                for spans in self._node_lines(node) if member.first else again:
                    yield indented(inside, spans)
        yield from self._part_lines(last.children, inside)
        if last.cores and not self._counting:
            width = None if self._layout.width is None else self._layout.width - inside
            for spans in core_columns(last.cores, self._marks, width):
                yield indented(inside, spans)

    def _name(self, part: MappedPart) -> str:
        if part.kind == "offline":
            return "offline" if part.id is None else f"offline, node {part.id}"
        name = f"no {part.kind}" if part.id is None else f"{part.kind} {part.id}"
        if part.kind == "node" and part.id in self._cordoned_nodes:
            name += " (cordoned)"
        size = self._cache_bytes(part)
        return name if size is None else f"{name} ({size_text(size)})"

    def _node_lines(self, node: MapNodeDocument) -> Iterator[Line]:
        """Yield the memory and the devices of a node."""
        if self._has_tiers and node.tier is not None:
            yield line(f"{'memory tier':<14}", str(node.tier))
        if node.id in self._classes:
            yield line(f"{'memory class':<14}", self._classes[node.id])
        yield from memory_lines(node, ascii_only=self._layout.ascii_only)
        yield from device_lines(self._devices.get(str(node.id), ()), self._marks)

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
        """Yield how many CPUs of a part have which use; pods come first, by their labels."""
        if self._document.policy is None:
            return
        counts = Counter(self._marks.of(cpu) for core in part.all_cores() for cpu in core.threads)
        before = "; "
        for mark, number in sorted(counts.items(), key=lambda item: item[0].text in _USES):
            yield f"{before}{number} "
            yield TextSpan(_USES.get(mark.text, mark.text), mark.tone)
            before = ", "

    def _memory_only_lines(self) -> Iterator[Line]:
        """Yield the nodes without online CPUs; equal neighbours share a line on a large host."""
        with_cpus = Mask.from_ids(node.id for node in self._document.nodes if node.cpus)
        drawn = self._drawn_nodes
        nodes = [
            node
            for node in self._document.nodes
            if not node.cpus and (drawn is None or node.id in drawn)
        ]
        for text, members in groupby(nodes, lambda node: self._memory_only_text(node, with_cpus)):
            run = list(members)
            if self._counting and len(run) >= _SHORTEST_RUN["node"]:
                ids = Mask.from_ids(node.id for node in run)
                name = f"{len(run)} nodes {id_list(ids, 'node')}"
                yield line(TextSpan(name, Tone.HEADING), f"  no CPUs: each {text}")
                continue
            for node in run:
                nearest = nearest_text(node, with_cpus)
                words = ["no CPUs", nearest, "cordoned" if node.cordoned else ""]
                name = f"node {node.id}"
                yield line(TextSpan(name, Tone.HEADING), f"  {'; '.join(filter(None, words))}")
                for spans in self._node_lines(node):
                    yield indented(_INDENT, spans)

    def _memory_only_text(self, node: MapNodeDocument, with_cpus: Mask) -> str:
        cordoned = "cordoned" if node.cordoned else ""
        words = (memory_text(node, self._classes), nearest_text(node, with_cpus), cordoned)
        return ", ".join(filter(None, words))

    def _set_lines(self) -> Iterator[Line]:
        """Yield the isolated CPUs, those without a tick, and what is cordoned."""
        document = self._document
        isolated = Mask.from_ids(cpu.id for cpu in document.cpus if cpu.isolated)
        name = "isolated (*)" if document.policy is None else "isolated"
        for heading, cpus in ((name, str(isolated)), ("without a tick", document.nohz_full)):
            if cpus:
                yield line(TextSpan(heading, Tone.HEADING), f"  CPUs {cpus}")
        nodes = Mask.from_ids(self._cordoned_nodes)
        cordoned = Mask.from_ids(cpu.id for cpu in document.cpus if cpu.cordoned)
        allocated = Mask.from_ids(cpu.id for cpu in document.cpus if cpu.cordoned and cpu.owners)
        words = [named_ids("node", nodes)] if nodes else []
        words += [f"CPUs {cordoned}"] if cordoned else []
        words += [f"still allocated {allocated}"] if allocated else []
        if words:
            yield line(TextSpan("cordoned", Tone.HEADING), f"  {', '.join(words)}")

    def _legend(self) -> Line:
        signs = {self._marks.of(cpu).text for cpu in self._document.cpus} & MEANINGS.keys()
        if any(warning.reason == "SharedCore" for warning in self._document.warnings):
            signs.add("!")
        words = ["A, B: one container's, a, b: the pod's"] if self._marks.labels else []
        words += [f"{sign} {MEANINGS[sign]}" for sign in MEANINGS if sign in signs]
        return line(TextSpan("  ".join(words), Tone.FAINT))

    def _warning_lines(self) -> Iterator[Line]:
        focus = self._layout.focus
        warnings = [
            warning for warning in self._document.warnings if focus is None or focus in warning.uids
        ]
        listed = warnings if self._layout.full else warnings[:_WARNINGS]
        for warning in listed:
            yield line(TextSpan("! ", Tone.WARNING), warning.message)
        more = len(warnings) - len(listed)
        more += self._document.more_warnings if focus is None else 0
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


def headlines(document: MapDocument, parts: Sequence[MappedPart]) -> Iterator[Line]:
    """Yield how many of each part a host has, counted from the ids; then the policies, if any."""
    cores = [core for part in parts if part.kind != "offline" for core in part.all_cores()]
    online = [cpu for core in cores for cpu in core.threads]
    packages = {cpu.package for cpu in online} - {None}
    dies = {cpu.die for cpu in online} - {None}
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
        allocated = sum(bool(cpu.owners) and cpu.use not in NOT_THERE for cpu in online)
        usable = allocated + sum(cpu.use in (CpuUse.SHARED, CpuUse.FREE) for cpu in online)
        yield line(
            f"CPU {policy.cpu_manager_policy}, memory {policy.memory_manager_policy}, topology "
            f"{policy.topology_manager_policy} (scope {policy.topology_manager_scope}); "
            f"{allocated} of {usable} CPUs allocated, {counted(len(document.pods), 'pod')}"
        )


def _device_shape(device: MapDeviceDocument) -> object:
    """Return a value that is equal for free devices of one resource, and for no others."""
    free = bool(device.resource) and device.owner is None and not device.pod
    return device.kind, device.resource, device.healthy, device.kubelet, "" if free else device.name


def _memory_sum(document: MapDocument) -> str:
    totals = [
        memory.total for node in document.nodes for memory in node.memory if memory.type == MEMORY
    ]
    at_least = "at least " if None in totals else ""
    return f"{at_least}{size_text(sum(total or 0 for total in totals))} of memory"


def _kinds_inside(part: MappedPart) -> Counter[str]:
    """Return how many parts of each kind are inside of a part."""
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
    """Yield the nodes in a part, itself included, that are drawn here for the first time."""
    if part.kind == "node" and part.id is not None and part.first:
        yield part.id
    for child in part.children:
        yield from _nodes_in(child)

"""A map as lines of text, for terminals and pipes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.host.map import CpuUse
from agent.pods.model import MEMORY
from agent.tools.map.columns import core_columns
from agent.tools.map.devices import by_node, device_lines, elsewhere
from agent.tools.map.lines import Line, TextSpan, Tone, broken, indented, line, plain
from agent.tools.map.marks import MEANINGS, Marks, marks_of
from agent.tools.map.memory import (
    distance_lines,
    memory_lines,
    memory_text,
    nearest_text,
    size_text,
)
from agent.tools.map.parts import MappedPart, alike, cores_text, counted, parts_of, plural
from agent.tools.map.pods import pod_lines
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.api.host.map import MapDeviceDocument, MapDocument, MapNodeDocument

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
        self._tiered = len({node.tier for node in document.nodes} - {None}) > 1
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
        yield from memory_lines(node, ascii_only=self._layout.ascii_only)
        yield from device_lines(self._devices.get(str(node.id), ()), self._marks)

    def folded(self, run: Sequence[MappedPart]) -> Line:
        """Return the line of a run."""
        first = run[0]
        ids = Mask.from_ids(part.id for part in run if part.id is not None)
        cpus = Mask.from_ids(cpu for part in run for cpu in part.cpus)
        name = f"{len(run)} {plural(first.kind)} {id_list(ids, first.kind)}"
        node = self._nodes.get(first.id) if first.kind == "node" and first.id is not None else None
        counts = [] if node is None else [memory_text(node)]
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
            [(node.tier, *map(plain, memory_lines(node))) for node in nodes],
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
            ", ".join(filter(None, (memory_text(node), nearest_text(node, with_cpus))))
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
        nodes = Mask.from_ids(node.id for node in self._document.nodes if node.cordoned)
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
        taken = sum(bool(cpu.owners) for cpu in online)
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

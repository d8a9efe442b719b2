"""A map as one self-contained SVG picture, in light and dark."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.sax.saxutils import escape

from agent.api.map import CpuUse, is_shared
from agent.pods.model import MEMORY
from agent.tools.map.parts import (
    MEANINGS,
    NOT_THERE,
    SHARED_CORE,
    TWICE,
    MappedCore,
    MappedPart,
    Marks,
    counted,
    marks_of,
    parts_of,
    plain,
    printable,
)
from agent.tools.map.text import (
    by_node,
    device_lines,
    elsewhere,
    folds_of,
    headlines,
    id_list,
    memory_classes,
    memory_text,
    pod_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agent.api.map import MapCpuDocument, MapDocument, MapMemoryDocument, MapNodeDocument

_CELL: Final = 22
_GAP: Final = 2
_STEP: Final = _CELL + _GAP
_TEXT: Final = 16
_PAD: Final = 10
#: The width of a character of the font, at most.
_LETTER: Final = 7.5
#: The most cores in one row, and the width that parts beside each other fill.
_CORES: Final = 32
_WIDTH: Final = 1500
#: The same above so many CPUs.
_MANY: Final = 512
_WIDE: Final = 3300
#: The narrowest part: its texts are broken to its width.
_NARROW: Final = 470
_BAR: Final = 240
#: The most warnings of a reason.
_WARNINGS: Final = 6
#: Fill colours of pods, in turn, as on the page; white letters are legible on each, and none is
#: near the red of warnings.
COLOURS: Final = (
    "#1f6fb2",
    "#a85400",
    "#2e7d32",
    "#8e3a9d",
    "#b83280",
    "#00707a",
    "#6b5b00",
    "#5147c2",
)
#: What distinguishes further pods of the same colours: a corner or an edge, as points of a cell.
_PATTERNS: Final = ("", "0,0 9,0 0,9", "0,22 22,22 22,17 0,17", "22,22 12,22 22,12")
_STYLE: Final = """
svg { --paper: #ffffff; --ink: #1b1b1b; --line: #9a9a9a; --shared: #e6e6e6; --reserved: #bdbdbd;
  --warning: #b3261e; --cordon: #8a4b00; font: 12px ui-monospace, monospace;
  background: var(--paper) }
@media (prefers-color-scheme: dark) { svg { --paper: #16181c; --ink: #e6e6e6; --line: #6b6b6b;
  --shared: #2c3038; --reserved: #4a4f59; --warning: #ff8f86; --cordon: #f2b45f } }
text { fill: var(--ink) }
.heading { font-weight: bold }
.warning { fill: var(--warning) }
.part { fill: none; stroke: var(--line) }
.shared, .online, .free { fill: var(--shared) }
.reserved { fill: var(--reserved) }
.cordoned { stroke: var(--cordon); stroke-width: 2; stroke-dasharray: 4 2 }
rect.cordoned:not(.exclusive, .pod) { fill: var(--paper) }
.offline { fill: none; stroke: var(--line); stroke-dasharray: 2 2 }
.withheld { fill: none; stroke: var(--line) }
.isolated { stroke: var(--ink); stroke-dasharray: 3 2 }
.mixed, .twice { stroke: var(--warning); stroke-width: 2 }
.pod { fill-opacity: 0.18 }
.allocated { fill: #1f6fb2 }
.pattern { fill: #ffffff; fill-opacity: 0.55; pointer-events: none }
.mark { text-anchor: middle; font-size: 10px; pointer-events: none }
.owned { fill: #ffffff }
.faint { opacity: 0.35 }
"""


class _Block(NamedTuple):
    """A piece of the picture: its size, and its elements once its place (x, y) is known."""

    width: float
    height: float
    draw: Callable[[float, float], Iterator[str]]


def svg_of(document: MapDocument, focus: str | None = None, *, full: bool = False) -> str:
    """Return a picture of a map: an element with a title for each CPU, memory, pods and warnings.

    `focus` is the uid of a pod; all others are faint. Above 128 CPUs equal parts share a line,
    unless `full`.
    """
    block = _Drawing(document, focus, full=full).whole()
    width, height = block.width + 2 * _PAD, block.height + 2 * _PAD
    lines = (
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:g}" '
            f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">'
        ),
        f"<title>{_xml('CPUs, memory and pods of ' + (document.hostname or 'the host'))}</title>",
        f"<style>{_STYLE}</style>",
        *block.draw(_PAD, _PAD),
        "</svg>",
    )
    return "\n".join(lines)


class _Drawing:
    """The blocks of one map."""

    def __init__(self, document: MapDocument, focus: str | None, *, full: bool) -> None:
        self._document = document
        self._focus = focus
        self._full = full
        self._most = _WIDE if len(document.cpus) > _MANY else _WIDTH
        self._marks: Marks = marks_of(document)
        self._places = {uid: place for place, uid in enumerate(self._marks.labels)}
        self._nodes = {node.id: node for node in document.nodes}
        self._classes = memory_classes(document.nodes)
        self._devices = by_node(document.devices)

    def whole(self) -> _Block:
        """Return the picture: host, legend, parts beside each other, pods and warnings."""
        document, parts = self._document, parts_of(self._document)
        folds = () if self._full or self._focus else folds_of(document, parts)
        folded = {fold.start: fold for fold in folds}
        blocks: list[_Block] = []
        place = 0
        while place < len(parts):
            fold = folded.get(place)
            if fold is None:
                blocks.append(self._part(parts[place]))
                place += 1
            else:
                blocks.append(_boxed(_texts([fold.text], 2 * _NARROW)))
                place = fold.end
        for node in document.nodes:
            if not node.cpus:
                title = _texts([f"node {node.id}, no CPUs"], _NARROW, "heading")
                blocks.append(_boxed(_stacked([title, self._belongings(node, _NARROW)])))
        host = _flowed(blocks, self._most)
        width = max(host.width, 2 * _NARROW)
        texts = [plain(line) for line in headlines(document, parts)]
        apart = elsewhere(self._devices, self._nodes, self._marks)
        pods = pod_lines(document, self._marks, full=True)
        return _stacked(
            [
                *([_texts([_host_line(document)], width, "heading")] if document.hostname else []),
                _texts(texts, width),
                _flowed(list(self._legend()), width),
                host,
                _texts([f"{name}  {plain(line)}" for name, line in apart], width),
                _flowed([_texts(pod, _NARROW) for pod in _paragraphs(map(plain, pods))], width),
                *self._warnings(width),
            ]
        )

    def _part(self, part: MappedPart) -> _Block:
        """Return a part; what is alone in another with the same CPUs shares its box and title."""
        chain = [part]
        while len(chain[-1].children) == 1:
            chain.append(chain[-1].children[0])
        names = ", ".join(_part_name(each) for each in chain)
        last = chain[-1]
        if last.children:
            body = [_flowed([self._part(child) for child in last.children], self._most - 4 * _PAD)]
        else:
            body = [self._cores(cores) for cores in _rows(last.cores)]
        width = max(_NARROW, *(block.width for block in body))
        nodes = [
            self._nodes[each.id]
            for each in chain
            if each.kind == "node" and each.id is not None and each.first
        ]
        cordoned = " (cordoned)" if any(node.cordoned for node in nodes) else ""
        title = f"{names}{cordoned}  CPUs {id_list(part.cpus)}"
        owned = [self._belongings(node, width) for node in nodes]
        return _boxed(_stacked([_texts([title], width, "heading"), *owned, *body]))

    def _belongings(self, node: MapNodeDocument, width: float) -> _Block:
        bars = [
            _bar(memory) for memory in node.memory if memory.total and memory.allocated is not None
        ]
        devices = device_lines(self._devices.get(str(node.id), ()), self._marks)
        return _stacked(
            [
                _texts([f"memory: {memory_text(node, self._classes)}"], width),
                *bars,
                _texts([plain(line) for line in devices], width),
            ]
        )

    def _cores(self, cores: Sequence[MappedCore]) -> _Block:
        def draw(x: float, y: float) -> Iterator[str]:
            for column, core in enumerate(cores):
                mixed = is_shared(core.threads)
                for row, cpu in enumerate(core.threads):
                    yield from self._cpu(cpu, x + column * _STEP, y + row * _STEP, mixed=mixed)

        rows = max(len(core.threads) for core in cores)
        return _Block(len(cores) * _STEP - _GAP, rows * _STEP, draw)

    def _cpu(self, cpu: MapCpuDocument, x: float, y: float, *, mixed: bool) -> Iterator[str]:
        owned = bool(cpu.owners) and cpu.use not in NOT_THERE
        marked = (
            ("isolated", cpu.isolated),
            ("mixed", mixed),
            ("cordoned", cpu.cordoned),
            ("twice", owned and len(cpu.owners) > 1),
            ("faint", self._focus and all(owner.uid != self._focus for owner in cpu.owners)),
        )
        classes = dict.fromkeys(("cpu", str(cpu.use), *(name for name, holds in marked if holds)))
        place = self._places[cpu.owners[0].uid] if owned else None
        mark = self._marks.of(cpu).text if owned else str(cpu.id)
        attributes = f'class="{" ".join(classes)}" data-cpu="{cpu.id}"'
        yield from _cell(attributes, mark, x, y, self._title(cpu), place=place)

    def _title(self, cpu: MapCpuDocument) -> str:
        words = [f"CPU {cpu.id}", str(cpu.use)]
        names = self._marks.names
        words += [
            names[owner.uid] + (f" container {owner.container}" if owner.container else "")
            for owner in cpu.owners
        ]
        words += ["isolated"] if cpu.isolated else []
        words += ["cordoned"] if cpu.cordoned and cpu.use is not CpuUse.CORDONED else []
        return ", ".join(words)

    def _legend(self) -> Iterator[_Block]:
        """Yield what the cells on this map mean, each with a cell."""
        uses = {cpu.use for cpu in self._document.cpus}
        cpus = self._document.cpus
        entries = (
            ("exclusive", "A", "one container's", CpuUse.EXCLUSIVE in uses),
            ("pod", "a", "the pod's", CpuUse.POD in uses),
            ("shared", "7", MEANINGS["."], CpuUse.SHARED in uses),
            ("reserved", "7", "reserved", CpuUse.RESERVED in uses),
            ("cordoned", "7", "cordoned", any(cpu.cordoned for cpu in cpus)),
            ("offline", "7", "offline", CpuUse.OFFLINE in uses),
            ("withheld", "7", MEANINGS["-"], CpuUse.WITHHELD in uses),
            ("shared isolated", "7", "isolated", any(cpu.isolated for cpu in cpus)),
            ("shared mixed", "7", MEANINGS[SHARED_CORE], self._has("SharedCore")),
            ("exclusive twice", TWICE, MEANINGS[TWICE], any(len(cpu.owners) > 1 for cpu in cpus)),
        )
        for classes, mark, meaning, applies in entries:
            if applies:
                place = 0 if mark.isalpha() or mark == TWICE else None
                yield _entry(f'class="{classes}"', mark, meaning, place)
        if len(self._places) > len(COLOURS):
            said = "a corner or an edge: another pod of the same colour"
            yield _entry('class="exclusive"', "K", said, len(COLOURS))

    def _has(self, reason: str) -> bool:
        return any(warning.reason == reason for warning in self._document.warnings)

    def _warnings(self, width: float) -> Iterator[_Block]:
        """Yield the warnings by their reason, the first of each."""
        by_reason: dict[str, list[str]] = defaultdict(list)
        for warning in self._document.warnings:
            by_reason[warning.reason].append(warning.message)
        for reason, messages in by_reason.items():
            yield _texts([f"! {reason}: {len(messages)}"], width, "warning")
            yield _texts([f"  {message}" for message in messages[:_WARNINGS]], width)
            if len(messages) > _WARNINGS:
                yield _texts([f"  and {len(messages) - _WARNINGS} more"], width)
        if self._document.more_warnings:
            more = counted(self._document.more_warnings, "warning")
            yield _texts([f"! and {more} more"], width, "warning")


def _rows(cores: Sequence[MappedCore]) -> Iterator[Sequence[MappedCore]]:
    for start in range(0, len(cores), _CORES):
        yield cores[start : start + _CORES]


def _host_line(document: MapDocument) -> str:
    time = datetime.fromtimestamp(document.time, UTC)
    return f"{document.hostname}, {time:%Y-%m-%d %H:%M:%SZ}"


def _part_name(part: MappedPart) -> str:
    if part.id is None:
        return part.kind if part.kind == "offline" else f"no {part.kind}"
    return f"offline, node {part.id}" if part.kind == "offline" else f"{part.kind} {part.id}"


def _entry(attributes: str, mark: str, meaning: str, place: int | None) -> _Block:
    def draw(x: float, y: float) -> Iterator[str]:
        yield from _cell(attributes, mark, x, y, "", place=place)
        yield _text(x + _CELL + 6, y + 15, meaning, "")

    return _Block(_CELL + 6 + len(meaning) * _LETTER, _CELL, draw)


def _cell(
    attributes: str, mark: str, x: float, y: float, title: str, *, place: int | None
) -> Iterator[str]:
    """Yield the square of a CPU with its mark; `place` is that of its pod in the colours."""
    colour = None if place is None else COLOURS[place % len(COLOURS)]
    inside = mark[:1].islower() and colour is not None
    edge = f"; stroke: {colour}" if inside else ""
    fill = "" if colour is None else f' style="fill: {colour}{edge}"'
    said = f"<title>{_xml(title)}</title>" if title else ""
    yield (
        f'<rect {attributes} x="{x:g}" y="{y:g}" width="{_CELL}" height="{_CELL}" '
        f'rx="2"{fill}>{said}</rect>'
    )
    pattern = "" if place is None else _PATTERNS[place // len(COLOURS) % len(_PATTERNS)]
    if pattern:
        at = f'transform="translate({x:g} {y:g})"'
        yield f'<polygon class="pattern" {at} points="{pattern}"/>'
    kind = "mark owned" if colour is not None and not inside else "mark"
    yield f'<text class="{kind}" x="{x + _CELL // 2:g}" y="{y + 15:g}">{_xml(mark)}</text>'


def _bar(memory: MapMemoryDocument) -> _Block:
    """Return what is allocated, free and reserved of a memory type as one bar."""
    sizes = (
        ("allocated", memory.allocated or 0),
        ("free", memory.free or 0),
        ("reserved", memory.reserved),
    )
    total = max(memory.total or 0, sum(size for _, size in sizes), 1)

    def draw(x: float, y: float) -> Iterator[str]:
        for kind, size in sizes:
            length = size * _BAR / total
            if size:
                pages = " or huge pages" if kind == "reserved" and memory.type == MEMORY else ""
                title = _xml(f"{memory.type}: {size} bytes {kind}{pages}")
                yield (
                    f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" width="{length:.1f}" '
                    f'height="8"><title>{title}</title></rect>'
                )
            x += length

    return _Block(_BAR, 12, draw)


def _texts(lines: Iterable[str], width: float, kind: str = "") -> _Block:
    """Return lines of text, broken to a width."""
    rows: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        rows += textwrap.wrap(
            printable(line),
            int(width / _LETTER),
            subsequent_indent=indent,
            break_on_hyphens=False,
            replace_whitespace=False,
        )

    def draw(x: float, y: float) -> Iterator[str]:
        for place, row in enumerate(rows):
            yield _text(x, y + place * _TEXT + 12, row, kind)

    longest = max((len(row) for row in rows), default=0)
    return _Block(longest * _LETTER, len(rows) * _TEXT, draw)


def _text(x: float, y: float, text: str, kind: str) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:g}" y="{y:g}" xml:space="preserve">{_xml(text)}</text>'


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lines in groups that begin with one that is not indented."""
    group: list[str] = []
    for line in lines:
        if group and not line.startswith(" "):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _stacked(blocks: Iterable[_Block]) -> _Block:
    """Return blocks one below the other."""
    shown = [block for block in blocks if block.height]

    def draw(x: float, y: float) -> Iterator[str]:
        for block in shown:
            yield from block.draw(x, y)
            y += block.height + _PAD // 2

    height = sum(block.height + _PAD // 2 for block in shown)
    return _Block(max((block.width for block in shown), default=0), height, draw)


def _flowed(blocks: Sequence[_Block], most: float) -> _Block:
    """Return blocks beside each other, in rows as wide as `most` allows."""
    rows: list[list[_Block]] = [[]]
    for block in blocks:
        used = sum(each.width + _PAD for each in rows[-1])
        if rows[-1] and used + block.width > most:
            rows.append([])
        rows[-1].append(block)

    def draw_row(row: Sequence[_Block], x: float, y: float) -> Iterator[str]:
        for block in row:
            yield from block.draw(x, y)
            x += block.width + _PAD

    return _stacked(
        _Block(
            sum(block.width + _PAD for block in row) - _PAD,
            max(block.height for block in row),
            partial(draw_row, row),
        )
        for row in rows
        if row
    )


def _boxed(inside: _Block) -> _Block:
    """Return a block with a line around."""
    width, height = inside.width + 2 * _PAD, inside.height + 2 * _PAD - _PAD // 2

    def draw(x: float, y: float) -> Iterator[str]:
        yield (
            f'<rect class="part" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'
        )
        yield from inside.draw(x + _PAD, y + _PAD)

    return _Block(width, height, draw)


def _xml(text: str) -> str:
    """Return a text as XML has it, which knows no control characters."""
    return escape(printable(text))

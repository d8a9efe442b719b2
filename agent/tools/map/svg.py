"""A map as one self-contained SVG picture, in light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from agent.api.host.map import CpuUse
from agent.api.host.mapped import is_shared
from agent.tools.map.devices import by_node, device_lines, elsewhere
from agent.tools.map.lines import plain, printable
from agent.tools.map.marks import Marks, marks_of
from agent.tools.map.memory import memory_text
from agent.tools.map.parts import MappedCore, MappedPart, parts_of
from agent.tools.map.pods import pod_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.host.map import MapCpuDocument, MapDocument, MapMemoryDocument, MapNodeDocument

_CELL: Final = 22
_GAP: Final = 2
_TEXT: Final = 16
_PAD: Final = 10
#: The most cores in one row.
_CORES: Final = 32
_BAR: Final = 240
#: Fill colours of pods, in turn; white letters are legible on each.
_COLOURS: Final = (
    "#1f6fb2",
    "#b25a00",
    "#2e7d32",
    "#8e3a9d",
    "#b3261e",
    "#00707a",
    "#6b5b00",
    "#5147c2",
)
_STYLE: Final = """
svg { --paper: #ffffff; --ink: #1b1b1b; --line: #9a9a9a; --shared: #e6e6e6; --reserved: #bdbdbd;
  --warning: #c62828; font: 12px ui-monospace, monospace; background: var(--paper) }
@media (prefers-color-scheme: dark) { svg { --paper: #16181c; --ink: #e6e6e6; --line: #6b6b6b;
  --shared: #2c3038; --reserved: #4a4f59; --warning: #ff6b60 } }
text { fill: var(--ink) }
.heading { font-weight: bold }
.warning { fill: var(--warning) }
.part { fill: none; stroke: var(--line) }
.shared, .online, .cordoned, .free { fill: var(--shared) }
.reserved { fill: var(--reserved) }
.cordoned { stroke: var(--warning); stroke-dasharray: 4 2 }
.offline { fill: none; stroke: var(--line); stroke-dasharray: 2 2 }
.isolated { stroke: var(--ink); stroke-dasharray: 3 2 }
.mixed { stroke: var(--warning); stroke-width: 2 }
.pod { opacity: 0.55 }
.allocated { fill: #1f6fb2 }
.mark { text-anchor: middle; font-size: 10px; pointer-events: none }
.owned { fill: #ffffff }
.faint { opacity: 0.35 }
"""


def svg_of(document: MapDocument, focus: str | None = None) -> str:
    """Return a picture of a map: an element with a title for each CPU, memory, pods and warnings.

    `focus` is the uid of a pod; all others are faint.
    """
    return _Drawing(document, focus).text()


class _Drawing:
    """Elements from top to bottom; `_y` is where the next goes, `_width` what they need."""

    def __init__(self, document: MapDocument, focus: str | None) -> None:
        self._document = document
        self._focus = focus
        self._marks: Marks = marks_of(document)
        self._colours = {
            uid: _COLOURS[place % len(_COLOURS)] for place, uid in enumerate(self._marks.labels)
        }
        self._nodes = {node.id: node for node in document.nodes}
        self._devices = by_node(document.devices)
        self._elements: list[str] = []
        self._y = _PAD
        self._width = 40 * _CELL

    def text(self) -> str:
        self._write(_PAD, f"{len(self._document.cpus)} CPUs", "heading")
        for part in parts_of(self._document):
            self._part(part, _PAD)
        for node in self._document.nodes:
            if not node.cpus:
                self._write(_PAD, f"node {node.id}, no CPUs", "heading")
                self._belongings(node, 2 * _PAD)
        for name, line in elsewhere(self._devices, self._nodes, self._marks):
            self._write(_PAD, f"{name}  {plain(line)}")
        for line in pod_lines(self._document, self._marks, full=True):
            self._write(_PAD, plain(line))
        for warning in self._document.warnings:
            self._write(_PAD, f"! {warning.message}", "warning")
        return "\n".join(self._whole())

    def _whole(self) -> Iterator[str]:
        width, height = self._width + _PAD, self._y + _PAD
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">'
        )
        yield "<title>CPUs, memory and pods of the host</title>"
        yield f"<style>{_STYLE}</style>"
        yield from self._elements
        yield "</svg>"

    def _part(self, part: MappedPart, x: int) -> None:
        top = self._y
        name = f"{part.kind} {'' if part.id is None else part.id}".rstrip()
        if part.id is None and part.kind != "offline":
            name = f"no {part.kind}"
        self._write(x + _PAD // 2, f"{name}  CPUs {part.cpus}", "heading")
        node = self._nodes.get(part.id) if part.kind == "node" and part.id is not None else None
        if node is not None and part.first:
            self._belongings(node, x + _PAD // 2)
        for child in part.children:
            self._part(child, x + _PAD)
        for start in range(0, len(part.cores), _CORES):
            self._cores(part.cores[start : start + _CORES], x + _PAD // 2)
        self._y += _PAD // 2
        self._elements.append(
            f'<rect class="part" x="{x}" y="{top}" width="{self._width - 2 * x + _PAD}" '
            f'height="{self._y - top}" rx="3"/>'
        )
        self._y += _PAD // 2

    def _belongings(self, node: MapNodeDocument, x: int) -> None:
        self._write(x, f"memory: {memory_text(node)}")
        for memory in node.memory:
            if memory.total and memory.allocated is not None:
                self._bar(memory, x)
        for line in device_lines(self._devices.get(str(node.id), ()), self._marks):
            self._write(x, plain(line))

    def _bar(self, memory: MapMemoryDocument, x: int) -> None:
        """Draw what is allocated, free and reserved of a memory type as one bar."""
        allocated, free, reserved = memory.allocated or 0, memory.free or 0, memory.reserved
        total = max(memory.total or 0, allocated + free + reserved, 1)
        place = 0.0
        for kind, size in (("allocated", allocated), ("free", free), ("reserved", reserved)):
            length = size * _BAR / total
            if size:
                title = f"{memory.type}: {size} bytes {kind}"
                self._elements.append(
                    f'<rect class="{kind}" x="{x + place:.1f}" y="{self._y}" '
                    f'width="{length:.1f}" height="8"><title>{_xml(title)}</title></rect>'
                )
            place += length
        self._y += 12

    def _cores(self, cores: tuple[MappedCore, ...], x: int) -> None:
        for column, core in enumerate(cores):
            mixed = is_shared(core.threads)
            for row, cpu in enumerate(core.threads):
                left, top = x + column * (_CELL + _GAP), self._y + row * (_CELL + _GAP)
                self._cpu(cpu, left, top, mixed=mixed)
        self._width = max(self._width, x + len(cores) * (_CELL + _GAP) + 4 * _PAD)
        self._y += max(len(core.threads) for core in cores) * (_CELL + _GAP) + _GAP

    def _cpu(self, cpu: MapCpuDocument, x: int, y: int, *, mixed: bool) -> None:
        owned = bool(cpu.owners) and cpu.use is not CpuUse.OFFLINE
        classes = ["cpu", str(cpu.use)]
        marked = (("isolated", cpu.isolated), ("mixed", mixed), ("cordoned", cpu.cordoned))
        classes += [name for name, holds in marked if holds and name not in classes]
        if self._focus is not None and all(owner.uid != self._focus for owner in cpu.owners):
            classes.append("faint")
        fill = f' style="fill: {self._colours[cpu.owners[0].uid]}"' if owned else ""
        self._elements.append(
            f'<rect class="{" ".join(classes)}" data-cpu="{cpu.id}" x="{x}" y="{y}" '
            f'width="{_CELL}" height="{_CELL}" rx="2"{fill}>'
            f"<title>{_xml(self._title(cpu))}</title></rect>"
        )
        mark = self._marks.of(cpu).text if owned else str(cpu.id)
        kind = "mark owned" if owned else "mark"
        self._elements.append(
            f'<text class="{kind}" x="{x + _CELL // 2}" y="{y + 15}">{_xml(mark)}</text>'
        )

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

    def _write(self, x: int, text: str, kind: str = "") -> None:
        self._y += _TEXT
        attribute = f' class="{kind}"' if kind else ""
        self._elements.append(
            f'<text{attribute} x="{x}" y="{self._y - 4}" xml:space="preserve">{_xml(text)}</text>'
        )
        self._width = max(self._width, x + 8 * len(text) + _PAD)


def _xml(text: str) -> str:
    """Return a text as XML has it, which knows no control characters."""
    return escape(printable(text))

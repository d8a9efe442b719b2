"""Memory of nodes: sizes, bars and distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import MEMORY
from agent.tools.map.lines import Line, TextSpan, Tone, line
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.api.host.map import MapMemoryDocument, MapNodeDocument

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


def memory_text(node: MapNodeDocument) -> str:
    """Return the memory of a node in a few words: `16 GiB, hugepages-2Mi 1 GiB`, `no memory`."""
    return ", ".join(_words(node))


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

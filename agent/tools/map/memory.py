"""The memory of nodes in words and bars: types, classes, what is allocated and free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import MEMORY
from agent.tools.map.spans import Line, TextSpan, Tone, line
from agent.tools.map.words import named_ids, size_text
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.api.documents.map import MapMemoryDocument, MapNodeDocument

#: The length of a bar, in characters.
BAR: Final = 16


def memory_lines(node: MapNodeDocument, *, ascii_only: bool = False) -> Iterator[Line]:
    """Yield a line for each memory type of a node, with a bar where allocations are known."""
    for memory in node.memory:
        if memory.total is None:
            yield line(f"{memory.type:<14}", "size unknown")
        elif memory.allocated is not None and memory.total:
            shares = _shares(memory, _huge_pages(node) if memory.type == MEMORY else 0)
            yield line(f"{memory.type:<14}", _bar(memory, ascii_only=ascii_only), shares)
        elif memory.total or memory.type == "memory":
            yield line(f"{memory.type:<14}", size_text(memory.total) if memory.total else "none")


def memory_classes(nodes: Sequence[MapNodeDocument]) -> Mapping[int, str]:
    """Return the class of each node's memory, by id; empty where all nodes have one class."""
    if len({node.memory_class for node in nodes}) <= 1:
        return {}
    with_memory = (node for node in nodes if any(memory.total for memory in node.memory))
    return {node.id: node.memory_class or "unknown" for node in with_memory}


def memory_text(node: MapNodeDocument, classes: Mapping[int, str]) -> str:
    """Return the memory of a node in a few words: `16 GiB, class hbm`, `no memory`."""
    words = list(_parts(node))
    if node.id in classes:
        words.append(f"class {classes[node.id]}")
    return ", ".join(words)


def segments(memory: MapMemoryDocument, length: int = BAR) -> tuple[int, int, int]:
    """Return how many characters of a bar are allocated, free and reserved.

    Allocated bytes have at least one character, and so have reserved bytes if the bar has room.
    """
    total = max(memory.total or 0, memory.reserved + (memory.allocated or 0), 1)
    allocated = _share(memory.allocated or 0, total, length)
    reserved = min(_share(memory.reserved, total, length), length - allocated)
    return allocated, length - allocated - reserved, reserved


def nearest_text(node: MapNodeDocument, with_cpus: Mask) -> str:
    """Return the nodes with CPUs nearest to a node: `nearest CPUs: node 0 (distance 17)`."""
    distances = {
        int(other): distance
        for other, distance in node.distances.items()
        if int(other) in with_cpus
    }
    if not distances:
        return ""
    least = min(distances.values())
    nearest = Mask.from_ids(other for other, distance in distances.items() if distance == least)
    return f"nearest CPUs: {named_ids('node', nearest)} (distance {least})"


def _parts(node: MapNodeDocument) -> Iterator[str]:
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


def _share(size: int, total: int, length: int) -> int:
    return max(1, round(size * length / total)) if size else 0


def _bar(memory: MapMemoryDocument, *, ascii_only: bool) -> TextSpan:
    signs = "#.-" if ascii_only else "█░▒"
    counts = segments(memory)
    return TextSpan("".join(sign * count for sign, count in zip(signs, counts, strict=True)) + "  ")


def _huge_pages(node: MapNodeDocument) -> int:
    """Return how many bytes of a node are huge pages, which have lines of their own."""
    return sum(memory.total or 0 for memory in node.memory if memory.type != MEMORY)


def _shares(memory: MapMemoryDocument, huge_pages: int) -> TextSpan:
    """Return a memory type in words; `huge_pages` are counted apart from what is reserved."""
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

"""Cores as columns with their threads stacked, so that a core with two users stands out."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from agent.api.host.map import CpuUse
from agent.tools.map.lines import Line, TextSpan, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.tools.map.marks import Marks
    from agent.tools.map.parts import MappedCore

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

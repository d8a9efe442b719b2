"""Cores as columns: the threads of a core stand below each other, marked with who has them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from agent.api.documents.map import CpuUse
from agent.tools.map.spans import Line, TextSpan, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.tools.map.marks import Marks
    from agent.tools.map.parts import MappedCore


#: Columns of a row's name: `cpu`, `+112`.
_NAME: Final = 6


def core_columns(cores: Sequence[MappedCore], marks: Marks, width: int | None) -> Iterator[Line]:
    """Yield the rows of some cores; columns that do not fit in `width` continue below.

    The first row has the ids of the first threads, the next their marks. The marks of the second
    threads follow, after the distance between their ids and the first (`+16`) if all cores have
    the same distance, else below a row of their ids. A map without an agent has ids without marks;
    a `*` follows an isolated CPU. Each kind of core has rows of its own.
    """
    kinds = [list(members) for _, members in groupby(cores, key=lambda core: core.kind)]
    for members in kinds:
        if len(kinds) > 1:
            yield (TextSpan(f"{members[0].kind} cores", Tone.HEADING),)
        cell = _cell_width(members, marks)
        fitting = len(members) if width is None else max(1, (width - _NAME) // cell)
        for start in range(0, len(members), fitting):
            yield from _rows(members[start : start + fitting], marks, cell)


def _rows(cores: Sequence[MappedCore], marks: Marks, cell: int) -> Iterator[Line]:
    without_agent = all(cpu.use is CpuUse.ONLINE for core in cores for cpu in core.threads)
    marked = [list(marks.in_core(core)) for core in cores]
    distances = _distances(cores)
    # One irregular row has ids, and a distance beside it would be read as a distance to these.
    regular = all(len(of_row) == 1 for of_row in distances)
    for row, of_row in enumerate(distances):
        cpus = [core.threads[row] if row < len(core.threads) else None for core in cores]
        if without_agent:
            ids = ["" if cpu is None else f"{cpu.id}{'*' if cpu.isolated else ' '}" for cpu in cpus]
            yield _row("cpu" if row == 0 else "", [(TextSpan(text),) for text in ids], cell)
            continue
        name = f"+{min(of_row)}" if regular and row > 0 else ""
        if not name:
            ids = ["" if cpu is None else f"{cpu.id} " for cpu in cpus]
            yield _row("cpu", [(TextSpan(text, Tone.FAINT),) for text in ids], cell)
        cells = [of_core[row] if row < len(of_core) else () for of_core in marked]
        # A blank stands where a shared core has its sign, so that marks are below each other.
        padded = [mark if len(mark) > 1 else (*mark, TextSpan(" ")) for mark in cells]
        yield _row(name, padded, cell)


def _distances(cores: Sequence[MappedCore]) -> list[set[int]]:
    """Return the distances of the n-th threads' ids to those of the first threads, by n."""
    longest = max(len(core.threads) for core in cores)
    return [
        {core.threads[n].id - core.threads[0].id for core in cores if n < len(core.threads)}
        for n in range(longest)
    ]


def _row(name: str, cells: Sequence[Line], width: int) -> Line:
    spans = [TextSpan(f"{name:<{_NAME}}", Tone.FAINT)]
    for cell in cells:
        spans.append(TextSpan(" " * (width - sum(len(span.text) for span in cell))))
        spans += cell
    return tuple(spans)


def _cell_width(cores: Sequence[MappedCore], marks: Marks) -> int:
    ids = max(len(str(cpu.id)) for core in cores for cpu in core.threads)
    labels = max(len(marks.of(cpu).text) for core in cores for cpu in core.threads)
    return max(ids, labels) + 2

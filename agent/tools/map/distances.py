"""Distances between nodes: a matrix, or for many nodes a line for each group with equal rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.tools.map.words import named_ids
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.api.documents.map import MapNodeDocument

#: Nodes of a matrix at most: it fits in 80 columns.
_MATRIX_NODES: Final = 16


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
    return f"{named_ids('node', nodes)}: {local} to itself, {words}"


def _by_distance(node: int, row: Mapping[int, int]) -> tuple[tuple[int, Mask], ...]:
    """Return the nodes at each distance, the node itself among the nearest.

    Nodes of one package are nearest to each other, so they have equal rows and share a line.
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

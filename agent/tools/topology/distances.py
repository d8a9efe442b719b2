"""Node distances as a matrix, or as ranges where a matrix would not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sysfs.host import Host

#: The most columns that fit in 80 characters with ids and distances of up to three digits.
MATRIX_NODES: Final = 16


def distance_lines(host: Host) -> Iterator[str]:
    """Yield one line for each row of the matrix, or for each group of nodes with equal rows."""
    rows = {node.id: node.distances for node in host.nodes}
    return _matrix(rows) if len(rows) <= MATRIX_NODES else _ranges(rows)


def _matrix(rows: Mapping[int, Mapping[int, int]]) -> Iterator[str]:
    values = [*rows, *(distance for row in rows.values() for distance in row.values())]
    width = max(len(str(value)) for value in values) + 1
    head = len("node ") + width
    yield " " * head + "".join(f"{node:>{width}}" for node in rows)
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


def _range_line(local: int | None, others: tuple[tuple[int, Mask], ...], nodes: Mask) -> str:
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
    nearest = min(members)
    members[nearest] |= 1 << node
    return tuple((distance, Mask(members[distance])) for distance in sorted(members))

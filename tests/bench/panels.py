"""A picture of small panels, as SVG text: a line each, from values to microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDTH: Final = 300
_HEIGHT: Final = 170
_LEFT: Final = 46
_TOP: Final = 30
_ACROSS: Final = 3
#: The scale, in microseconds, the same in every panel so that they can be compared.
_LEAST: Final = 10
_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Panel:
    """One line: what is varied, and for each value of it the microseconds."""

    title: str
    points: tuple[tuple[int, float], ...]


def picture(panels: Sequence[Panel]) -> str:
    """Return the SVG document; the vertical scale is logarithmic, values stand evenly spaced."""
    width = _ACROSS * _WIDTH
    height = -(-len(panels) // _ACROSS) * _HEIGHT
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        down, across = divmod(number, _ACROSS)
        lines.append(f'<g transform="translate({across * _WIDTH},{down * _HEIGHT})">')
        lines.extend(_panel(panel))
        lines.append("</g>")
    return "\n".join((*lines, "</svg>", ""))


def _panel(panel: Panel) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>'
    bottom = _height(_LEAST)
    for micros, label in ((10, "10 µs"), (100, "100 µs"), (1000, "1 ms"), (10_000, "10 ms")):
        y = _height(micros)
        yield f'<path d="M{_LEFT} {y}H{_WIDTH - 10}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 4}" y="{y + 3}" text-anchor="end" fill="#555">{label}</text>'
    step = (_WIDTH - _LEFT - 30) / max(len(panel.points) - 1, 1)
    places = [
        (round(_LEFT + 10 + step * at), _height(us)) for at, (_, us) in enumerate(panel.points)
    ]
    line = " ".join(f"{x},{y}" for x, y in places)
    yield f'<polyline points="{line}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>'
    for (x, y), (value, taken) in zip(places, panel.points, strict=True):
        yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="#1f5fa8"/>'
        yield f'<text x="{x}" y="{y - 6}" text-anchor="middle">{taken / 1000:.2f}</text>'
        yield f'<text x="{x}" y="{bottom + 14}" text-anchor="middle" fill="#555">{value}</text>'


def _height(micros: float) -> int:
    inside = min(max(micros, _LEAST), _MOST)
    share = log10(inside / _LEAST) / log10(_MOST / _LEAST)
    return round(_HEIGHT - 24 - share * (_HEIGHT - 24 - _TOP))

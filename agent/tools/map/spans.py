"""Lines made of spans: a span is a piece of text with a tone, which a terminal shows as a colour.

The map is built from such lines. `plain` and `painted` make text of a line, `wrapped` breaks it.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Tone(Enum):
    """The meaning of a span, which a terminal shows as a colour: its escape sequence (SGR)."""

    PLAIN = ""
    HEADING = "1"
    FAINT = "2"
    WARNING = "1;31"
    POD_0 = "36"
    POD_1 = "33"
    POD_2 = "35"
    POD_3 = "32"
    POD_4 = "34"
    POD_5 = "96"


#: The tones of pods, in turn.
POD_TONES: Final = (Tone.POD_0, Tone.POD_1, Tone.POD_2, Tone.POD_3, Tone.POD_4, Tone.POD_5)


class TextSpan(Struct, frozen=True):
    """A piece of a line."""

    text: str
    tone: Tone = Tone.PLAIN


#: One line of a picture.
Line = tuple[TextSpan, ...]


def line(*texts: str | TextSpan) -> Line:
    """Return a line of plain texts and spans."""
    return tuple(TextSpan(text) if isinstance(text, str) else text for text in texts)


def indented(columns: int, spans: Line) -> Line:
    """Return a line moved to the right by some columns."""
    return (TextSpan(" " * columns), *spans)


#: Columns by which the rest of a wrapped line stands right of its beginning.
_CONTINUED: Final = 4
_PIECES: Final = re.compile(r" +|[^ ]+")


def wrapped(spans: Line, width: int) -> Iterator[Line]:
    """Yield the lines of one line that is broken at blanks to fit in `width`.

    A word that is longer than `width` stays whole.
    """
    text = "".join(span.text for span in spans).rstrip()
    if len(text) <= width:
        yield spans
        return
    indent = len(text) - len(text.lstrip()) + _CONTINUED
    row: list[TextSpan] = []
    used = margin = 0
    for blank, word in _words(spans):
        length = sum(len(span.text) for span in word)
        if used > margin and used + len(blank) + length > width:
            yield _joined(row)
            row, used, margin = [TextSpan(" " * indent)], indent, indent
        else:
            row.append(TextSpan(blank, word[0].tone))
            used += len(blank)
        row += word
        used += length
    yield _joined(row)


def _joined(spans: Iterable[TextSpan]) -> Line:
    """Return a line in which neighbours of one tone are one span."""
    return tuple(
        TextSpan("".join(span.text for span in same), tone)
        for tone, same in groupby(spans, key=lambda span: span.tone)
    )


def _words(spans: Line) -> Iterator[tuple[str, list[TextSpan]]]:
    """Yield each word with the blanks before it; a word may have spans of several tones."""
    blank, word = "", list[TextSpan]()
    for span in spans:
        for piece in _PIECES.findall(span.text):
            if not piece.startswith(" "):
                word.append(TextSpan(piece, span.tone))
                continue
            if word:
                yield blank, word
                blank, word = "", []
            blank += piece
    if word:
        yield blank, word


def plain(spans: Iterable[TextSpan]) -> str:
    """Return a line as text without colours and trailing blanks."""
    return printable("".join(span.text for span in spans)).rstrip()


def painted(spans: Iterable[TextSpan]) -> str:
    """Return a line as text with the escape sequences of a terminal (ECMA-48, SGR)."""
    return "".join(
        f"\x1b[{span.tone.value}m{text}\x1b[0m" if span.tone.value else text
        for span in spans
        for text in (printable(span.text),)
    ).rstrip()

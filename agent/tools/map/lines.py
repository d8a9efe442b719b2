"""Lines of a picture: spans of text with a tone, plain or in the colours of a terminal."""

from __future__ import annotations

import re
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct

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


def indented(by: int, spans: Line) -> Line:
    """Return a line further to the right."""
    return (TextSpan(" " * by), *spans)


#: By how much more than its first line a line continues to the right.
_CONTINUED: Final = 4


def broken(spans: Line, width: int) -> Iterator[Line]:
    """Yield a line, broken at blanks where it is longer than `width`; a longer word stays whole."""
    text = "".join(span.text for span in spans).rstrip()
    if len(text) <= width:
        yield spans
        return
    indent = len(text) - len(text.lstrip()) + _CONTINUED
    row: list[TextSpan] = []
    used = at_least = 0
    for blank, word in _words(spans):
        length = sum(len(span.text) for span in word)
        if used > at_least and used + len(blank) + length > width:
            yield _joined(row)
            row, used, at_least = [TextSpan(" " * indent)], indent, indent
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
    """Yield each word, whose letters may have several tones, after the blanks before it."""
    blank, word = "", list[TextSpan]()
    for span in spans:
        for piece in re.findall(r" +|[^ ]+", span.text):
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
    """Return a line without colours and trailing blanks."""
    return printable("".join(span.text for span in spans)).rstrip()


def painted(spans: Iterable[TextSpan]) -> str:
    """Return a line with the escape sequences of a terminal (ECMA-48, SGR)."""
    return "".join(
        f"\x1b[{span.tone.value}m{text}\x1b[0m" if span.tone.value else text
        for span in spans
        for text in (printable(span.text),)
    ).rstrip()


def printable(text: str) -> str:
    """Return a text with control characters and halves of surrogate pairs escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

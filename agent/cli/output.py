"""Printing: lines of text, documents as JSON and YAML, warnings.

Text that others chose is made printable here: such text can neither begin a new line nor send a
command to a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final, TypeVar

import click
import msgspec

from agent.api.documents.document import Document, encode
from agent.cli.lines import coloured
from agent.cli.options import Output
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    _Answer = TypeVar("_Answer", bound=Document)


def say(line: str, *, err: bool = False) -> None:
    """Print a line; on standard error with `err`."""
    click.echo(printable(line), err=err)


def warn(warnings: Iterable[str]) -> None:
    """Print each warning as a line on standard error."""
    for line in warnings:
        say(f"numawarden: warning: {line}", err=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text; a terminal shows in red what needs attention."""
    in_colour = has_colours()
    for line in map(printable, lines):
        click.echo(coloured(line) if in_colour else line)


def has_colours() -> bool:
    """Return whether standard output is a terminal with colours (https://no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def print_answer(
    answer: _Answer, output: Output, lines: Callable[[_Answer], Iterable[str]]
) -> None:
    """Print an answer of the agent: as a document, or as the text that `lines` makes of it."""
    if output.is_document:
        print_document(answer, output)
    else:
        print_lines(lines(answer))


def print_document(document: Document, output: Output) -> None:
    """Print a document with the keys of the API, as indented JSON or as YAML."""
    print_encoded(encode(document), output)


def print_encoded(text: bytes, output: Output) -> None:
    """Print a JSON text as indented JSON, or as YAML."""
    if output is Output.YAML:
        click.echo(yaml_of(msgspec.json.decode(text)), nl=False)
    else:
        click.echo(escaped(msgspec.json.format(text, indent=2)))


def escaped(text: bytes) -> bytes:
    r"""Return a JSON text with the characters escaped that are not printable (`\u009b`).

    JSON itself escapes only those below U+0020. Newlines between values stay.
    """
    if text.isascii() and b"\x7f" not in text:
        return text
    characters = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text.decode())
    return "".join(characters).encode()


#: The width of YAML in characters, so large that no line is wrapped; libyaml takes at most 2^31.
_WIDE: Final = 1 << 30


def yaml_of(value: object) -> str:
    """Return a decoded JSON value as a YAML text: keys stay in order, no line is wrapped."""
    import yaml  # noqa: PLC0415  # 10 ms that no other form of output needs

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_WIDE))

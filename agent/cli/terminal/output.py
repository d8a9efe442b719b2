"""What commands print: text, tables, and the documents of the API as JSON or YAML.

Colours mark only what needs attention, on a terminal where `NO_COLOR` is not set.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, Final, TypeVar

import click

from agent.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from _typeshed import ReadableBuffer as Buffer

    from agent.api.documents import Document

    _Command = TypeVar("_Command", bound=Callable[..., object])


class Output(StrEnum):
    """A form of output; `TEXT` is for people, `WIDE` a table with more columns."""

    TEXT = "text"
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    SVG = "svg"

    @property
    def is_document(self) -> bool:
        """Whether the document of the API is printed as it is."""
        return self in {Output.JSON, Output.YAML}


class _OutputType(click.Choice[Output]):
    """The forms of one command; one without tables takes `table` for its text."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Output:
        if isinstance(value, str):
            value = value.removeprefix("=")  # kubectl takes -o=json, too
        if value == Output.TABLE and Output.TABLE not in self.choices:
            return Output.TEXT
        return super().convert(value, param, ctx)

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return the word of a form, not the name of the constant."""
        del ctx
        return str(choice)


def output_of(*forms: Output) -> Callable[[_Command], _Command]:
    """Return what adds `-o, --output` with the given forms to a command; the first is default."""

    def add(command: _Command) -> _Command:
        return click.option(
            "-o",
            "--output",
            type=_OutputType(forms),
            default=forms[0].value,  # help shows the name of an Enum's member
            show_default=True,
            help=_help(forms),
        )(command)

    return add


def output_option(command: _Command) -> _Command:
    """Add `-o, --output text|json|yaml` to a command."""
    return output_of(Output.TEXT, Output.JSON, Output.YAML)(command)


def pod_output_option(command: _Command) -> _Command:
    """Add `-o, --output text|json|yaml|name` to a command that is about one pod."""
    return output_of(Output.TEXT, Output.JSON, Output.YAML, Output.NAME)(command)


def _help(forms: Sequence[Output]) -> str:
    parts = ["Text"]
    if Output.WIDE in forms:
        parts.append("a table, one with more columns")
    parts.append("the document of docs/api.md")
    if Output.NAME in forms:
        parts.append("namespace/name alone")
    if Output.SVG in forms:
        parts.append("a picture for a browser")
    return f"{', '.join(parts[:-1])} or {parts[-1]}."


class StandardOutput(FileIO):
    """Standard output whose reader may go away: what is written afterwards is dropped.

    A command ends as it would otherwise, with its own exit code.
    """

    gone = False

    def write(self, text: Buffer, /) -> int:
        """Write to the file; raises `CommandError` once where that fails but for a closed pipe."""
        if not self.gone:
            try:
                return super().write(text)
            except BrokenPipeError:
                self.gone = True
            except OSError as error:
                self.gone = True
                message = f"standard output: {error.strerror}"
                raise CommandError(message, ExitCode.ENVIRONMENT) from error
        return memoryview(text).nbytes


def reader_is_gone() -> bool:
    """Return whether nothing reads standard output any longer."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, StandardOutput) and raw.gone


def open_standard_output() -> None:
    """Have `sys.stdout` be a `StandardOutput`, and give a place to descriptors that are closed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    former = sys.stdout
    encoding, errors = (former.encoding, former.errors) if former else ("utf-8", "strict")
    raw = StandardOutput(1, "wb", closefd=False)
    buffered = BufferedWriter(raw)
    lines = raw.isatty()
    sys.stdout = TextIOWrapper(buffered, encoding, errors, line_buffering=lines)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # a descriptor, to the end


def print_document(document: Document, output: Output) -> None:
    """Print a document as the API sends it: indented JSON, or YAML."""
    from agent.api.documents import encode  # noqa: PLC0415  # help needs no documents

    print_encoded(encode(document), output)


def print_encoded(text: bytes, output: Output) -> None:
    """Print a JSON text: indented JSON, or YAML."""
    import msgspec  # noqa: PLC0415  # help needs no documents

    if output is Output.YAML:
        click.echo(yaml_of(msgspec.json.decode(text)), nl=False)
    else:
        click.echo(msgspec.json.format(text, indent=2))


#: More characters than any line has; libyaml takes no number above 2^31.
_WIDE: Final = 1 << 30


def yaml_of(value: object) -> str:
    """Return values as `json` reads them as a YAML text, keys in their order, no line broken."""
    import yaml  # noqa: PLC0415  # of no use to any other form

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_WIDE))


#: What needs attention at the beginning of a line: the answer no, a difference, a condition.
_FIRST: Final = (
    "rejected", "would reject", "invalid", "does not fit", "failed", "CONDITION", "DIFFERS",
    "INTRUDES", "warning:", "not enforced:",
)  # fmt: skip
#: And in its midst.
_ANYWHERE: Final = ("NOT ENFORCED", "NOT-ENFORCED", "NOT READY")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text; on a terminal, what needs attention is red."""
    coloured = has_colours()
    for line in lines:
        click.echo(_coloured(line) if coloured else line)


def has_colours() -> bool:
    """Return whether standard output is a terminal with colours (https://no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def _coloured(line: str) -> str:
    body = line.lstrip(" ")
    for words in _FIRST:
        if f"{body} ".startswith(f"{words} "):
            return line[: len(line) - len(body)] + _red(words) + body[len(words) :]
    found = next((words for words in _ANYWHERE if words in line), None)
    return line if found is None else line.replace(found, _red(found), 1)


def _red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table as `kubectl get` prints one: columns apart by three blanks, `-` for nothing."""
    filled = [list(header), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    for row in filled:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "   ".join(cells).rstrip()

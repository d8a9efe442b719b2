"""`-o jsonpath=TEMPLATE`: text with values of a document, as kubectl prints it.

A template is text with expressions in braces: a path, a text in quotes, or `{range PATH}`, which
repeats what stands before its `{end}` for each value of the path
(https://kubernetes.io/docs/reference/kubectl/jsonpath/). Paths are those of RFC 9535. One with `$`
begins at the document, any other at the value of its range, without a range at the document, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import click
import msgspec
from jsonpath import JSONPathEnvironment, JSONPathError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonpath import CompoundJSONPath, JSONPath

_QUOTED: Final = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_TEXT: Final = re.compile(_QUOTED, re.DOTALL)
_BRACES: Final = re.compile(rf"{{((?:[^{{}}'\"]|{_QUOTED})*)}}", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
#: A name with dots of its own, as in `.devices.example\.com/gpu`.
_DOTTED: Final = re.compile(r"\.((?:[\w/-]|\\\.)*\\\.(?:[\w/-]|\\\.)*)")
_ENVIRONMENT: Final = JSONPathEnvironment(strict=True)


class _Values(NamedTuple):
    """The values of a path: they are printed, or the template of a range for each of them."""

    path: JSONPath | CompoundJSONPath | None  #: None: the value at which it begins.
    of_document: bool
    each: Template | None


Template: TypeAlias = "list[str | _Values]"


def template_of(text: str) -> Template:
    """Return the parts of a template; raises `click.BadParameter`, which says what is wrong."""
    if "{" not in text:
        return [_values(text)]
    template, around = list[str | _Values](), list[Template]()
    for number, part in enumerate(_BRACES.split(text)):  # text and expressions take turns
        word, _, rest = part.strip().partition(" ")
        if number % 2 == 0:
            if "{" in part:
                raise click.BadParameter(f"a brace is not closed: {part[part.index('{') :]!r}")
            template.append(part)
        elif _TEXT.fullmatch(part.strip()):
            template.append(_ESCAPE.sub(_meant, part.strip()[1:-1]))
        elif word == "range":
            around.append(template)
            template = []
            around[-1].append(_values(rest, template))
        elif word != "end":
            template.append(_values(part))
        elif around:
            template = around.pop()
        else:
            raise click.BadParameter(f"an {{end}} has no {{range PATH}} before it: {text!r}")
    if around:
        raise click.BadParameter(f"a {{range PATH}} has no {{end}}: {text!r}")
    return template


def _meant(escape: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(escape[1], escape[1])


def _values(expression: str, each: Template | None = None) -> _Values:
    """Return what an expression stands for; raises `click.BadParameter`."""
    path = _DOTTED.sub(lambda name: f"['{_ESCAPE.sub(_meant, name[1])}']", expression.strip())
    if not path:
        raise click.BadParameter("a path is missing in braces; {$} is the whole document")
    of_document = path.startswith("$")
    path = path[1:] if path[0] in "$@" else path
    if path in {"", "."}:
        return _Values(None, of_document, each)
    path = f"${path}" if path[0] in ".[" else f"$.{path}"
    try:
        return _Values(_ENVIRONMENT.compile(path), of_document, each)
    except JSONPathError as error:
        index = -1 if error.token is None else error.token.index  # -1: at the end, too
        place = "its end" if index < 0 else repr(path[index:])
        raise click.BadParameter(f"the path {path!r} at {place}: {error.message}") from error


def filled(template: Template, document: object) -> str:
    """Return a template with values of a document: texts raw, others as JSON, blanks between."""
    return "".join(_texts(template, document, document))


def _texts(template: Template, document: object, current: object) -> Iterator[str]:
    for part in template:
        if isinstance(part, str):
            yield part
            continue
        begin = document if part.of_document else current
        if part.path is None:
            found = [begin]
        else:  # the library would read a text as JSON
            found = part.path.findall(begin) if isinstance(begin, (dict, list)) else []
        if part.each is None:
            yield " ".join(map(_text, found))
            continue
        for value in found:
            yield from _texts(part.each, document, value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

"""What an unquoted YAML scalar means: YAML 1.2's reading, where no other version disagrees."""

from __future__ import annotations

import re
from typing import Final

from agent.parsing.nodes import Number, Unclear

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_YAML11_BOOLEANS: Final = frozenset({"yes", "no", "on", "off"})
#: A longer scalar is a text: no number, boolean or date has so many characters.
_LONGEST: Final = 128

_NUMBER: Final = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII
)
_UNCLEAR: Final = (
    (
        re.compile(r"[-+]?0[0-9_]+", re.ASCII),
        "a leading zero is octal to some readers and decimal to others",
    ),
    (
        re.compile(r"[-+]?0[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?", re.ASCII),
        "it has a leading zero",
    ),
    (re.compile(r"[-+]?0[xob][0-9a-fA-F_]+", re.ASCII), "not every reader takes it as a number"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII),
        "YAML 1.1 reads it as a number in base 60",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?", re.ASCII),
        "not every reader allows underscores in a number",
    ),
    (
        re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII),
        "it is not a finite number",
    ),
    (
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?", re.ASCII),
        "YAML 1.1 reads it as a date",
    ),
)


def resolve(text: str) -> bool | str | Number | Unclear | None:
    """Return the value of a plain (unquoted) scalar; `Unclear` where YAML versions disagree.

    A scalar of more than 128 characters is a text, whatever its characters.
    """
    if len(text) > _LONGEST:
        return text
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _YAML11_BOOLEANS:
        return Unclear(text, "YAML 1.1 reads it as a boolean and YAML 1.2 as a text")
    return _number_or_text(text)


def _number_or_text(text: str) -> str | Number | Unclear:
    if _NUMBER.fullmatch(text):
        return Number(text)
    for pattern, reason in _UNCLEAR:
        if pattern.fullmatch(text):
            return Unclear(text, reason)
    return text

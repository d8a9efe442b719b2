"""Values as Go writes them: the text a kubelet checksum is over, and encoding/json.

A kubelet checkpoint's checksum is the 32 bit FNV-1a hash of the text that `%#v` of go-spew gives
for the checkpoint with its checksum set to 0 (methods disabled, keys sorted, no addresses and
capacities). A field of a struct carries its type, a value in a map or slice does not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A document in the order in which its keys are to be written.
Plain: TypeAlias = "str | int | list[Plain] | dict[str, Plain] | None"

NIL: Final = "<nil>"
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_32_BITS: Final = 0xFFFFFFFF
#: What encoding/json escapes beyond JSON's own needs, so that it can stand in HTML and JavaScript.
_HTML: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def fnv1a_32(text: str) -> int:
    """Return the 32 bit FNV-1a hash of a text's UTF-8 bytes."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & _32_BITS
    return value


def go_struct(fields: Iterable[tuple[str, str, str]]) -> str:
    """Return a struct of (name, type, text of the value)."""
    return f"{{{' '.join(f'{name}:({kind}){value}' for name, kind, value in fields)}}}"


def go_map(entries: Mapping[str, str] | None) -> str:
    """Return a map of texts by string key; None is a nil map."""
    if entries is None:
        return NIL
    return go_map_in_order(sorted(entries.items()))


def go_map_in_order(entries: Iterable[tuple[object, str]]) -> str:
    """Return a map of texts in the order given: maps with numbers as keys sort by number."""
    return f"map[{' '.join(f'{key}:{value}' for key, value in entries)}]"


def go_slice(items: Iterable[object] | None) -> str:
    """Return a slice of texts or numbers; None is a nil slice."""
    return NIL if items is None else f"[{' '.join(map(str, items))}]"


def go_json(document: Plain) -> bytes:
    """Return a document as encoding/json writes it: compact, HTML characters escaped."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_HTML).encode()


def sorted_json(entries: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return a map in the order of encoding/json: by key as text, also where keys are numbers."""
    return dict(sorted(entries.items()))

"""Damaging valid inputs: their bytes, and the structure of their documents.

Every choice is drawn from one `Random`, so that a seed repeats an input and Hypothesis
(`strategies.randoms`) can shrink one.
"""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from agent.yaml import Plain

_TOKENS: Final = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\r\n", b"\t", b"\x1b[2J",
    "\u202e\u0000\u0663\u00bd\U0001d7dc".encode(), b"9" * 5000, b"-1", b"1e999", b"NaN", b"0x10",
    b"1_0", b"[" * 3000, b"{" * 3000, b'{"a":' * 500, b"&a [*a]", b"!!python/object:os.system ",
    b"<<: ", b"../../", b"%00", b"%2e%2e%2f", b"- " * 500, b"---\n", b"...\n", b"? ", b'"', b"'",
    b"#", b",",
    b"18446744073709551616", b"0-99999999999", b"null", b"true", b"Ki", b"\\ud800", b"1:2:3",
    b"0" + b"1" * 70_000 + b"x", b"1:" * 20_000, b"0x" + b"f" * 30_000, b"1_" * 20_000,
    b"\xe9", b"caf\xe9.yaml",
)  # fmt: skip
_TEXTS: Final = (
    "", " ", ".", "..", "../../../etc", "/", "a/b", "a" * 70, "a" * 300, "a" * 9000, "-a", "A_b",
    "0", "-1", "007", "1e3", "1e99", "1e-99", "1e100", "9" * 4500, "NaN", "inf", "0x10", "1_000",
    "0" + "1" * 70_000 + "x", "1:" * 20_000, "a-" * 20_000, "a." * 20_000,
    "\u0663", "\u00bd", "1Ki ", "1ki", "1 Gi", "0.1m", "1n", "9Ei", "9223372036854775807",
    "0-3,8", "3-1", "0-65535", "0-65536", "0,,1", "\x00", "\n", "\x1b[2J", "\u202e", "\ud800",
    "\u00e9", "true", "null", "Always", "Never", "cpu", "memory", "hugepages-2Mi",
    "hugepages-3Mi", "hugepages--1", "static",
    "example.com/gpu", "kubernetes.io/x", "x/", "/x", "10s", "-5s", "65536h", "max", "%n", "pod",
)  # fmt: skip
_NUMBERS: Final = (0, -1, 1, 2, 3, 1.5, -0.0, 1e308, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**400)
_LONG: Final = 1200


def damaged_bytes(random: Random, data: bytes, most: int = 3) -> bytes:
    """Return bytes after one to `most` edits."""
    for _ in range(random.randint(1, most)):
        start = random.randint(0, len(data))
        end = min(len(data), start + random.randint(1, 40))
        before, piece, after = data[:start], data[start:end], data[end:]
        flipped = bytes(((piece or b"\0")[0] ^ (1 << random.randrange(8)),))
        replaced = bytes((random.choice(b"09-+.,:eEmKi[]{}\"'/ \n"),))
        rest, at = before + after, random.randint(0, len(data) - len(piece))
        data = random.choice(
            (
                *(before + flipped + piece[1:] + after,) * 2,
                *(before + replaced + piece[1:] + after,) * 2,
                *(before + random.choice(_TOKENS) + piece + after,) * 2,
                before,
                rest,
                before + piece * random.choice((2, 2, 3, 51)) + after,
                rest[:at] + piece + rest[at:],
            )
        )
    return data


def damaged_text(random: Random, texts: Sequence[str]) -> bytes:
    """Return one of some texts: as it is, damaged, or joined with another."""
    kind = random.randrange(5)
    text = random.choice(texts)
    if kind == 0:
        return text.encode()
    if kind == 1:
        return (text + random.choice(("", ",", ".", "-", "e")) + random.choice(texts)).encode()
    return damaged_bytes(random, text.encode())


def damaged_document(random: Random, document: Plain, most: int = 4) -> Plain:
    """Return a document after none to `most` edits of its structure; it is taken over."""
    holder: list[Plain] = [document]
    for _ in range(random.randint(0, most)):
        _edit(random, holder)
    return holder[0]


def written(random: Random, document: Plain) -> bytes:
    """Return a document as JSON or YAML, at times with damaged bytes."""
    data = json.dumps(document).encode()
    if not random.randrange(4) and b"\\ud800" not in data:
        # PyYAML writes neither half a surrogate pair nor anything nested deep.
        with suppress(RecursionError):
            data = yaml.dump(document, Dumper=yaml.CSafeDumper, allow_unicode=True).encode()
    return data if random.randrange(3) else damaged_bytes(random, data)


def _edit(random: Random, holder: list[Plain]) -> None:
    """Change one value somewhere in the document that `holder` holds."""
    parent, key = random.choice(_places(holder))
    kind = random.randrange(6)
    if isinstance(parent, list):
        index = int(key)
        if kind == 0 and len(parent) > 1:
            del parent[index]
        elif kind == 1:
            parent.insert(index, deepcopy(parent[index]))
        else:
            parent[index] = _other(random, parent[index])
        return
    name = str(key)
    if kind == 0:
        del parent[name]
    elif kind == 1:
        parent[_slip(random, name)] = parent.pop(name)
    elif kind == 2:
        parent[random.choice(_TEXTS)] = deepcopy(parent[name])
    else:
        parent[name] = _other(random, parent[name])


def _other(random: Random, value: Plain) -> Plain:
    """Return what stands in a value's place: another kind, another amount, a heap of it."""
    kind = random.randrange(13)
    others: tuple[Plain, ...] = (None, True, False, [], {}, [[]], {"": {}}, [value])
    if kind < 4:
        others = _TEXTS
    elif kind < 7:
        others = _NUMBERS
    elif kind == 7:
        # Four times this is as deep as a document can be copied and written; bytes go deeper.
        for _ in range(random.choice((1, 2, 5, 20, 70))):
            value = [value] if random.randrange(2) else {"a": value}
        return value
    elif kind == 8 and not random.randrange(10):
        return [deepcopy(value) for _ in range(_LONG)]
    elif kind > 8:
        return _nudged(random, value)
    return random.choice(others)


def _nudged(random: Random, value: Plain) -> Plain:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + random.choice((-1, 1, 1024))
    return _slip(random, value) if isinstance(value, str) else value


def _slip(random: Random, text: str) -> str:
    at = random.randint(0, len(text))
    slip = random.choice(("", "x", "-", "0", "9", "/", "..", "K", "\u00e9"))
    return text[:at] + slip + text[at + 1 :]


def _places(holder: list[Plain]) -> list[tuple[dict[str, Plain] | list[Plain], str | int]]:
    places: list[tuple[dict[str, Plain] | list[Plain], str | int]] = []
    stack: list[dict[str, Plain] | list[Plain]] = [holder]
    while stack and len(places) < _LONG:
        parent = stack.pop()
        entries = parent.items() if isinstance(parent, dict) else enumerate(parent)
        for key, value in entries:
            places.append((parent, key))
            if isinstance(value, dict | list):
                stack.append(value)
    return places

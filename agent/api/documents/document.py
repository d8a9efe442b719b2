"""What all documents of the admission API have in common: their base, writing and reading them.

A document goes over the socket, and `--output json` prints it. Sets of CPUs and NUMA nodes are text
in the kernel's list format (`0-3,8`), sizes are bytes, CPU shares millicores, times seconds since
1970 (UTC). Field names are camel case on the wire. A field may be added in any release; none is
renamed or removed within `/v1` (see `docs/api.md`). A value of the core that has all of this is a
document as it is, such as `Violation`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from agent.values import plain


class Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all documents."""


_Document = TypeVar("_Document", bound=Document)
_encoder = msgspec.json.Encoder(enc_hook=plain)


def encode(document: Document) -> bytes:
    r"""Return a document as compact JSON.

    Names of files, processes and cgroups need not be UTF-8. A byte that is not is sent as `\xe9`,
    so that one such name does not make the whole answer fail.
    """
    try:
        return _encoder.encode(document)
    except UnicodeEncodeError:
        return _encoder.encode(_sendable(msgspec.to_builtins(document, enc_hook=plain)))


def decode(body: bytes, kind: type[_Document]) -> _Document:
    """Return the document of a JSON text; raises `msgspec.DecodeError`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from error


def _sendable(value: object) -> object:
    """Return plain values in which the bytes that are not UTF-8 are escaped."""
    if isinstance(value, str):
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # half of a surrogate pair that stands for no byte
            raw = value.encode("utf-8", "backslashreplace")
        return raw.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value

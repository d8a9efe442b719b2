"""Reading files that somebody names, however large they are or claim to be."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK: Final = 1 << 16
#: Above any state or list of pods that a host can have.
LARGEST: Final = 256 << 20


def read_bounded(path: Path, limit: int = LARGEST) -> bytes:
    """Return the content of a file of at most `limit` bytes. Raises `OSError` (EFBIG above it)."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has a null byte in its name", str(path))
    with path.open("rb") as file:
        return take(file, limit, str(path))


def take(stream: BinaryIO, limit: int, name: str) -> bytes:
    """Return the rest of a stream; as `read_bounded`, `name` is only named in the error."""
    content = bytearray()
    while chunk := stream.read(_CHUNK):
        content += chunk
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", name)
    return bytes(content)

"""What the readers of both files share: checksums, typed decoding, and where a mistake is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from agent.tools.kubelet_state.errors import UnreadableStateFileError
from agent.tools.kubelet_state.go_text import fnv1a_32, go_struct
from sysfs.mask import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum
    from pathlib import Path

    VersionT = TypeVar("VersionT", bound=StrEnum)

DocumentT = TypeVar("DocumentT")

Name = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(ge=0)]
NodeId = Annotated[int, Meta(ge=0, le=MAX_ID)]

DAMAGED: Final = "restore an intact copy, or remove the file and drain the node"


def parse_json(data: bytes, kind: type[DocumentT], path: Path) -> DocumentT:
    """Return the document of a file; unknown fields are passed over, as in the kubelet."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        problem, found, place = str(error).rpartition(" - at `")
        # The place of a bad key is given as "key` in `$.entries`".
        field, said = (place.split("`")[-2], problem) if found else ("$", str(error))
        raise UnreadableStateFileError(path, field, said, DAMAGED) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"not a complete JSON document ({error})" if data else "the file is empty"
        raise UnreadableStateFileError(path, "$", what, DAMAGED) from error


def hash_text(type_name: str, fields: Iterable[tuple[str, str, str]]) -> str:
    """Return the text that a checkpoint's checksum is over."""
    zero = ("Checksum", "checksum.Checksum", "0")
    return f"(*state.{type_name}){go_struct((*fields, zero))}"


def version_by_checksum(
    checksum: int, candidates: Iterable[tuple[VersionT, str]], path: Path
) -> VersionT:
    """Return the version whose text has the checksum that a file states.

    A file without a checksum (or 0) is taken to be of the first candidate: the kubelet accepts it.
    """
    known = tuple(candidates)
    if not checksum:
        return known[0][0]
    computed = [(version, fnv1a_32(text)) for version, text in known]
    for version, found in computed:
        if found == checksum:
            return version
    would_be = ", ".join(f"{found} as {version}" for version, found in computed)
    problem = f"says {checksum}, the content has {would_be}"
    raise UnreadableStateFileError(path, "$.checksum", problem, DAMAGED)

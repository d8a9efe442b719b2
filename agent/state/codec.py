"""From a state to the bytes of a checkpoint and back.

The document is JSON on one line:
`{"format":"numawarden-checkpoint","version":1,"checksum":"sha256:...","state":{...}}`.
The checksum is over the bytes of the value of `state`, exactly as in the file, so the
same state always gives the same bytes and any change of them is found. This frame is that of every
format; `version` says what `state` looks like. The latest format is written, each that was ever
released is read by a reader of its own.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from agent.state import format1
from agent.state.errors import (
    DamagedCheckpointError,
    NewerCheckpointError,
    OlderCheckpointError,
    UnknownFormatCheckpointError,
    UnusableCheckpointError,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.managers.allocations.allocation import PodAllocation
    from agent.state.checkpoint import Checkpoint

FORMAT: Final = "numawarden-checkpoint"
VERSION: Final = 1

_RECOVERY: Final = (
    "the file is kept aside; put back an intact copy, or let running pods be admitted again"
)


class _Header(msgspec.Struct):
    format: str | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    checksum: str
    state: msgspec.Raw


class Encoder:
    """Encodes checkpoints; an allocation is encoded once, as long as it does not change.

    Allocations are immutable and survive from one ledger to the next, so that an admission on a
    full host encodes one pod, not all of them. The bytes do not depend on what was encoded before.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[PodAllocation, msgspec.Raw]] = {}

    def encode(self, state: Checkpoint) -> bytes:
        """Return the bytes of a checkpoint with `state`."""
        self._known = {
            uid: self._fragment(uid, allocation)
            for uid, allocation in state.ledger.allocations.items()
        }
        pods = [fragment for _, fragment in self._known.values()]
        body = _ENCODER.encode(format1.state_to_wire(state, pods))
        return b'{"format":"%s","version":%d,"checksum":"%s","state":%s}\n' % (
            FORMAT.encode(),
            VERSION,
            _checksum(body).encode(),
            body,
        )

    def _fragment(self, uid: str, allocation: PodAllocation) -> tuple[PodAllocation, msgspec.Raw]:
        known = self._known.get(uid)
        if known is not None and known[0] is allocation:
            return known
        return allocation, msgspec.Raw(_ENCODER.encode(format1.pod_to_wire(allocation)))


def decode(data: bytes, path: Path) -> Checkpoint:
    """Return the state in a checkpoint; `path` is only named in errors.

    Raises a subclass of `UnusableCheckpointError`: Damaged, UnknownFormat, Newer or Older.
    """
    try:
        _check_header(msgspec.json.decode(data, type=_Header), path)
        document = msgspec.json.decode(data, type=_Document)
        _check_sum(document, path)
        return READERS[document.version](document.state)
    except msgspec.ValidationError as error:
        raise _damaged(path, *_place(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, "$", f"not a complete JSON document ({error})") from error
    except ValueError as error:
        raise _damaged(path, *map(str, error.args)) from error


def _check_header(header: _Header, path: Path) -> None:
    if header.format != FORMAT:
        raise UnknownFormatCheckpointError(
            path,
            "$.format",
            f"expected {FORMAT!r}, found {_shown(header.format)}",
            "the file is kept aside; if it is the kubelet's, use `numawarden state import`",
        )
    if header.version is msgspec.UNSET:
        raise _damaged(path, "$.version", "missing")
    _check_version(header.version, path)


def _check_version(version: int, path: Path) -> None:
    if version in READERS:
        return
    known = ", ".join(map(str, sorted(READERS)))
    problem = f"format {version}, this release reads {known} and writes {VERSION}"
    if version > VERSION:
        remedy = "the file is kept aside; go back to the release that wrote it and put it back"
        raise NewerCheckpointError(path, "$.version", problem, remedy)
    remedy = "the file is kept aside; let a release that reads both formats convert it"
    raise OlderCheckpointError(path, "$.version", problem, remedy)


def _check_sum(document: _Document, path: Path) -> None:
    computed = _checksum(bytes(document.state))
    if document.checksum != computed:
        raise _damaged(path, "$.checksum", f"says {document.checksum}, the content has {computed}")


def _checksum(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _damaged(path: Path, field: str, problem: str) -> UnusableCheckpointError:
    return DamagedCheckpointError(path, field, problem, _RECOVERY)


def _place(message: str) -> tuple[str, str]:
    """Split msgspec's `problem - at `$.place`` into place and problem."""
    problem, found, place = message.rpartition(" - at `")
    return (place.rstrip("`"), problem) if found else ("$", message)


def _shown(value: object) -> str:
    return "nothing" if value is msgspec.UNSET else repr(value)


@lru_cache(maxsize=4096)
def _mask_text(bits: int) -> str:
    return str(Mask(bits))


@lru_cache(maxsize=4096)
def _parse_mask(text: str) -> Mask:
    return Mask.parse(text)


def _enc_hook(value: object) -> str:
    if isinstance(value, Mask):
        return _mask_text(value.bits)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")


def _dec_hook(kind: type, value: object) -> Mask:
    if kind is not Mask:
        raise NotImplementedError(f"no value of type {kind.__name__} from JSON")
    if not isinstance(value, str):
        raise TypeError(f"expected a list of ids such as '0-3,8', got {value!r}")
    return _parse_mask(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_enc_hook, order="deterministic")
_DECODER1: Final = msgspec.json.Decoder(format1.StateV1[format1.PodV1], dec_hook=_dec_hook)


def _read1(body: msgspec.Raw) -> Checkpoint:
    return format1.state_from_wire(_DECODER1.decode(body))


#: The reader of each format: it returns the state of the value of `state`.
READERS: Final[dict[int, Callable[[msgspec.Raw], Checkpoint]]] = {1: _read1}

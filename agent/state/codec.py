"""From a checkpoint to its bytes and back.

The document is JSON on one line:
`{"format":"numawarden-checkpoint","version":2,"checksum":"sha256:...","state":{...}}`.
The checksum is over the bytes of the value of `state`, exactly as in the file, so that any change
of them is found. This frame is that of every format; `version` says what `state` looks like.

`state` has the ledger's own values (`agent.values.Saved`) as msgspec writes them. Sets of ids are
texts in the kernel's list format, a hint is `[nodes as bits, preferred]`, and what equals its
default may be left out. Fields may be added without a new version: a file without them has their
defaults, and a release that does not know them leaves them alone. It writes those of the state
again as they were, and those of a pod until the allocation of the pod changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

import msgspec
from msgspec import Raw

from agent.managers.allocations.allocation import PodAllocation  # noqa: TC001  # msgspec reads it
from agent.managers.allocations.ledger import Ledger
from agent.managers.memory.state import NodeMemory, memory_charge
from agent.managers.registry import MANAGERS
from agent.pods.model import MEMORY
from agent.state.checkpoint import Checkpoint, SavedBesideLedger
from agent.state.errors import (
    DamagedCheckpointError,
    NewerCheckpointError,
    OlderCheckpointError,
    UnknownFormatCheckpointError,
    UnusableCheckpointError,
)
from agent.values import Size, plain
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FORMAT: Final = "numawarden-checkpoint"
VERSION: Final = 2

_RECOVERY: Final = (
    "the file is kept aside; put back an intact copy, or let running pods be admitted again"
)
#: Where an allocation keeps its JSON, beside its fields: it does not change, so neither does that.
_TEXT: Final = "saved text"


class _Header(msgspec.Struct):
    format: str | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET


class _Document(msgspec.Struct):
    format: str
    version: int
    checksum: str
    state: Raw


class _State(SavedBesideLedger, frozen=True):
    """The value of `state`: of the ledger, what does not follow from the rest of it."""

    pods: tuple[PodAllocation, ...]
    memory: Mapping[Size, NodeMemory] = MappingProxyType({})


_BESIDE_LEDGER: Final = msgspec.structs.fields(SavedBesideLedger)
_KNOWN: Final = frozenset(field.encode_name for field in msgspec.structs.fields(_State))


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint.

    An allocation is encoded once: allocations are immutable and survive from one ledger to the
    next, so that an admission on a full host encodes one pod, not all of them.
    """
    body = _ENCODER.encode(
        {
            **checkpoint.unknown,
            **{field.encode_name: getattr(checkpoint, field.name) for field in _BESIDE_LEDGER},
            "memory": memory_charge(checkpoint.ledger),
            "pods": [_text_of(pod) for pod in checkpoint.ledger.allocations.values()],
        }
    )
    return b'{"format":"%s","version":%d,"checksum":"%s","state":%s}\n' % (
        FORMAT.encode(),
        VERSION,
        _checksum(body).encode(),
        body,
    )


def _text_of(pod: PodAllocation) -> Raw:
    if _TEXT not in pod.__dict__:
        pod.__dict__[_TEXT] = Raw(_ENCODER.encode(pod))
    return cast("Raw", pod.__dict__[_TEXT])


def decode(data: bytes, path: Path) -> Checkpoint:
    """Return the checkpoint with these bytes; `path` is only named in errors.

    Raises a subclass of `UnusableCheckpointError`: Damaged, UnknownFormat, Newer or Older.
    """
    try:
        _check_header(msgspec.json.decode(data, type=_Header), path)
        document = msgspec.json.decode(data, type=_Document)
        _check_sum(document, path)
        return _read(document.state)
    except msgspec.ValidationError as error:
        raise _damaged(path, *_place(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, "$", f"not a complete JSON document ({error})") from error
    except ValueError as error:
        raise _damaged(path, *map(str, error.args)) from error


def _read(body: Raw) -> Checkpoint:
    """Return the checkpoint of a state; raises `ValueError(field, problem)` on contradictions."""
    bytes(body).decode()  # unknown fields are not looked into, but are written and sent again
    state = _DECODER.decode(body)
    _demand_unique("$.state.pods", "pod", (pod.uid for pod in state.pods))
    for index, pod in enumerate(state.pods):
        names = (container.name for container in pod.containers)
        _demand_unique(f"$.state.pods[{index}].containers", "container", names)
    read = msgspec.json.decode(body, type=dict[str, Raw])
    for pod, text in zip(
        state.pods, msgspec.json.decode(read["pods"], type=list[Raw]), strict=True
    ):
        pod.__dict__[_TEXT] = text.copy()
    saved = {MEMORY: state.memory}
    parts = {each.name: each.loaded(saved.get(each.name), state.pods) for each in MANAGERS}
    return Checkpoint(
        Ledger.of(state.pods, parts),
        MappingProxyType({name: read[name].copy() for name in read.keys() - _KNOWN}),
        **{field.name: getattr(state, field.name) for field in _BESIDE_LEDGER},
    )


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
    if header.version == VERSION:
        return
    problem = f"format {header.version}, this release reads and writes {VERSION}"
    if header.version > VERSION:
        remedy = "the file is kept aside; go back to the release that wrote it and put it back"
        raise NewerCheckpointError(path, "$.version", problem, remedy)
    remedy = (
        "the file is kept aside; let running pods be admitted again, or go back to the release "
        "that wrote it and put it back"
    )
    raise OlderCheckpointError(path, "$.version", problem, remedy)


def _check_sum(document: _Document, path: Path) -> None:
    computed = _checksum(bytes(document.state))
    if document.checksum != computed:
        raise _damaged(path, "$.checksum", f"says {document.checksum}, the content has {computed}")


def _checksum(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _demand_unique(field: str, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(field, f"{what} {name!r} appears twice")
        seen.add(name)


def _damaged(path: Path, field: str, problem: str) -> UnusableCheckpointError:
    return DamagedCheckpointError(path, field, problem, _RECOVERY)


def _place(message: str) -> tuple[str, str]:
    """Split msgspec's `problem - at `$.place`` into place and problem."""
    problem, found, place = message.rpartition(" - at `")
    return (place.rstrip("`"), problem) if found else ("$", message)


def _shown(value: object) -> str:
    return "nothing" if value is msgspec.UNSET else repr(value)


def _dec_hook(kind: type, value: object) -> Mask:
    if kind is not Mask:
        raise NotImplementedError(f"no value of type {kind.__name__} from JSON")
    if not isinstance(value, str):
        raise TypeError(f"expected a list of ids such as '0-3,8', got {value!r}")
    return Mask.parse(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=plain)
_DECODER: Final = msgspec.json.Decoder(_State, dec_hook=_dec_hook)

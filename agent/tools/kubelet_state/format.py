"""The form of the kubelet's state files: checksums, values as Go writes them, errors.

Files of later kubelets (`StateForm.IN_DATA`) have the state as a JSON text in `data`, which alone
counts, and a checksum of that text in `dataChecksum`. Around `data` stands what kubelets read that
do not know it: the file of the last format without pod-level budgets.

A kubelet checkpoint's checksum is the 32 bit FNV-1a hash of the text that `%#v` of go-spew gives
for the checkpoint with its checksum set to 0 (methods disabled, keys sorted, no addresses and
capacities). A field of a struct carries its type, a value in a map or slice does not.
"""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from sysfs.mask import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


#: A document in the order in which its keys are to be written.
Plain: TypeAlias = "str | int | list[Plain] | dict[str, Plain] | None"

Name = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(ge=0)]
NodeId = Annotated[int, Meta(ge=0, le=MAX_ID)]

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


def plain_of(document: Struct) -> dict[str, Plain]:
    """Return a document in the order of encoding/json: maps by key as text, also by number."""
    plain: dict[str, Plain] = msgspec.to_builtins(document, str_keys=True, order="deterministic")
    return plain


class StateForm(Enum):
    """The forms that the files of the CPU manager and the memory manager have had."""

    #: Of kubelets without `VersionRules.state_is_in_data`, the gate PodLevelResourceManagers off.
    WITHOUT_BUDGETS = auto()
    #: Of these with the gate on.
    WITH_BUDGETS = auto()
    #: Of later kubelets, with the gate on or off.
    IN_DATA = auto()


class StateDocument(Struct):
    """What the files of both managers have beside the state."""

    data: str = ""
    dataChecksum: Size = 0  # noqa: N815  # the file's own name
    checksum: Size = 0

    @property
    def has_data(self) -> bool:
        """Whether the state is in `data`, as a kubelet decides: by either field."""
        return bool(self.data or self.dataChecksum)

    def state(self) -> dict[str, Plain]:
        """Return the state as it is written, without checksums and empty maps of entries."""
        left_out = {"data", "dataChecksum", "checksum"}
        left_out |= {name for name in ("entries", "podEntries") if not getattr(self, name, None)}
        return {name: value for name, value in plain_of(self).items() if name not in left_out}


DocumentT = TypeVar("DocumentT")
StateT = TypeVar("StateT")

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


class FileFormat(Struct, Generic[StateT], frozen=True):
    """The file of one manager, in all of its forms."""

    #: The file as it stands, a subclass of `StateDocument`.
    document: type[Any]
    #: The document of a state, without checksums.
    made: Callable[[StateT], Any]
    #: The state of a document; raises `UnreadableStateFileError` with the path given.
    state: Callable[[Any, Path], StateT]
    #: The fields of a document as its checksum is over them (name, type, text), podEntries last.
    hashed: Callable[[Any], Sequence[tuple[str, str, str]]]
    #: The kubelet's name of the document's type, under which every form is hashed.
    type_name: str
    #: The name under which a kubelet with the gate off accepts a file without budgets, too.
    other_name: str

    def read(self, data: bytes, path: Path) -> StateT:
        """Return the state of a file in any form.

        Where there is `data`, what stands around it does not count, and a kubelet does not fall
        back to that either. A file without a checksum (or 0) is accepted, as the kubelet does.
        `path` is only named in errors. Raises `UnreadableStateFileError`.
        """
        document = parse_json(data, self.document, path)
        if document.has_data:
            return self._in_data(document, path)
        state = self.state(document, path)
        known = [fnv1a_32(text) for text in self._accepted(document)]
        if document.checksum and document.checksum not in known:
            problem = f"says {document.checksum}, the content has {' or '.join(map(str, known))}"
            raise UnreadableStateFileError(path, "$.checksum", problem, DAMAGED)
        return state

    def write(self, state: StateT, form: StateForm) -> bytes:
        """Return the file of a state; raises `ValueError` on budgets in a form without."""
        return self.encode(self.made(state), form)

    def encode(self, document: StateDocument, form: StateForm) -> bytes:
        """Return the bytes of a document with its checksums; raises as `write`."""
        if form is StateForm.IN_DATA:
            whole = self.encode(replace(document, podEntries={}), StateForm.WITHOUT_BUDGETS)
            embedded: dict[str, Plain] = msgspec.json.decode(whole)
            text = go_json(document.state()).decode()
            return go_json({**embedded, "data": text, "dataChecksum": _data_checksum(text)})
        plain = document.state()
        if "podEntries" in plain and form is StateForm.WITHOUT_BUDGETS:
            raise ValueError("a file without budgets has no pod entries")
        return go_json({**plain, "checksum": fnv1a_32(self.hash_text(document, form))})

    def hash_text(self, document: StateDocument, form: StateForm, type_name: str = "") -> str:
        """Return the text that a document's checksum is over, in a form without `data`."""
        fields = self.hashed(document)[: None if form is StateForm.WITH_BUDGETS else -1]
        zero = ("Checksum", "checksum.Checksum", "0")
        return f"(*state.{type_name or self.type_name}){go_struct([*fields, zero])}"

    def _in_data(self, outer: StateDocument, path: Path) -> StateT:
        if not outer.data:
            raise UnreadableStateFileError(path, "$.data", "missing beside dataChecksum", DAMAGED)
        if (found := _data_checksum(outer.data)) != outer.dataChecksum:
            problem = f"says {outer.dataChecksum}, the text of data has {found}"
            raise UnreadableStateFileError(path, "$.dataChecksum", problem, DAMAGED)
        try:
            return self.state(parse_json(outer.data.encode(), self.document, path), path)
        except UnreadableStateFileError as error:
            place = f"$.data{error.field.removeprefix('$')}"
            raise UnreadableStateFileError(path, place, error.problem, error.remedy) from error

    def _accepted(self, document: StateDocument) -> Iterator[str]:
        """Yield the texts that a document's checksum may be over."""
        if "podEntries" not in document.state():
            for name in (self.type_name, self.other_name):
                yield self.hash_text(document, StateForm.WITHOUT_BUDGETS, name)
        yield self.hash_text(document, StateForm.WITH_BUDGETS)


def _data_checksum(text: str) -> int:
    return fnv1a_32(f"(string){text}")


class KubeletStateError(Exception):
    """Base of all errors of this package."""


class UnreadableStateFileError(KubeletStateError):
    """A file is damaged or of an unknown format; `field` is the place in it as a JSON path."""

    def __init__(self, path: Path, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class ReasonsError(KubeletStateError):
    """Something cannot be done for one or more reasons, all of which are in `reasons`."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        if len(reasons) == 1:
            super().__init__(f"{what}: {reasons[0]}")
        else:
            listed = "".join(f"\n  {reason}" for reason in reasons)
            super().__init__(f"{what}, for {len(reasons)} reasons:{listed}")
        self.reasons = tuple(reasons)


class UnfitStateError(ReasonsError):
    """The files contradict themselves, the host or the configuration; nothing was taken over."""


class CannotExportError(ReasonsError):
    """The kubelet would not start with what the ledger holds; nothing was written."""


class NoStateFilesError(KubeletStateError):
    """A directory has none of the files."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        super().__init__(
            f"{directory}: none of {', '.join(names)} is there;"
            " name the kubelet's root directory, usually /var/lib/kubelet"
        )


class StateFileExistsError(KubeletStateError):
    """Files would be overwritten."""

    def __init__(self, paths: Sequence[Path]) -> None:
        named = " and ".join(map(str, paths))
        super().__init__(f"{named}: already there; --force replaces what the kubelet left")


class StateFileIOError(KubeletStateError):
    """An operation on one of the files failed; `path` still is what it was before."""

    def __init__(self, operation: str, path: Path, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(f"{path}: {operation} failed: {reason}; make the directory writable")
        self.errno = error.errno

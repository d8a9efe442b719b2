"""`cpu_manager_state`: its versions, byte for byte (kubelet v1.36, v1.37, cpumanager/state).

| version | written by | entries |
|---|---|---|
| v2 | gate PodLevelResourceManagers off | {pod uid: {container: CPUs}} |
| v3 | gate PodLevelResourceManagers on | v2's and podEntries {pod uid: {"cpuSet": CPUs}} |
| v4 | v1.37 and later, gate on or off | v3's as a text in `data`, v2 around it |

The file does not say its version. `data` or its checksum are v4's alone. The checksum distinguishes
v2 and v3, for it covers the names of the fields. v1, of kubelets up to 1.17, is not read.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.tools.kubelet_state.checksums import (
    DAMAGED,
    Embedding,
    Name,
    Plain,
    Size,
    fnv1a_32,
    go_json,
    go_map,
    go_map_in_order,
    go_struct,
    hash_text,
    parse_json,
    sorted_json,
    state_in_data,
    version_by_checksum,
    with_data,
)
from agent.tools.kubelet_state.errors import UnreadableStateFileError
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FILE_NAME: Final = "cpu_manager_state"


class CpuFileVersion(StrEnum):
    """A version of the file's format."""

    V2 = "v2"
    V3 = "v3"
    V4 = "v4"


class CpuState(Struct, frozen=True):
    """What the CPU manager's file says.

    `default` is the node's shared pool, `containers` the CPUs by pod uid by container name, `pods`
    the CPUs of pod-level budgets by pod uid.
    """

    policy: str
    default: Mask = EMPTY
    containers: Mapping[str, Mapping[str, Mask]] = MappingProxyType({})
    pods: Mapping[str, Mask] = MappingProxyType({})


class PodEntry(Struct, omit_defaults=True):
    """One pod-level budget as it stands in the file."""

    cpuSet: str = ""  # noqa: N815  # the file's own name


class CpuStateDocument(Embedding):
    """The file as it stands: sets are still text."""

    policyName: str = ""  # noqa: N815  # the file's own names
    defaultCpuSet: str = ""  # noqa: N815
    entries: dict[Name, dict[Name, str]] | None = field(default_factory=dict)
    podEntries: dict[Name, PodEntry] | None = field(default_factory=dict)  # noqa: N815
    checksum: Size = 0


def read_cpu_state(data: bytes, path: Path) -> CpuState:
    """Return what a file of any version says.

    `path` is only named in errors. Raises `UnreadableStateFileError`.
    """
    document, root = parse_json(data, CpuStateDocument, path), "$"
    if document.has_data:
        root = "$.data"
        document = state_in_data(document, CpuStateDocument, path)
    else:
        version_by_checksum(document.checksum, _candidates(document, path), path)
    return CpuState(
        policy=document.policyName,
        default=_cpus(document.defaultCpuSet, f"{root}.defaultCpuSet", path),
        containers={
            uid: {
                name: _cpus(text, f"{root}.entries.{uid}.{name}", path)
                for name, text in pod.items()
            }
            for uid, pod in (document.entries or {}).items()
        },
        pods={
            uid: _cpus(entry.cpuSet, f"{root}.podEntries.{uid}.cpuSet", path)
            for uid, entry in (document.podEntries or {}).items()
        },
    )


def cpu_document(state: CpuState) -> CpuStateDocument:
    """Return the document of a state, without its checksum."""
    return CpuStateDocument(
        policyName=state.policy,
        defaultCpuSet=str(state.default),
        entries={
            uid: {name: str(cpus) for name, cpus in pod.items()}
            for uid, pod in state.containers.items()
        },
        podEntries={uid: PodEntry(str(cpus)) for uid, cpus in state.pods.items()},
    )


def write_cpu_state(state: CpuState, version: CpuFileVersion) -> bytes:
    """Return the file of a state, as a kubelet of that version writes it."""
    return encode_cpu_document(cpu_document(state), version)


def encode_cpu_document(document: CpuStateDocument, version: CpuFileVersion) -> bytes:
    """Return the bytes of a document with its checksum. Raises `ValueError` on v3's in v2."""
    if version is CpuFileVersion.V4:
        embedded = _plain_cpu(replace(document, podEntries={}))
        embedded["checksum"] = fnv1a_32(cpu_hash_text(document, CpuFileVersion.V2))
        return with_data(embedded, _plain_cpu(document))
    if document.podEntries and version is not CpuFileVersion.V3:
        raise ValueError(f"version {version} has no pod entries")
    plain = _plain_cpu(document)
    plain["checksum"] = fnv1a_32(cpu_hash_text(document, version))
    return go_json(plain)


def _plain_cpu(document: CpuStateDocument) -> dict[str, Plain]:
    """Return a document as it is written, without its checksum."""
    plain: dict[str, Plain] = {
        "policyName": document.policyName,
        "defaultCpuSet": document.defaultCpuSet,
    }
    if document.entries:
        plain["entries"] = sorted_json(
            {uid: sorted_json({**pod}) for uid, pod in document.entries.items()}
        )
    if document.podEntries:
        plain["podEntries"] = sorted_json(
            {
                uid: {"cpuSet": entry.cpuSet} if entry.cpuSet else {}
                for uid, entry in document.podEntries.items()
            }
        )
    return plain


def cpu_hash_text(
    document: CpuStateDocument, version: CpuFileVersion, type_name: str = "CPUManagerCheckpoint"
) -> str:
    """Return the text that the checksum is over; every version hashes under the same type name."""
    entries = document.entries
    texts = None if entries is None else {uid: go_map(pod) for uid, pod in entries.items()}
    fields = [
        ("PolicyName", "string", document.policyName),
        ("DefaultCPUSet", "string", document.defaultCpuSet),
        ("Entries", "map[string]map[string]string", go_map(texts)),
    ]
    if version is CpuFileVersion.V3:
        fields.append(("PodEntries", "state.PodCPUAssignments", _pod_entries_text(document)))
    return hash_text(type_name, fields)


def _pod_entries_text(document: CpuStateDocument) -> str:
    if document.podEntries is None:
        return go_map(None)
    return go_map({uid: _set_text(Mask.parse(e.cpuSet)) for uid, e in document.podEntries.items()})


def _set_text(cpus: Mask) -> str:
    elements = go_map_in_order((cpu, "{}") for cpu in cpus)
    inner = go_struct([("elems", "map[int]struct {}", elements)])
    return go_struct([("CPUSet", "cpuset.CPUSet", inner)])


def _candidates(document: CpuStateDocument, path: Path) -> Iterator[tuple[CpuFileVersion, str]]:
    """Yield the versions that a document can be of, with their texts.

    A kubelet with the gate off also accepts v2 hashed under its type's own name.
    """
    for uid, entry in (document.podEntries or {}).items():
        # The checksum of v3 is over the CPUs, not over their text.
        _cpus(entry.cpuSet, f"$.podEntries.{uid}.cpuSet", path)
    if not document.podEntries:
        v2 = CpuFileVersion.V2
        yield v2, cpu_hash_text(document, v2)
        yield v2, cpu_hash_text(document, v2, "CPUManagerCheckpointV2")
    yield CpuFileVersion.V3, cpu_hash_text(document, CpuFileVersion.V3)


def _cpus(text: str, field_path: str, path: Path) -> Mask:
    try:
        if text != text.strip():
            raise ValueError(f"{text!r} has white space around it")  # noqa: TRY301  # one handler
        return Mask.parse(text)
    except ValueError as error:
        raise UnreadableStateFileError(path, field_path, str(error), DAMAGED) from error

"""`cpu_manager_state`: its four versions, byte for byte (kubelet v1.36, v1.37, cpumanager/state).

| version | written by | entries |
|---|---|---|
| v1 | kubelets up to 1.17 | {container id: CPUs} |
| v2 | gate PodLevelResourceManagers off | {pod uid: {container: CPUs}} |
| v3 | gate PodLevelResourceManagers on | v2's and podEntries {pod uid: {"cpuSet": CPUs}} |
| v4 | v1.37 and later, gate on or off | v3's as a text in `data`, v2 around it |

The file does not say its version. `data` or its checksum are v4's alone. The checksum distinguishes
v2 and v3, for it covers the names of the fields.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, cast

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

#: Whose a container id is: (pod uid, container name), by container id.
ContainerIds: TypeAlias = "Mapping[str, tuple[str, str]]"

FILE_NAME: Final = "cpu_manager_state"


class CpuFileVersion(StrEnum):
    """A version of the file's format."""

    V1 = "v1"
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
    """The file as it stands: sets are still text. Entries are by container id, or by pod uid."""

    policyName: str = ""  # noqa: N815  # the file's own names
    defaultCpuSet: str = ""  # noqa: N815
    entries: dict[Name, str | dict[Name, str]] | None = field(default_factory=dict)
    podEntries: dict[Name, PodEntry] | None = field(default_factory=dict)  # noqa: N815
    checksum: Size = 0


def read_cpu_state(data: bytes, path: Path, containers: ContainerIds | None = None) -> CpuState:
    """Return what a file of any version says; `containers` is needed for v1 alone.

    `path` is only named in errors. Raises `UnreadableStateFileError`.
    """
    document, root = parse_json(data, CpuStateDocument, path), "$"
    if document.has_data:
        root = "$.data"
        document = state_in_data(document, CpuStateDocument, path)
        if str in _kinds(document):
            problem = "container ids stand in place of pod uids"
            raise UnreadableStateFileError(path, f"{root}.entries", problem, DAMAGED)
        flat = False
    else:
        version = version_by_checksum(document.checksum, _candidates(document, path), path)
        flat = version is CpuFileVersion.V1
    entries = _named(document, containers, path) if flat else _by_pod(document)
    return CpuState(
        policy=document.policyName,
        default=_cpus(document.defaultCpuSet, f"{root}.defaultCpuSet", path),
        containers={
            uid: {
                name: _cpus(text, f"{root}.entries.{uid}.{name}", path)
                for name, text in pod.items()
            }
            for uid, pod in entries.items()
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
    """Return the bytes of a document with its checksum. Raises `ValueError` on v3's in v1 or v2."""
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
            {key: _entry_json(entry) for key, entry in document.entries.items()}
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
    flat = version is CpuFileVersion.V1
    entries = document.entries
    fields = [
        ("PolicyName", "string", document.policyName),
        ("DefaultCPUSet", "string", document.defaultCpuSet),
        (
            "Entries",
            "map[string]string" if flat else "map[string]map[string]string",
            go_map(None if entries is None else {k: _entry_text(v) for k, v in entries.items()}),
        ),
    ]
    if version is CpuFileVersion.V3:
        fields.append(("PodEntries", "state.PodCPUAssignments", _pod_entries_text(document)))
    return hash_text(type_name, fields)


def _entry_json(entry: str | dict[str, str]) -> Plain:
    return entry if isinstance(entry, str) else sorted_json(cast("dict[str, Plain]", entry))


def _entry_text(entry: str | dict[str, str]) -> str:
    return entry if isinstance(entry, str) else go_map(entry)


def _pod_entries_text(document: CpuStateDocument) -> str:
    if document.podEntries is None:
        return go_map(None)
    return go_map({uid: _set_text(Mask.parse(e.cpuSet)) for uid, e in document.podEntries.items()})


def _set_text(cpus: Mask) -> str:
    elements = go_map_in_order((cpu, "{}") for cpu in cpus)
    inner = go_struct([("elems", "map[int]struct {}", elements)])
    return go_struct([("CPUSet", "cpuset.CPUSet", inner)])


def _candidates(document: CpuStateDocument, path: Path) -> Iterator[tuple[CpuFileVersion, str]]:
    """Yield the versions that a document of this shape can be of, with their texts.

    A kubelet with the gate off also accepts v2 hashed under its type's own name.
    """
    kinds = _kinds(document)
    if len(kinds) > 1:
        problem = "some are by container id, some by pod uid"
        raise UnreadableStateFileError(path, "$.entries", problem, DAMAGED)
    if document.podEntries and str in kinds:
        problem = "stands beside entries by container id; no version of the file has both"
        raise UnreadableStateFileError(path, "$.podEntries", problem, DAMAGED)
    for uid, entry in (document.podEntries or {}).items():
        # The checksum of v3 is over the CPUs, not over their text.
        _cpus(entry.cpuSet, f"$.podEntries.{uid}.cpuSet", path)
    if not document.podEntries and str not in kinds:
        v2 = CpuFileVersion.V2
        yield v2, cpu_hash_text(document, v2)
        yield v2, cpu_hash_text(document, v2, "CPUManagerCheckpointV2")
    if str not in kinds:
        yield CpuFileVersion.V3, cpu_hash_text(document, CpuFileVersion.V3)
    if not document.podEntries and dict not in kinds:
        yield CpuFileVersion.V1, cpu_hash_text(document, CpuFileVersion.V1)


def _kinds(document: CpuStateDocument) -> set[type]:
    """Return what the entries are: texts by container id, or maps by pod uid."""
    return {type(entry) for entry in (document.entries or {}).values()}


def _by_pod(document: CpuStateDocument) -> dict[str, dict[str, str]]:
    # The version says that no entry is by container id.
    return cast("dict[str, dict[str, str]]", document.entries or {})


def _named(
    document: CpuStateDocument, containers: ContainerIds | None, path: Path
) -> dict[str, dict[str, str]]:
    """Return v1's entries by pod and container."""
    named: dict[str, dict[str, str]] = {}
    for identifier, text in cast("dict[str, str]", document.entries or {}).items():
        owner = (containers or {}).get(identifier)
        if owner is None:
            raise UnreadableStateFileError(
                path,
                f"$.entries.{identifier}",
                "version v1 names containers by id, and it is not known whose this is",
                "list it with --containers FILE (crictl ps -a -o json)",
            )
        named.setdefault(owner[0], {})[owner[1]] = text
    return named


def _cpus(text: str, field_path: str, path: Path) -> Mask:
    try:
        if text != text.strip():
            raise ValueError(f"{text!r} has white space around it")  # noqa: TRY301  # one handler
        return Mask.parse(text)
    except ValueError as error:
        raise UnreadableStateFileError(path, field_path, str(error), DAMAGED) from error

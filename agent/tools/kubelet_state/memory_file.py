"""`memory_manager_state`: its three versions, byte for byte (kubelet v1.36 and v1.37).

Version v1 (gate PodLevelResourceManagers off) holds the machine's memory by node and the blocks of
containers, v2 (gate on) pod-level budgets in podEntries as well. As with the CPU manager's file,
the checksum distinguishes the two, and v3 (v1.37 and later, gate on or off) has the state as a text
in `data`, with v1 around it (memorymanager/state).
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.managers.allocations.allocation import MemoryBlock
from agent.tools.kubelet_state.checksums import (
    Embedding,
    Name,
    NodeId,
    Plain,
    Size,
    fnv1a_32,
    go_json,
    go_map,
    go_map_in_order,
    go_slice,
    go_struct,
    hash_text,
    parse_json,
    sorted_json,
    state_in_data,
    version_by_checksum,
    with_data,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

FILE_NAME: Final = "memory_manager_state"


class MemoryFileVersion(StrEnum):
    """A version of the file's format."""

    V1 = "v1"
    V2 = "v2"
    V3 = "v3"


class MemoryTable(Struct, frozen=True):
    """The bytes of one memory type on one node."""

    total: Size = 0
    systemReserved: Size = 0  # noqa: N815  # the file's own name
    allocatable: Size = 0
    reserved: Size = 0
    free: Size = 0


class MemoryNode(Struct, frozen=True):
    """One node: how many blocks touch it, the group of nodes it serves with, bytes by type."""

    assignments: int
    cells: Mask
    tables: Mapping[str, MemoryTable]


class MemoryState(Struct, frozen=True):
    """What the memory manager's file says; blocks are by pod uid (and by container name)."""

    policy: str
    nodes: Mapping[int, MemoryNode] = MappingProxyType({})
    containers: Mapping[str, Mapping[str, tuple[MemoryBlock, ...]]] = MappingProxyType({})
    pods: Mapping[str, tuple[MemoryBlock, ...]] = MappingProxyType({})


class BlockEntry(Struct):
    """One block as it stands in the file."""

    numaAffinity: list[NodeId] | None = None  # noqa: N815  # the file's own name
    type: str = ""
    size: Size = 0


class PodBlocks(Struct):
    """One pod-level budget as it stands in the file."""

    memoryBlocks: list[BlockEntry] | None = None  # noqa: N815  # the file's own name


class NodeEntry(Struct):
    """One node as it stands in the file."""

    numberOfAssignments: Size = 0  # noqa: N815  # the file's own names
    memoryMap: dict[Name, MemoryTable] | None = None  # noqa: N815
    cells: list[NodeId] | None = None


class MemoryStateDocument(Embedding):
    """The file as it stands."""

    policyName: str = ""  # noqa: N815  # the file's own names
    machineState: dict[NodeId, NodeEntry] | None = field(default_factory=dict)  # noqa: N815
    entries: dict[Name, dict[Name, list[BlockEntry] | None]] | None = field(default_factory=dict)
    podEntries: dict[Name, PodBlocks] | None = field(default_factory=dict)  # noqa: N815
    checksum: Size = 0


def read_memory_state(data: bytes, path: Path) -> MemoryState:
    """Return what a file of any version says.

    `path` is only named in errors. Raises `UnreadableStateFileError`.
    """
    document = parse_json(data, MemoryStateDocument, path)
    if document.has_data:
        document = state_in_data(document, MemoryStateDocument, path)
    else:
        version_by_checksum(document.checksum, _candidates(document), path)
    return MemoryState(
        policy=document.policyName,
        nodes={node: _node(entry) for node, entry in (document.machineState or {}).items()},
        containers={
            uid: {name: _blocks(blocks) for name, blocks in pod.items()}
            for uid, pod in (document.entries or {}).items()
        },
        pods={
            uid: _blocks(entry.memoryBlocks) for uid, entry in (document.podEntries or {}).items()
        },
    )


def memory_document(state: MemoryState) -> MemoryStateDocument:
    """Return the document of a state, without its checksum."""
    return MemoryStateDocument(
        policyName=state.policy,
        machineState={
            node: NodeEntry(facts.assignments, dict(facts.tables), list(facts.cells))
            for node, facts in state.nodes.items()
        },
        entries={
            uid: {name: _block_entries(blocks) for name, blocks in pod.items()}
            for uid, pod in state.containers.items()
        },
        podEntries={uid: PodBlocks(_block_entries(blocks)) for uid, blocks in state.pods.items()},
    )


def write_memory_state(state: MemoryState, version: MemoryFileVersion) -> bytes:
    """Return the file of a state, as a kubelet of that version writes it."""
    return encode_memory_document(memory_document(state), version)


def encode_memory_document(document: MemoryStateDocument, version: MemoryFileVersion) -> bytes:
    """Return the bytes of a document with its checksum. Raises `ValueError` on v2's in v1."""
    if version is MemoryFileVersion.V3:
        embedded = _plain_memory(replace(document, podEntries={}))
        embedded["checksum"] = fnv1a_32(memory_hash_text(document, MemoryFileVersion.V1))
        return with_data(embedded, _plain_memory(document))
    if document.podEntries and version is not MemoryFileVersion.V2:
        raise ValueError(f"version {version} has no pod entries")
    plain = _plain_memory(document)
    plain["checksum"] = fnv1a_32(memory_hash_text(document, version))
    return go_json(plain)


def _plain_memory(document: MemoryStateDocument) -> dict[str, Plain]:
    """Return a document as it is written, without its checksum."""
    nodes = document.machineState or {}
    plain: dict[str, Plain] = {
        "policyName": document.policyName,
        "machineState": sorted_json({str(node): _node_json(e) for node, e in nodes.items()}),
    }
    if document.entries:
        plain["entries"] = sorted_json(
            {
                uid: sorted_json({name: _blocks_json(blocks) for name, blocks in pod.items()})
                for uid, pod in document.entries.items()
            }
        )
    if document.podEntries:
        plain["podEntries"] = sorted_json(
            {
                uid: {"memoryBlocks": _blocks_json(entry.memoryBlocks)}
                for uid, entry in document.podEntries.items()
            }
        )
    return plain


def memory_hash_text(
    document: MemoryStateDocument,
    version: MemoryFileVersion,
    type_name: str = "MemoryManagerCheckpoint",
) -> str:
    """Return the text that the checksum is over; v1 and v2 hash under the same type name."""
    fields = [
        ("PolicyName", "string", document.policyName),
        ("MachineState", "state.NUMANodeMap", _machine_text(document)),
        ("Entries", "state.ContainerMemoryAssignments", _entries_text(document)),
    ]
    if version is MemoryFileVersion.V2:
        fields.append(("PodEntries", "state.PodMemoryAssignments", _pod_entries_text(document)))
    return hash_text(type_name, fields)


def _candidates(document: MemoryStateDocument) -> Iterator[tuple[MemoryFileVersion, str]]:
    if not document.podEntries:
        v1 = MemoryFileVersion.V1
        yield v1, memory_hash_text(document, v1)
        yield v1, memory_hash_text(document, v1, "MemoryManagerCheckpointV1")
    yield MemoryFileVersion.V2, memory_hash_text(document, MemoryFileVersion.V2)


def _node(entry: NodeEntry) -> MemoryNode:
    cells = Mask.from_ids(entry.cells or ())
    return MemoryNode(entry.numberOfAssignments, cells, entry.memoryMap or {})


def _blocks(entries: Iterable[BlockEntry] | None) -> tuple[MemoryBlock, ...]:
    return tuple(
        MemoryBlock(entry.type, entry.size, Mask.from_ids(entry.numaAffinity or ()))
        for entry in entries or ()
    )


def _block_entries(blocks: Iterable[MemoryBlock]) -> list[BlockEntry]:
    return [BlockEntry(list(block.nodes), block.type, block.size) for block in blocks]


def _node_json(entry: NodeEntry) -> Plain:
    return {
        "numberOfAssignments": entry.numberOfAssignments,
        "memoryMap": sorted_json(
            {name: _table_json(table) for name, table in (entry.memoryMap or {}).items()}
        ),
        "cells": list(entry.cells or ()),
    }


def _table_json(table: MemoryTable) -> Plain:
    return {
        "total": table.total,
        "systemReserved": table.systemReserved,
        "allocatable": table.allocatable,
        "reserved": table.reserved,
        "free": table.free,
    }


def _blocks_json(entries: Iterable[BlockEntry] | None) -> Plain:
    if entries is None:
        return None
    return [
        {"numaAffinity": list(entry.numaAffinity or ()), "type": entry.type, "size": entry.size}
        for entry in entries
    ]


def _machine_text(document: MemoryStateDocument) -> str:
    if document.machineState is None:
        return go_map(None)
    nodes = sorted(document.machineState.items())
    return go_map_in_order((node, f"<*>{_node_text(entry)}") for node, entry in nodes)


def _node_text(entry: NodeEntry) -> str:
    tables = entry.memoryMap
    shown = None if tables is None else {n: f"<*>{_table_text(t)}" for n, t in tables.items()}
    return go_struct(
        [
            ("NumberOfAssignments", "int", str(entry.numberOfAssignments)),
            ("MemoryMap", "map[v1.ResourceName]*state.MemoryTable", go_map(shown)),
            ("Cells", "[]int", go_slice(entry.cells)),
        ]
    )


def _table_text(table: MemoryTable) -> str:
    return go_struct(
        (name, "uint64", str(size))
        for name, size in (
            ("TotalMemSize", table.total),
            ("SystemReserved", table.systemReserved),
            ("Allocatable", table.allocatable),
            ("Reserved", table.reserved),
            ("Free", table.free),
        )
    )


def _entries_text(document: MemoryStateDocument) -> str:
    if document.entries is None:
        return go_map(None)
    return go_map(
        {
            uid: go_map({name: _blocks_text(blocks) for name, blocks in pod.items()})
            for uid, pod in document.entries.items()
        }
    )


def _pod_entries_text(document: MemoryStateDocument) -> str:
    if document.podEntries is None:
        return go_map(None)
    return go_map(
        {
            uid: go_struct([("MemoryBlocks", "[]state.Block", _blocks_text(entry.memoryBlocks))])
            for uid, entry in document.podEntries.items()
        }
    )


def _blocks_text(entries: Iterable[BlockEntry] | None) -> str:
    return go_slice(None if entries is None else [_block_text(entry) for entry in entries])


def _block_text(entry: BlockEntry) -> str:
    return go_struct(
        [
            ("NUMAAffinity", "[]int", go_slice(entry.numaAffinity)),
            ("Type", "v1.ResourceName", entry.type),
            ("Size", "uint64", str(entry.size)),
        ]
    )

"""`memory_manager_state`, byte for byte (kubelet v1.36 and v1.37, memorymanager/state).

Version v1 (`StateForm.WITHOUT_BUDGETS`) holds the machine's memory by node and the blocks of
containers, v2 (`WITH_BUDGETS`) pod-level budgets in podEntries as well, v3 (`IN_DATA`) the state as
a text in `data`, with v1 around it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.managers.allocation import MemoryBlock
from agent.pods.model import MEMORY
from agent.tools.kubelet_state.cpu import missing_gate, wrong_policy
from agent.tools.kubelet_state.format import (
    FileFormat,
    Name,
    NodeId,
    Size,
    StateDocument,
    go_map,
    go_map_in_order,
    go_slice,
    go_struct,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.managers.memory.state import MemoryFacts
    from agent.managers.rules import EffectivePolicy


MEMORY_FILE: Final = "memory_manager_state"


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


class MemoryStateDocument(StateDocument):
    """The file as it stands."""

    policyName: str = ""  # noqa: N815  # the file's own names
    machineState: dict[NodeId, NodeEntry] | None = field(default_factory=dict)  # noqa: N815
    entries: dict[Name, dict[Name, list[BlockEntry] | None]] | None = field(default_factory=dict)
    podEntries: dict[Name, PodBlocks] | None = field(default_factory=dict)  # noqa: N815


def _state(document: MemoryStateDocument, _: Path) -> MemoryState:
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


def _document(state: MemoryState) -> MemoryStateDocument:
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


def _hashed(document: MemoryStateDocument) -> list[tuple[str, str, str]]:
    return [
        ("PolicyName", "string", document.policyName),
        ("MachineState", "state.NUMANodeMap", _machine_text(document)),
        ("Entries", "state.ContainerMemoryAssignments", _entries_text(document)),
        ("PodEntries", "state.PodMemoryAssignments", _pod_entries_text(document)),
    ]


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


MEMORY_FORMAT: Final = FileFormat(
    MemoryStateDocument,
    _document,
    _state,
    _hashed,
    "MemoryManagerCheckpoint",
    "MemoryManagerCheckpointV1",
)

_UINT64: Final = 1 << 64


def memory_problems(rules: EffectivePolicy, state: MemoryState) -> tuple[str, ...]:
    """Return why a state cannot be imported, one sentence each; empty if it can.

    The checks are those of the kubelet's start (v1.36, memorymanager/policy_static.go,
    validateState): the machine's memory must be the one that this host has, and the charge of every
    group of nodes the sum of the blocks on it. How a charge is divided over a group's members is
    history and not checked.
    """
    configured = str(rules.policy.memory.policy)
    if state.policy != configured:
        return (wrong_policy(state.policy, "memoryManagerPolicy", configured),)
    if not rules.static_memory:
        pods = sorted({*state.containers, *state.pods})
        return tuple(f"pod {uid} has pinned memory under policy {configured}" for uid in pods)
    if is_fresh(state):
        return ()
    if not state.nodes:
        return ("machineState is empty although containers hold memory",)
    unknown = tuple(_unknown_places(rules.memory, state))
    differences = unknown or (
        *missing_gate(rules, state.pods),
        *_machine_differences(rules.memory, state),
    )
    # What is charged is compared node by node, which says nothing where these are others.
    if unknown or state.nodes.keys() != set(rules.memory.nodes):
        return differences
    return (*differences, *_charge_differences(state))


def with_memory_of_now(
    rules: EffectivePolicy, state: MemoryState
) -> tuple[MemoryState, tuple[str, ...]]:
    """Return a state with the amounts of memory that this host has now, and notes of the others.

    What the kernel leaves of a node's memory differs from boot to boot by some MiB, and a kubelet
    does not start then (kubernetes/kubernetes#131253). What is charged stays, and so does a table
    that contradicts itself, and everything of huge pages.
    """
    facts, notes = rules.memory, []
    nodes = dict(state.nodes)
    for number in sorted(nodes.keys() & set(facts.nodes)) if rules.static_memory else ():
        node, total = nodes[number], facts.total[number].get(MEMORY)
        table = node.tables.get(MEMORY)
        if table is None or total is None or table.total == total or not _adds_up(node.tables):
            continue
        allocatable = (table.allocatable + total - table.total) % _UINT64
        free = (allocatable - table.reserved) % _UINT64
        now = replace(table, total=total, allocatable=allocatable, free=free)
        nodes[number] = replace(node, tables={**node.tables, MEMORY: now})
        notes.append(
            f"node {number} has {total} bytes of memory; it had {table.total} when the kubelet "
            "wrote its state"
        )
    return replace(state, nodes=nodes), tuple(notes)


def _adds_up(tables: Mapping[str, MemoryTable]) -> bool:
    reserved = {name: table.systemReserved for name, table in tables.items()}
    own = allocatable_bytes({name: table.total for name, table in tables.items()}, reserved)
    table = tables[MEMORY]
    free = (table.allocatable - table.reserved) % _UINT64
    return (table.allocatable, table.free) == (own[MEMORY], free)


def is_fresh(state: MemoryState) -> bool:
    """Return whether nothing was ever handed out: the kubelet fills in the machine at its start."""
    return not (state.nodes or state.containers)


def charged_blocks(state: MemoryState) -> Iterator[MemoryBlock]:
    """Yield the blocks that are charged: a pod's budget where it has one, else its containers'.

    A budget whose pod has no containers left is charged nowhere; the kubelet passes it over.
    """
    for uid, containers in state.containers.items():
        blocks = state.pods.get(uid)
        if blocks:
            yield from blocks
        else:
            for own in containers.values():
                yield from own


def allocatable_bytes(total: Mapping[str, int], reserved: Mapping[str, int]) -> dict[str, int]:
    """Return what the kubelet says that pods can have of a node, in bytes by memory type.

    It computes with unsigned numbers: reservations beyond the total come out as some 16 EiB.
    """
    pages = sum(size for name, size in total.items() if name != MEMORY)
    return {
        name: (size - reserved.get(name, 0) - (pages if name == MEMORY else 0)) % _UINT64
        for name, size in total.items()
    }


def _unknown_places(facts: MemoryFacts, state: MemoryState) -> Iterator[str]:
    for who, blocks in _owners(state):
        for block in blocks:
            if not block.nodes:
                yield f"{who} holds {block.size} bytes of {block.type} on no node"
            if unknown := block.nodes - facts.mask:
                yield f"{who} holds {block.type} on nodes {unknown}, which this host does not have"
            for node in block.nodes & facts.mask:
                if block.type not in facts.total[node]:
                    yield f"{who} holds {block.type} on node {node}, which has no such memory"


def _owners(state: MemoryState) -> Iterator[tuple[str, tuple[MemoryBlock, ...]]]:
    for uid, containers in sorted(state.containers.items()):
        for name, blocks in sorted(containers.items()):
            yield f"container {name} of pod {uid}", blocks
    for uid, blocks in sorted(state.pods.items()):
        yield f"the budget of pod {uid}", blocks


def _machine_differences(facts: MemoryFacts, state: MemoryState) -> Iterator[str]:
    if gone := sorted(state.nodes.keys() - set(facts.nodes)):
        yield f"machineState has nodes {gone}, which this host does not have"
    if new := sorted(set(facts.nodes) - state.nodes.keys()):
        yield f"machineState lacks nodes {new} of this host"
    for node in sorted(state.nodes.keys() & set(facts.nodes)):
        expected = allocatable_bytes(facts.total[node], facts.reserved[node])
        tables = state.nodes[node].tables
        if tables.keys() != expected.keys():
            yield f"node {node} has {_names(tables)}, on this host it has {_names(expected)}"
        for name in sorted(tables.keys() & expected.keys()):
            table = tables[name]
            yield from _differ(node, name, "total", table.total, facts.total[node][name])
            own = facts.reserved[node][name]
            yield from _differ(node, name, "systemReserved", table.systemReserved, own)
            yield from _differ(node, name, "allocatable", table.allocatable, expected[name])
            yield from _rest(node, name, table)


def _differ(node: int, name: str, what: str, found: int, expected: int) -> Iterator[str]:
    if found != expected:
        yield (
            f"node {node}: {what} of {name} is {found} bytes, by this host and its"
            f" reservedMemory it is {expected}"
        )


def _rest(node: int, name: str, table: MemoryTable) -> Iterator[str]:
    if table.free != (table.allocatable - table.reserved) % _UINT64:
        yield (
            f"node {node}: {table.free} bytes of {name} are free, but {table.allocatable}"
            f" allocatable less {table.reserved} reserved are not that"
        )
    elif table.reserved > table.allocatable:
        yield f"node {node}: {table.reserved} of {table.allocatable} bytes of {name} are reserved"


def _charge_differences(state: MemoryState) -> Iterator[str]:
    blocks = tuple(charged_blocks(state))
    for node, facts in sorted(state.nodes.items()):
        here = [block for block in blocks if node in block.nodes]
        if facts.assignments != len(here):
            counted = facts.assignments
            yield f"node {node} counts {counted} assignments, {len(here)} blocks are there"
        groups = {block.nodes for block in here} or {Mask.of(node)}
        if facts.cells not in groups:
            listed = " or ".join(sorted(map(str, groups)))
            yield f"node {node} serves with cells {facts.cells}, its blocks are on {listed}"
    for group in _groups(blocks, state.nodes):
        yield from _group_differences(group, blocks, state.nodes)


def _group_differences(
    group: Mask, blocks: Iterable[MemoryBlock], nodes: Mapping[int, MemoryNode]
) -> Iterator[str]:
    expected: dict[str, int] = {}
    for block in blocks:
        if block.nodes & group:
            expected[block.type] = expected.get(block.type, 0) + block.size
    found: dict[str, int] = {}
    for node in group:
        for name, table in nodes[node].tables.items():
            found[name] = found.get(name, 0) + table.reserved
    for name in sorted(found.keys() | expected.keys()):
        had, has = found.get(name, 0), expected.get(name, 0)
        if had != has:
            yield f"nodes {group}: {had} bytes of {name} are reserved, their blocks sum to {has}"


def _groups(blocks: Iterable[MemoryBlock], nodes: Iterable[int]) -> list[Mask]:
    """Return the sets of nodes that blocks connect, nodes without blocks on their own."""
    groups: list[Mask] = [Mask.of(node) for node in nodes]
    for block in blocks:
        joined = block.nodes
        apart = []
        for group in groups:
            if group & joined:
                joined |= group
            else:
                apart.append(group)
        groups = [*apart, joined & Mask.from_ids(nodes)]
    return [group for group in groups if group]


def _names(tables: Iterable[str]) -> str:
    return ", ".join(sorted(tables)) or "no memory"

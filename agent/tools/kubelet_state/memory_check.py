"""Checks a memory manager's state against the host, the configuration and itself.

The checks are those of the kubelet's start (v1.36, memorymanager/policy_static.go, validateState):
the machine's memory must be the one that this host has, and the charge of every group of nodes the
sum of the blocks on it. How a charge is divided over a group's members is history and not checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import MEMORY
from agent.tools.kubelet_state.cpu_check import wrong_policy
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocations.allocation import MemoryBlock
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.memory.state import MemoryFacts
    from agent.tools.kubelet_state.memory_file import MemoryNode, MemoryState, MemoryTable

_UINT64: Final = 1 << 64


def memory_problems(rules: EffectivePolicy, state: MemoryState) -> tuple[str, ...]:
    """Return why a state cannot be imported, one sentence each; empty if it can."""
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
        *_gate(rules, state),
        *_machine_differences(rules.memory, state),
    )
    # What is charged is compared node by node, which says nothing where these are others.
    if unknown or state.nodes.keys() != set(rules.memory.nodes):
        return differences
    return (*differences, *_charge_differences(state))


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


def _gate(rules: EffectivePolicy, state: MemoryState) -> Iterator[str]:
    if state.pods and not rules.policy.pod_level_managers:
        named = ", ".join(sorted(state.pods))
        yield (
            f"podEntries: pod-level budgets of {named} need"
            " featureGates.PodLevelResourceManagers: true, as the kubelet had it"
        )


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

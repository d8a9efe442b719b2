"""Taking a ledger over from a checkpoint: grants are facts, what follows from them is reckoned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.managers.memory_state import charge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.ledger import Ledger, MemoryBlock, NodeMemory, PodGrant
    from agent.managers.rules import Rules


def restored(rules: Rules, ledger: Ledger) -> Ledger:
    """Return a saved ledger as the rules in force see it; every grant is kept as it is.

    The charge by node is kept where it is of the same nodes and memory types, for its division
    over groups of nodes is history. Otherwise (another memory policy, another machine) it is made
    anew from the grants, leaving out what the machine no longer has.
    """
    fresh = rules.empty_ledger().memory
    if _same_shape(fresh, ledger.memory):
        return ledger
    if not fresh:
        return replace(ledger, memory=fresh)
    charged: Mapping[int, NodeMemory] = fresh
    for grant in ledger.grants.values():
        for block in _charged_blocks(grant):
            if _fits(rules, block):
                charged = charge(rules.memory, charged, block)
    return replace(ledger, memory=charged)


def _same_shape(fresh: Mapping[int, NodeMemory], saved: Mapping[int, NodeMemory]) -> bool:
    return fresh.keys() == saved.keys() and all(
        saved[node].reserved.keys() <= fresh[node].reserved.keys() for node in fresh
    )


def _charged_blocks(grant: PodGrant) -> Iterator[MemoryBlock]:
    if grant.memory:
        yield from grant.memory
        return
    for container in grant.containers:
        yield from container.memory


def _fits(rules: Rules, block: MemoryBlock) -> bool:
    allocatable = rules.memory.allocatable
    return all(node in allocatable and block.type in allocatable[node] for node in block.nodes)

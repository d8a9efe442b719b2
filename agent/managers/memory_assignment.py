"""Giving memory to a container or a pod, and what its init containers leave to be used again.

The memory manager's static policy (KEP-1769; kubelet v1.36, Allocate and AllocatePod).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.ledger import MemoryBlock
from agent.managers.errors import (
    CannotExtendHintError,
    HintViolatesGroupsError,
    MemoryDemand,
    NoDefaultHintError,
    NotPreferredDefaultHintError,
    NotPreferredExtensionError,
)
from agent.managers.memory_hints import (
    NOTHING_REUSABLE,
    best_hint,
    fitting_hints,
    require_known_types,
)
from agent.managers.memory_state import charge, free_memory, release
from sysfs.mask import Mask, iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.ledger import NodeMemory
    from agent.managers.hints import Hint
    from agent.managers.memory_hints import Reusable
    from agent.managers.memory_state import MemoryFacts


def assign(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    hint: Hint,
    reusable: Reusable = NOTHING_REUSABLE,
) -> tuple[tuple[MemoryBlock, ...], Mapping[int, NodeMemory]]:
    """Return the blocks that serve `requests` (bytes by type) and the charge with them.

    The nodes are those of the hint; without any, the best that the memory allows; where too
    little is free there, the best larger mask. Blocks hold the whole request, but only what
    exceeds `reusable` on exactly these nodes is charged. No request gets no blocks. Raises
    `UnknownMemoryTypeError` for a huge page size that no node has, otherwise the
    `MemoryAssignmentError` that says which step failed; nothing is changed then.
    """
    if not requests:
        return (), state
    require_known_types(facts, requests)
    demand = MemoryDemand(requests, {name: free_memory(facts, state, name) for name in requests})
    nodes = _placement(facts, state, demand, hint, reusable)
    blocks = tuple(MemoryBlock(name, size, Mask(nodes)) for name, size in sorted(requests.items()))
    for block in blocks:
        newly_taken = max(block.size - reusable.get((nodes, block.type), 0), 0)
        state = charge(facts, state, MemoryBlock(block.type, newly_taken, block.nodes))
    return blocks, state


def reusable_after(
    reusable: Reusable, blocks: Iterable[MemoryBlock], *, standard_init: bool
) -> dict[tuple[int, str], int]:
    """Return what later containers of the pod may use again, once a container has its blocks.

    A standard init container offers what it has (several offer the largest, they run one after
    the other); sidecars and apps use the offer up.
    """
    left = dict(reusable)
    for block in blocks:
        key = (block.nodes.bits, block.type)
        offered = left.get(key, 0)
        if standard_init:
            left[key] = max(offered, block.size)
        elif offered:
            left[key] = max(offered - block.size, 0)
    return left


def shrink_reused(
    earlier: Mapping[str, Sequence[MemoryBlock]], blocks: Iterable[MemoryBlock]
) -> dict[str, tuple[MemoryBlock, ...]]:
    """Take from earlier standard init containers what a later container of the pod reuses.

    `earlier` are their blocks by name, in order. A block may shrink to size 0 and stays, because
    it counts as an assignment of its nodes. Thereby the blocks of a pod sum up to its charge.
    """
    result = {name: tuple(held) for name, held in earlier.items()}
    for block in blocks:
        open_size = block.size
        for name, held in result.items():
            result[name], open_size = _shrink(held, block, open_size)
    return result


def release_finished(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    earlier: Iterable[Sequence[MemoryBlock]],
) -> Mapping[int, NodeMemory]:
    """Return the charge once a later container started: `earlier` init containers' blocks go.

    `earlier` are the blocks of the standard init containers before the started one. Not for pods
    with a pod-level budget: theirs stays whole until the pod ends (KEP-5526).
    """
    for blocks in earlier:
        state = release(facts, state, blocks)
    return state


def _placement(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    demand: MemoryDemand,
    hint: Hint,
    reusable: Reusable,
) -> int:
    own: tuple[Hint, ...] | None = None
    nodes, preferred = hint
    if nodes is None:
        own = fitting_hints(facts, state, demand.requests, reusable)
        if not own:
            raise NoDefaultHintError(demand)
        nodes, default_preferred = best_hint(own)
        if preferred and not default_preferred:
            raise NotPreferredDefaultHintError(demand)
    if nodes is None or not _is_enough(demand, nodes):
        own = fitting_hints(facts, state, demand.requests, reusable) if own is None else own
        nodes = _extended(own, nodes or 0, demand, preferred=preferred)
    if _violates_groups(state, nodes):
        raise HintViolatesGroupsError(demand, nodes)
    return nodes


def _extended(own: Sequence[Hint], nodes: int, demand: MemoryDemand, *, preferred: bool) -> int:
    larger = [hint for hint in own if hint.nodes is not None and not nodes & ~hint.nodes]
    if not larger:
        raise CannotExtendHintError(demand, nodes)
    best = best_hint(larger)
    if preferred and not best.preferred:
        raise NotPreferredExtensionError(demand, nodes)
    return best.nodes or 0


def _is_enough(demand: MemoryDemand, nodes: int) -> bool:
    return all(
        sum(demand.free[name][node] for node in iter_bits(nodes)) >= size
        for name, size in demand.requests.items()
    )


def _violates_groups(state: Mapping[int, NodeMemory], nodes: int) -> bool:
    """Tell whether several nodes would serve together of which one is otherwise engaged."""
    if nodes.bit_count() == 1:
        return False
    return any(
        state[node].assignments and state[node].cells.bits != nodes for node in iter_bits(nodes)
    )


def _shrink(
    held: tuple[MemoryBlock, ...], block: MemoryBlock, size: int
) -> tuple[tuple[MemoryBlock, ...], int]:
    shrunk = []
    for earlier in held:
        reused = 0
        if (earlier.type, earlier.nodes) == (block.type, block.nodes):
            reused = min(earlier.size, size)
        size -= reused
        shrunk.append(MemoryBlock(earlier.type, earlier.size - reused, earlier.nodes))
    return tuple(shrunk), size

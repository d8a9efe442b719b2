"""Allocation of memory to containers and pods, and its reuse after init containers end.

The memory manager's static policy (KEP-1769; kubelet v1.36, Allocate and AllocatePod).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.managers.allocations.allocation import MemoryBlock
from agent.managers.errors import (
    CannotExtendHintError,
    HintViolatesGroupsError,
    MemoryDemand,
    NoDefaultHintError,
    NotPreferredDefaultHintError,
    NotPreferredExtensionError,
    nodes_text,
)
from agent.managers.memory.hints import (
    NOTHING_REUSABLE,
    best_hint,
    fitting_hints,
    require_known_types,
)
from agent.managers.memory.state import charge, free_memory, release
from sysfs.mask import Mask, iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agent.managers.memory.hints import Reusable
    from agent.managers.memory.state import MemoryFacts, NodeMemory
    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import Hints
    from agent.managers.topology.search_budget import SearchBudget


def assign(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    hint: Hint,
    reusable: Reusable = NOTHING_REUSABLE,
    work: SearchBudget | None = None,
) -> tuple[tuple[MemoryBlock, ...], Mapping[int, NodeMemory]]:
    """Return the blocks that serve `requests` (bytes by type) and the charge with them.

    The nodes are those of the hint; without a hint, the best that the memory allows; where too
    little is free on them, the best larger mask. Blocks have the size of the whole request, but
    only the part that exceeds `reusable` on exactly these nodes is charged. No request, no blocks.
    `work` bounds the search for other nodes than the hint's. Raises `UnknownMemoryTypeError` for a
    huge page size that no node has, otherwise the `MemoryAssignmentError` of the step that failed;
    nothing is changed then.
    """
    if not requests:
        return (), state
    require_known_types(facts, requests)
    demand = MemoryDemand(requests, {name: free_memory(facts, state, name) for name in requests})
    own = partial(fitting_hints, facts, state, requests, reusable, work)
    nodes = _placement(state, demand, hint, own, work)
    blocks = tuple(MemoryBlock(name, size, Mask(nodes)) for name, size in sorted(requests.items()))
    for block in blocks:
        newly_taken = max(block.size - reusable.get((nodes, block.type), 0), 0)
        state = charge(facts, state, MemoryBlock(block.type, newly_taken, block.nodes))
    return blocks, state


def reusable_after(
    reusable: Reusable, blocks: Iterable[MemoryBlock], *, standard_init: bool
) -> dict[tuple[int, str], int]:
    """Return the memory that later containers of the pod may reuse after this container.

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
    it counts as an assignment of its nodes. So the blocks of a pod add up to its charge.
    """
    result = {name: tuple(former) for name, former in earlier.items()}
    for block in blocks:
        open_size = block.size
        for name, former in result.items():
            result[name], open_size = _shrink(former, block, open_size)
    return result


def release_finished(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    earlier: Iterable[Sequence[MemoryBlock]],
) -> Mapping[int, NodeMemory]:
    """Return the charge after a later container started: `earlier` blocks are released.

    `earlier` are the blocks of the standard init containers before the started one. Not for pods
    with a pod-level budget, which stays whole until the pod ends (KEP-5526).
    """
    for blocks in earlier:
        state = release(facts, state, blocks)
    return state


def _placement(
    state: Mapping[int, NodeMemory],
    demand: MemoryDemand,
    hint: Hint,
    own_hints: Callable[[], Hints],
    work: SearchBudget | None,
) -> int:
    nodes, preferred = hint
    if nodes is None:
        best = best_hint(own_hints(), work)
        if best is None:
            raise NoDefaultHintError(demand, in_use=_bound(state))
        if preferred and not best.preferred:
            raise NotPreferredDefaultHintError(demand)
        nodes = best.nodes or 0
    if not _is_enough(demand, nodes):
        best = best_hint(own_hints(), work, containing=nodes)
        if best is None:
            raise CannotExtendHintError(demand, nodes, _bound(state))
        if preferred and not best.preferred:
            raise NotPreferredExtensionError(demand, nodes)
        nodes = best.nodes or 0
    if _violates_groups(state, nodes):
        raise HintViolatesGroupsError(demand, nodes)
    return nodes


def _bound(state: Mapping[int, NodeMemory]) -> str:
    """Return which nodes serve alone or in a group, and so cannot be joined to others."""
    used = [(node, charge.cells) for node, charge in state.items() if charge.assignments]
    alone = Mask.from_ids(node for node, cells in used if len(cells) == 1)
    groups = dict.fromkeys(cells for _, cells in used if len(cells) > 1)
    parts = [f"{nodes_text(alone)} with memory of pods of one node"] if alone else []
    parts += [f"the group of {nodes_text(cells)}" for cells in groups]
    return f"{' and '.join(parts)} cannot be joined to other nodes" if parts else ""


def _is_enough(demand: MemoryDemand, nodes: int) -> bool:
    return all(
        sum(demand.free[name][node] for node in iter_bits(nodes)) >= size
        for name, size in demand.requests.items()
    )


def _violates_groups(state: Mapping[int, NodeMemory], nodes: int) -> bool:
    """Return whether one of several nodes is already used alone or in another NUMA group."""
    if nodes.bit_count() == 1:
        return False
    return any(
        state[node].assignments and state[node].cells.bits != nodes for node in iter_bits(nodes)
    )


def _shrink(
    blocks: tuple[MemoryBlock, ...], block: MemoryBlock, size: int
) -> tuple[tuple[MemoryBlock, ...], int]:
    shrunk = []
    for earlier in blocks:
        reused = 0
        if (earlier.type, earlier.nodes) == (block.type, block.nodes):
            reused = min(earlier.size, size)
        size -= reused
        shrunk.append(MemoryBlock(earlier.type, earlier.size - reused, earlier.nodes))
    return tuple(shrunk), size

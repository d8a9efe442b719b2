"""Where memory fits: hints of the memory manager's static policy (KEP-1769)."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.managers.errors import UnknownMemoryTypeError
from agent.managers.hints import Hint
from agent.managers.memory_state import free_memory
from agent.managers.numa_masks import Choice, choices, subset_sums

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.ledger import MemoryBlock, NodeMemory
    from agent.managers.hints import ProviderHints
    from agent.managers.memory_state import MemoryFacts

#: Bytes held by this pod's finished init containers, by mask of nodes (bits) and memory type.
Reusable: TypeAlias = "Mapping[tuple[int, str], int]"

NOTHING_REUSABLE: Final[Reusable] = MappingProxyType({})


def memory_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    reusable: Reusable = NOTHING_REUSABLE,
) -> ProviderHints:
    """Return where a container or pod that asks for `requests` (bytes by type) fits.

    All types share one list of masks, narrow ones first. When no mask is left the answer is
    empty: "no preference", not "impossible" (the kubelet's semantics; `assign` then refuses).
    Preferred are the masks with as few nodes as would do on an empty machine. `reusable` memory is
    charged to its mask already. Raises `UnknownMemoryTypeError` for a huge page size that no node
    has.
    """
    hints = fitting_hints(facts, state, requests, reusable)
    return dict.fromkeys(requests, hints) if hints else {}


def fitting_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    reusable: Reusable = NOTHING_REUSABLE,
) -> tuple[Hint, ...]:
    """Return the hints that all requested types share, narrow ones first; none for no request.

    Raises `UnknownMemoryTypeError` for a type that no node has.
    """
    if not requests:
        return ()
    require_known_types(facts, requests)
    open_choices = _open_choices(facts, state)
    for memory_type, size in requests.items():
        free = subset_sums(tuple(free_memory(facts, state, memory_type).values()))
        open_choices = [
            choice
            for choice in open_choices
            if free[choice.number] + reusable.get((choice.mask, memory_type), 0) >= size
        ]
    fewest = _fewest_nodes(facts, requests)
    return tuple(
        choice.preferred if choice.mask.bit_count() == fewest else choice.plain
        for choice in open_choices
    )


def regenerated_hints(blocks: Sequence[MemoryBlock], requests: Mapping[str, int]) -> ProviderHints:
    """Return the hints of a container that holds memory: only where it is.

    Empty ("no preference") when the blocks are not what is asked for.
    """
    if {block.type: block.size for block in blocks} != dict(requests):
        return {}
    return {block.type: (Hint(block.nodes.bits, preferred=True),) for block in blocks}


def pod_memory_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    held: Sequence[Sequence[MemoryBlock]] = (),
) -> ProviderHints:
    """Return where a pod that asks for `requests` in all fits.

    `held` is what its containers already have, in their order; the first that has anything
    decides, as in the kubelet.
    """
    for blocks in held:
        if blocks:
            return regenerated_hints(blocks, requests)
    return memory_hints(facts, state, requests)


def best_hint(hints: Sequence[Hint]) -> Hint:
    """Return the best of one or more hints: preferred, then narrow, then the lowest mask."""
    return min(hints, key=_rank)


def require_known_types(facts: MemoryFacts, requests: Mapping[str, int]) -> None:
    """Raise `UnknownMemoryTypeError` for a requested type that no node of the machine has."""
    known = facts.types()
    for memory_type, size in requests.items():
        if memory_type not in known:
            raise UnknownMemoryTypeError(memory_type, size, tuple(sorted(known)))


def _rank(hint: Hint) -> tuple[bool, int, int]:
    nodes = hint.nodes or 0
    return not hint.preferred, nodes.bit_count(), nodes


def _open_choices(facts: MemoryFacts, state: Mapping[int, NodeMemory]) -> list[Choice]:
    """Return the masks that the groups in use allow.

    A node serves either alone or in one group of nodes: one alone must not be a member of a
    larger group, several must all be unused or all be exactly one group.
    """
    used = 0
    singles = set()
    for node, held in state.items():
        if len(held.cells) == 1:
            singles.add(1 << node)
        if held.assignments:
            used |= 1 << node
    groups = {
        held.cells.bits for held in state.values() if held.assignments and len(held.cells) > 1
    }
    allowed = singles | {mask for mask in groups if _is_one_group(state, mask)}
    return [
        choice
        for choice in choices(facts.mask.bits)
        if choice.mask in allowed or (choice.mask.bit_count() > 1 and not choice.mask & used)
    ]


def _is_one_group(state: Mapping[int, NodeMemory], mask: int) -> bool:
    return all(
        held.cells.bits == mask
        for node, held in state.items()
        if mask >> node & 1 and held.assignments
    )


def _fewest_nodes(facts: MemoryFacts, requests: Mapping[str, int]) -> int:
    """Return how many nodes the requests would need if nobody held memory."""
    sums = [
        (_allocatable_sums(tuple(types.get(name, 0) for types in facts.allocatable.values())), size)
        for name, size in requests.items()
    ]
    return next(
        (
            choice.mask.bit_count()
            for choice in choices(facts.mask.bits)
            if all(total[choice.number] >= size for total, size in sums)
        ),
        len(facts.nodes),
    )


@lru_cache(maxsize=64)
def _allocatable_sums(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(subset_sums(values))

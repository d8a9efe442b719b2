"""Where memory fits: hints of the memory manager's static policy (KEP-1769)."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.managers.errors import UnknownMemoryTypeError
from agent.managers.memory.state import free_memory
from agent.managers.topology.implicit_hints import HintFamily, is_listed, rank, smallest
from agent.managers.topology.node_cover import Cover, CoverDemand
from agent.managers.topology.numa_masks import Choice, choices, subset_sums
from agent.managers.topology.search_budget import SearchBudget
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.memory.state import MemoryFacts, NodeMemory
    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import Hints, ProviderHints

#: Bytes of this pod's ended init containers, by mask of nodes (bits) and memory type.
Reusable: TypeAlias = "Mapping[tuple[int, str], int]"

NOTHING_REUSABLE: Final[Reusable] = MappingProxyType({})


def memory_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    reusable: Reusable = NOTHING_REUSABLE,
    work: SearchBudget | None = None,
) -> ProviderHints:
    """Return where a container or pod that asks for `requests` (bytes by type) fits.

    All types share one list of masks, narrow ones first. When no mask is left each type has None:
    "no preference", not "impossible" (the kubelet's semantics; `assign` then rejects).
    Preferred are the masks of the fewest nodes that suffice on an empty machine. `reusable` memory
    is charged to its mask already. `work` notes when a budget was exceeded. Raises
    `UnknownMemoryTypeError` for a huge page size that no node has.
    """
    hints = fitting_hints(facts, state, requests, reusable, work)
    return dict.fromkeys(requests, hints or None)


def fitting_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    reusable: Reusable = NOTHING_REUSABLE,
    work: SearchBudget | None = None,
) -> tuple[Hint, ...] | HintFamily:
    """Return the hints that all requested types share, narrow ones first; none for no request.

    Raises `UnknownMemoryTypeError` for a type that no node has.
    """
    if not requests:
        return ()
    require_known_types(facts, requests)
    if not is_listed(facts.mask.bits):
        return _family(facts, state, requests, reusable, work or SearchBudget())
    open_choices = _open_choices(facts, state)
    for memory_type, size in requests.items():
        free = subset_sums(free_memory(facts, state, memory_type).values())
        again = {mask: amount for (mask, name), amount in reusable.items() if name == memory_type}
        open_choices = [
            choice
            for choice in open_choices
            if free[choice.number] >= size
            or (again and free[choice.number] + again.get(choice.mask, 0) >= size)
        ]
    fewest = _fewest_nodes(facts, requests)
    return tuple(
        [
            choice.preferred if choice.mask.bit_count() == fewest else choice.plain
            for choice in open_choices
        ]
    )


def best_hint(hints: Hints, work: SearchBudget | None = None, containing: int = 0) -> Hint | None:
    """Return the best hint whose nodes contain the given ones (bits), None when there is none.

    Preferred ones are better, then narrow ones, then those of the lowest mask.
    """
    if isinstance(hints, HintFamily):
        return hints.best(work or SearchBudget(), containing)
    fitting = (hint for hint in hints if hint.nodes is None or not containing & ~hint.nodes)
    return min(fitting, key=rank, default=None)


def require_known_types(facts: MemoryFacts, requests: Mapping[str, int]) -> None:
    """Raise `UnknownMemoryTypeError` for a requested type that no node of the machine has."""
    known = facts.types
    for memory_type, size in requests.items():
        if memory_type not in known:
            raise UnknownMemoryTypeError(memory_type, size, tuple(sorted(known)))


def _family(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    reusable: Reusable,
    work: SearchBudget,
) -> HintFamily:
    """Return the same hints as the list, as a family for a machine with many nodes.

    The masks in use (single nodes and groups) are few and listed one by one; unused nodes form a
    family of sets that must have room for the request.
    """
    used, in_use = _masks_in_use(state)
    free = {name: free_memory(facts, state, name) for name in requests}
    unused = facts.mask.bits & ~used & ~facts.cordoned.bits
    several = CoverDemand(2, tuple((1 << node, 1) for node in iter_bits(unused)))
    enough = [CoverDemand.by_node(size, free[name]) for name, size in requests.items()]
    cover = Cover(unused, (several, *enough))
    again = {mask for mask, _ in reusable if mask.bit_count() > 1 and not mask & ~unused}
    masks = [
        mask
        for mask in sorted(in_use | again)
        if not mask & ~facts.mask.bits
        and not mask & facts.cordoned.bits
        and all(
            sum(free[name][node] for node in iter_bits(mask)) + reusable.get((mask, name), 0)
            >= size
            for name, size in requests.items()
        )
    ]
    on_empty_machine = Cover(
        facts.mask.bits,
        tuple(
            CoverDemand.by_node(
                size, {node: types.get(name, 0) for node, types in facts.allocatable.items()}
            )
            for name, size in requests.items()
        ),
    )
    fewest = smallest(on_empty_machine, work) or len(facts.nodes)
    return HintFamily(tuple(masks), None if cover.is_empty else cover, fewest)


def _masks_in_use(state: Mapping[int, NodeMemory]) -> tuple[int, set[int]]:
    """Return the nodes in use, and the single nodes and groups that may serve unchanged.

    A node serves either alone or in one NUMA group: a single node must not be a member of a larger
    group, several nodes must be exactly one group (or all be unused).
    """
    used = 0
    masks = set()
    groups = set()
    for node, charge in state.items():
        if charge.cells.bits.bit_count() == 1:
            masks.add(1 << node)
        elif charge.assignments:
            groups.add(charge.cells.bits)
        if charge.assignments:
            used |= 1 << node
    return used, masks.union([mask for mask in groups if _is_one_group(state, mask)])


def _open_choices(facts: MemoryFacts, state: Mapping[int, NodeMemory]) -> list[Choice]:
    """Return the masks that the groups in use allow and that have no cordoned node."""
    used, in_use = _masks_in_use(state)
    cordoned = facts.cordoned.bits
    return [
        choice
        for choice in choices(facts.mask.bits)
        if not choice.mask & cordoned
        and (choice.mask in in_use or (choice.mask.bit_count() > 1 and not choice.mask & used))
    ]


def _is_one_group(state: Mapping[int, NodeMemory], mask: int) -> bool:
    return all(
        charge.cells.bits == mask
        for node, charge in state.items()
        if mask >> node & 1 and charge.assignments
    )


def _fewest_nodes(facts: MemoryFacts, requests: Mapping[str, int]) -> int:
    """Return how many nodes the requests would need if no memory was allocated."""
    allocatable = tuple([facts.allocatable_of[name] for name in requests])
    return _fewest(facts.mask.bits, allocatable, tuple(requests.values()))


@lru_cache(maxsize=256)
def _fewest(nodes: int, allocatable: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> int:
    """Return the fewest of `nodes` that have all the sizes; `allocatable` is by type, by node."""
    sums = [subset_sums(by_node) for by_node in allocatable]
    return next(
        (
            choice.mask.bit_count()
            for choice in choices(nodes)
            if all(total[choice.number] >= size for total, size in zip(sums, sizes, strict=True))
        ),
        nodes.bit_count(),
    )

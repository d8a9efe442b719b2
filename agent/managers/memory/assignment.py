"""Where memory fits, its allocation to containers and pods, and its reuse after init containers.

The memory manager's static policy (KEP-1769; kubelet v1.36, Allocate and AllocatePod).
"""

from __future__ import annotations

from functools import lru_cache, partial, reduce
from operator import and_, or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.managers.allocation import MemoryBlock
from agent.managers.amounts import nodes_text
from agent.managers.errors import (
    CannotExtendHintError,
    HintViolatesGroupsError,
    MemoryDemand,
    NoDefaultHintError,
    NotPreferredDefaultHintError,
    NotPreferredExtensionError,
    UnknownMemoryTypeError,
)
from agent.managers.memory.state import charge, free_memory, release
from agent.managers.topology.hint import (
    NO_AFFINITY,
    Choice,
    Hint,
    SearchBudget,
    choices,
    is_listed,
    rank,
    subset_sums,
)
from agent.managers.topology.many_nodes import Cover, CoverDemand, HintFamily, smallest
from sysfs.mask import Mask, iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agent.managers.machine import Machine
    from agent.managers.memory.state import MemoryFacts, NodeMemory
    from agent.managers.topology.many_nodes import Hints, ProviderHints


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


def near_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    machine: Machine,
    reusable: Reusable = NOTHING_REUSABLE,
    work: SearchBudget | None = None,
) -> ProviderHints:
    """Return hints for memory on nodes without CPUs: the nodes of the CPUs nearest to the memory.

    So a pod with such memory can be aligned. A set of nodes has the memory of every node to which
    one of them is nearest; otherwise as `memory_hints`.
    """
    if not requests:
        return {}
    require_known_types(facts, requests)
    work = work or SearchBudget()
    nearest = {node: machine.nearest[node].bits for node in facts.nodes}
    domain = reduce(or_, nearest.values(), 0)
    used, in_use = _masks_in_use(state)
    free = {name: free_memory(facts, state, name) for name in requests}
    unused = facts.mask.bits & ~used & ~facts.cordoned.bits

    def cover(nodes: int, amounts: Mapping[str, Mapping[int, int]]) -> Cover:
        return Cover(
            domain,
            tuple(
                CoverDemand(
                    size,
                    tuple((nearest[node], amounts[name][node]) for node in iter_bits(nodes)),
                )
                for name, size in requests.items()
            ),
        )

    masks = set()
    for mask in in_use:
        if mask & (~facts.mask.bits | facts.cordoned.bits) or not all(
            sum(free[name][node] for node in iter_bits(mask)) + reusable.get((mask, name), 0)
            >= size
            for name, size in requests.items()
        ):
            continue
        near = [nearest[node] for node in iter_bits(mask)]
        masks |= {reduce(or_, near), *(1 << node for node in iter_bits(reduce(and_, near)))}
    available = cover(unused, free)
    empty = {
        name: {node: facts.allocatable[node].get(name, 0) for node in facts.nodes}
        for name in requests
    }
    fewest = smallest(cover(facts.mask.bits, empty), work) or domain.bit_count()
    hints = HintFamily(tuple(sorted(masks)), None if available.is_empty else available, fewest)
    return dict.fromkeys(requests, (tuple(hints) if machine.lists_hints else hints) or None)


def near_alignment(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    machine: Machine,
    hint: Hint,
    reusable: Reusable = NOTHING_REUSABLE,
    work: SearchBudget | None = None,
) -> Hint:
    """Return an alignment as that of the memory: of nodes of `facts`, near those of the hint.

    Where nothing near has room, other nodes of `facts` serve.
    """
    bits = facts.mask.bits
    if facts.has_own_cpus(machine):
        return Hint(None if hint.nodes is None else hint.nodes & bits or None, hint.preferred)
    aligned = bits if hint.nodes is None else hint.nodes
    near = Mask.from_ids(node for node in facts.nodes if machine.nearest[node].bits & aligned)
    for place in (facts.only(near), facts):
        best = best_hint(fitting_hints(place, state, requests, reusable, work), work)
        if best is not None:
            return Hint(best.nodes, preferred=False)
    return NO_AFFINITY


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
    for node, charged in state.items():
        if charged.cells.bits.bit_count() == 1:
            masks.add(1 << node)
        elif charged.assignments:
            groups.add(charged.cells.bits)
        if charged.assignments:
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
    nodes = _placement(state, demand, hint, own, reusable, work)
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
    reusable: Reusable,
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
    if not _is_enough(demand, nodes, reusable):
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


def _is_enough(demand: MemoryDemand, nodes: int, reusable: Reusable) -> bool:
    """Return whether nodes have enough, with what ended init containers of the pod left there."""
    return all(
        sum(demand.free[name][node] for node in iter_bits(nodes)) + reusable.get((nodes, name), 0)
        >= size
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

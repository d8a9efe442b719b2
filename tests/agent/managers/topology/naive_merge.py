"""The merge as KEP-693 describes it: every permutation of hints is tried, slowly."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from agent.managers.policy import TopologyManagerPolicy
from agent.managers.topology.hint import Hint
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.managers.policy import TopologyPolicy
    from agent.managers.topology.many_nodes import ProviderHints


def naive_merge(
    nodes: int,
    distances: Mapping[int, Mapping[int, int]],
    policy: TopologyPolicy,
    provider_hints: Sequence[ProviderHints],
) -> tuple[Hint, bool]:
    """Return the merged hint and whether it is admitted, by trying every permutation."""
    if policy.policy is TopologyManagerPolicy.NONE:
        return Hint(None, preferred=False), True
    single = policy.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
    lists = _lists(provider_hints)
    if single:
        lists = [[hint for hint in hints if _is_single(hint)] for hints in lists]
    closest = policy.prefer_closest_numa_nodes and not single
    desired = max((_narrowest(hints) for hints in lists), default=0)
    best: Hint | None = None
    for permutation in product(*lists):
        candidate = _intersection(nodes, permutation)
        if candidate.nodes and (
            best is None or _is_better(candidate, best, desired, distances if closest else None)
        ):
            best = candidate
    result = best if best is not None else Hint(nodes, preferred=False)
    if single and result.nodes == nodes:
        result = Hint(None, result.preferred)
    return result, result.preferred or policy.policy is TopologyManagerPolicy.BEST_EFFORT


def _lists(provider_hints: Sequence[ProviderHints]) -> list[list[Hint]]:
    lists: list[list[Hint]] = []
    for provider in provider_hints:
        if len(provider) == 0:
            lists.append([Hint(None, preferred=True)])
        for hints in provider.values():
            if hints is None:
                lists.append([Hint(None, preferred=True)])
            elif not hints:
                lists.append([Hint(None, preferred=False)])
            else:
                lists.append(list(hints))
    return lists


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)


def _narrowest(hints: list[Hint]) -> int:
    return min((h.nodes.bit_count() for h in hints if h.nodes is not None), default=0)


def _intersection(nodes: int, permutation: tuple[Hint, ...]) -> Hint:
    masks = [hint.nodes for hint in permutation if hint.nodes is not None]
    common = nodes
    for mask in masks:
        common &= mask
    preferred = all(hint.preferred for hint in permutation) and len(set(masks)) <= 1
    return Hint(common, preferred)


def _is_better(
    new: Hint, old: Hint, desired: int, distances: Mapping[int, Mapping[int, int]] | None
) -> bool:
    """Return whether a candidate replaces the best so far, case by case as the kubelet does."""
    if new.preferred != old.preferred:
        return new.preferred
    new_count, old_count = _count(new), _count(old)
    if not new.preferred and old_count == desired != new_count:
        return False
    if not new.preferred and old_count < desired and new_count != old_count:
        return old_count < new_count <= desired
    if new_count != old_count:
        return new_count < old_count
    if distances is not None and _average(new, distances) != _average(old, distances):
        return _average(new, distances) < _average(old, distances)
    return (new.nodes or 0) < (old.nodes or 0)


def _count(hint: Hint) -> int:
    return (hint.nodes or 0).bit_count()


def _average(hint: Hint, distances: Mapping[int, Mapping[int, int]]) -> float:
    members = list(iter_bits(hint.nodes or 0))
    pairs = [float(distances[one][other]) for one in members for other in members]
    return sum(pairs) / len(pairs)

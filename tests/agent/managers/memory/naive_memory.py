"""Memory hints as the documents describe them: every mask of nodes is checked, one by one."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from agent.managers.topology.hint import Hint
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.memory.assignment import Reusable
    from agent.managers.memory.state import MemoryFacts, NodeMemory


def naive_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    reusable: Reusable,
) -> list[Hint]:
    """Return every mask that can serve the requests; preferred are those of the least size."""
    least = len(facts.nodes)
    found: list[Mask] = []
    for size in range(1, len(facts.nodes) + 1):
        for members in combinations(facts.nodes, size):
            if any(_allocatable(facts, members, name) < asked for name, asked in requests.items()):
                continue
            least = min(least, size)
            mask = Mask.of(*members)
            if _is_open(state, mask) and all(
                _free(facts, state, members, name) + reusable.get((mask.bits, name), 0) >= asked
                for name, asked in requests.items()
            ):
                found.append(mask)
    return [Hint(mask.bits, len(mask) == least) for mask in found]


def _allocatable(facts: MemoryFacts, members: tuple[int, ...], name: str) -> int:
    return sum(facts.allocatable[node].get(name, 0) for node in members)


def _free(
    facts: MemoryFacts, state: Mapping[int, NodeMemory], members: tuple[int, ...], name: str
) -> int:
    used = sum(state[node].reserved.get(name, 0) for node in members)
    return _allocatable(facts, members, name) - used


def _is_open(state: Mapping[int, NodeMemory], mask: Mask) -> bool:
    if len(mask) == 1:
        return len(state[mask.lowest].cells) == 1
    return all(state[node].assignments == 0 or state[node].cells == mask for node in mask)

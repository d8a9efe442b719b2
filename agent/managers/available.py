"""Whether memory that pods were given is there: the ledger does not know what other programs have.

In go blocks of memory and what nodes could give at a moment (`Availability`). Out comes what of the
blocks is not there; for a pod that was just decided also a warning, and a node where all of it is
there, if a trial shows that the pod would be admitted near that node. Pure, and nothing is decided
here. A block over several nodes may come from any of them, so sums are compared. Where it is not
known what a node could give, nothing is said.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocation import MemoryBlock
from agent.managers.amounts import nodes_text, size_text
from agent.managers.memory.state import charged_blocks, hugepages_type, memory_charge
from agent.managers.trials import decided
from agent.pods.changes import with_annotation
from agent.pods.model import MEMORY, NEAR_NODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Availability, Pod
    from sysfs.available import Available
    from sysfs.mask import Mask

#: The most nodes that are tried for a pod.
_MOST_TRIED: Final = 8


class Lack(Struct, frozen=True):
    """Memory of one type that is to come from some nodes, of which these could give less."""

    type: str
    nodes: Mask
    #: In bytes.
    given: int
    available: int

    def __str__(self) -> str:
        given, left = size_text(self.given), size_text(self.available)
        return f"{given} of {self.type} on {nodes_text(self.nodes)}, which could give {left} now"


def availability(read: Mapping[int, Available]) -> Availability:
    """Return what was read of nodes, by node and memory type."""
    found: dict[int, Mapping[str, int]] = {}
    for node, available in read.items():
        types = {hugepages_type(size): count for size, count in available.hugepages.items()}
        if available.memory is not None:
            types[MEMORY] = available.memory
        found[node] = types
    return MappingProxyType(found)


def blocks_of(allocation: PodAllocation) -> Iterator[MemoryBlock]:
    """Yield the memory that a pod is given."""
    return (block for _, block in charged_blocks(allocation))


def lacks(blocks: Iterable[MemoryBlock], available: Availability) -> tuple[Lack, ...]:
    """Return what of some blocks is not there, by type and set of nodes; nothing is used yet.

    All blocks whose nodes are among those of a set must fit on it together.
    """
    asked: dict[tuple[str, Mask], int] = {}
    for block in blocks:
        key = block.type, block.nodes
        asked[key] = asked.get(key, 0) + block.size
    found = []
    for name, nodes in asked:
        amounts = [available.get(node, {}).get(name) for node in nodes]
        known = [amount for amount in amounts if amount is not None]
        given = sum(size for (kind, on), size in asked.items() if kind == name and on <= nodes)
        if len(known) == len(amounts) and sum(known) < given:
            found.append(Lack(name, nodes, given, sum(known)))
    return tuple(found)


def lack_warning(rules: EffectivePolicy, ledger: Ledger, lack: Lack, copies: int = 1) -> str:
    """Return a warning for so many pods that were just decided; `ledger` is that without them.

    What others have is what is neither available nor given to a pod: at least so much, as pods may
    have taken less than they were given.
    """
    charge = memory_charge(ledger)
    rest = -lack.available
    for node in rules.machine.nodes:
        if node.id in lack.nodes:
            pages = {hugepages_type(size): size * n for size, n in node.hugepages.items()}
            usual = node.known_memory - sum(pages.values())
            rest += usual if lack.type == MEMORY else pages.get(lack.type, 0)
            rest -= charge[node.id].reserved.get(lack.type, 0) if node.id in charge else 0
    others = f"; others use at least {size_text(rest)}" if rest > 0 else ""
    who = "the pod is" if copies == 1 else f"{copies} of these pods are"
    return f"{who} given {lack}{others}"


def near_nodes(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, lacking: Lack, available: Availability
) -> Iterator[str | None]:
    """Yield for each trial near a node the advice to be near it, None if that does not help.

    The nodes that could give most of what is lacking are tried first, each by a decision on the
    ledger without the pod. The caller may stop at any time.
    """
    if NEAR_NODES in pod.annotations:
        return
    nodes = sorted(available, key=lambda node: -available[node].get(lacking.type, 0))
    for node in nodes[:_MOST_TRIED]:
        found = decided(rules, ledger, with_annotation(pod, NEAR_NODES, str(node))).allocation
        enough = found is not None and not lacks(blocks_of(found), available)
        yield f'with the annotation {NEAR_NODES}: "{node}" all of it is there' if enough else None


def left_to_take(allocation: PodAllocation, used: Mapping[str, int]) -> tuple[MemoryBlock, ...]:
    """Return the memory that a pod was given and does not use yet.

    `used` are bytes by type; a type that is not in it is left out. How
    the pages of a pod are divided over its nodes is not known either: all may come from any.
    """
    given: dict[str, MemoryBlock] = {}
    for block in blocks_of(allocation):
        if block.type in used:
            before = given.get(block.type, MemoryBlock(block.type, 0, block.nodes))
            size, nodes = before.size + block.size, before.nodes | block.nodes
            given[block.type] = MemoryBlock(block.type, size, nodes)
    left = ((block, block.size - used[block.type]) for block in given.values())
    return tuple(replace(block, size=size) for block, size in left if size > 0)


def pods_lacking(
    left: Mapping[str, tuple[MemoryBlock, ...]], available: Availability
) -> Mapping[str, tuple[Lack, ...]]:
    """Return by uid what is not there of what pods have left to take, all of them together."""
    found = lacks((block for blocks in left.values() for block in blocks), available)
    return MappingProxyType(
        {
            uid: concerned
            for uid, blocks in left.items()
            if found
            if (
                concerned := tuple(
                    lack
                    for lack in found
                    if any(b.type == lack.type and b.nodes <= lack.nodes for b in blocks)
                )
            )
        }
    )

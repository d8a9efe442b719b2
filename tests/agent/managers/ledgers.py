"""Ledgers of given allocations, for tests that need no decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.ledger import Ledger, Taken
from agent.managers.registry import MANAGERS
from agent.pods.model import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.memory.state import NodeMemory
    from sysfs.mask import Mask


def ledger_with(
    *allocations: PodAllocation, memory: Mapping[int, NodeMemory] | None = None
) -> Ledger:
    """Return the ledger of some allocations, with a charge of memory, as a checkpoint has it."""
    saved = {MEMORY: memory}
    parts = {each.name: each.loaded(saved.get(each.name), allocations) for each in MANAGERS}
    return Ledger.of(allocations, parts)


def with_exclusive(ledger: Ledger, cpus: Mask) -> Ledger:
    """Return a ledger of which exactly these CPUs are exclusive, whatever its allocations say."""
    return ledger.with_part(CPU, Taken(cpus))

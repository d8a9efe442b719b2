"""Taking a ledger over from a checkpoint: grants are facts, what follows from them is reckoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.memory_state import charge_grant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.ledger import Ledger, NodeMemory
    from agent.managers.rules import Rules


def restored(rules: Rules, ledger: Ledger) -> Ledger:
    """Return a saved ledger as the rules in force see it; every grant is kept as it is.

    The charge by node is kept where it is of the same nodes and memory types, for its division
    over groups of nodes is history. Otherwise (another memory policy, another machine) it is made
    anew from the grants: in full, also where a node has less than is held there, so that nobody
    is given memory of another's. Nodes that the machine no longer has are left out.
    """
    fresh = rules.empty_ledger().memory
    if _same_shape(fresh, ledger.memory):
        return ledger
    charged: Mapping[int, NodeMemory] = fresh
    for grant in ledger.grants.values():
        charged = charge_grant(rules.memory, charged, grant) if fresh else charged
    return ledger if charged == ledger.memory else replace(ledger, memory=charged)


def _same_shape(fresh: Mapping[int, NodeMemory], saved: Mapping[int, NodeMemory]) -> bool:
    return fresh.keys() == saved.keys() and all(
        saved[node].reserved.keys() <= fresh[node].reserved.keys() for node in fresh
    )

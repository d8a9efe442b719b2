"""The map of the running agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.api.host.mapped import map_of_allocations

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.api.host.map import MapDocument
    from agent.server.state import AgentState


def map_now(state: AgentState) -> Callable[[], MapDocument]:
    """Return a function that makes the map of the state as of now, in any thread.

    On large hosts that takes long enough to be felt by other users of the loop.
    """
    configured, ledger, invalid = state.configured, state.ledger, state.invalid
    kubelet = state.kubelet_listing
    observed = state.last_reconcile is not None
    running = {uid: state.records.of(uid).running for uid in ledger.allocations}
    return lambda: map_of_allocations(
        configured.host,
        configured.rules,
        ledger,
        running=running if observed else None,
        invalid=invalid,
        kubelet=kubelet,
    )

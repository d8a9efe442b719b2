"""The map of the running agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.api.host.mapped import map_of_allocations

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.api.host.map import MapDocument
    from agent.server.state import AgentState


def map_now(state: AgentState, now: float) -> Callable[[], MapDocument]:
    """Return a function that makes the map of the state as of `now` (Unix time), in any thread.

    On large hosts that takes long enough to be felt by other users of the loop.
    """
    configured, ledger, invalid = state.configured, state.ledger, state.invalid
    kubelet = state.kubelet_listing
    not_found = {uid: state.records.of(uid).not_found for uid in ledger.allocations}

    def drawn() -> MapDocument:
        document = map_of_allocations(
            configured.host,
            configured.rules,
            ledger,
            not_found=not_found,
            invalid=invalid,
            kubelet=kubelet,
        )
        return replace(document, hostname=os.uname().nodename, time=now)

    return drawn

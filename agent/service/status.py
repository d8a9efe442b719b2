"""How the agent is doing, in one document."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent import __version__
from agent.service import views
from agent.wire import StatusDocument
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.service.state import AgentState


def status_document(state: AgentState) -> StatusDocument:
    """Return how the agent is doing, and what an operator should look at."""
    host = state.situation.host
    grants = state.ledger.grants.values()
    return StatusDocument(
        version=__version__,
        pid=os.getpid(),
        started=state.started,
        ready=state.ready,
        policy=views.policy_document(state.situation.rules.policy),
        online_cpus=str(host.online),
        nodes=str(Mask.from_ids(node.id for node in host.nodes)),
        shared_pool=str(state.shared_pool),
        exclusive_cpus=str(state.ledger.exclusive_cpus),
        pods=len(grants),
        containers=sum(len(grant.containers) for grant in grants),
        last_reconcile=state.last_reconcile,
        manifests=tuple(state.manifests.values()),
        problems=tuple(_problems(state)),
    )


def _problems(state: AgentState) -> Iterator[str]:
    yield from state.troubles.values()
    if state.unsaved is not None:
        yield f"checkpoint: {state.unsaved}"
    for uid, grant in state.ledger.grants.items():
        for problem in state.records.of(uid).problems:
            yield f"pod {grant.namespace}/{grant.name} is not enforced: {problem}"
    for manifest in state.manifests.values():
        if manifest.state != "admitted":
            yield f"manifest {manifest.file} is {manifest.state}: {manifest.message}"

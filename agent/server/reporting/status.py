"""The status document."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent import __version__
from agent.api import views
from agent.api.status import RuntimeDocument, StateDirectoryDocument, StatusDocument
from agent.api.views import cordon_documents
from agent.managers.cpu.parts import exclusive_cpus
from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.runtimes.nri.session import SessionState
    from agent.server.state import AgentState


def status_document(state: AgentState, now: float) -> StatusDocument:
    """Return the status of the agent with all that is not as it should be, at a Unix time."""
    host, unready = state.configured.host, state.unready()
    allocations = state.ledger.allocations.values()
    rejections = state.records.rejections.values()
    return StatusDocument(
        version=__version__,
        hostname=os.uname().nodename,
        time=now,
        pid=os.getpid(),
        started=state.started,
        ready=unready is None,
        unready=unready or "",
        state=None
        if state.directory is None
        else StateDirectoryDocument(directory=str(state.directory), free=state.free_bytes),
        configuration=state.configuration,
        policy=views.policy_document(state.configured.rules.policy),
        online_cpus=str(host.online),
        nodes=str(Mask.from_ids(node.id for node in host.nodes)),
        shared_pool=str(state.shared_pool),
        exclusive_cpus=str(exclusive_cpus(state.ledger)),
        pods=len(allocations),
        containers=sum(len(allocation.containers) for allocation in allocations),
        rejected=tuple(each.answer for each in rejections if each.answer is not None),
        last_reconcile=state.last_reconcile,
        manifests=tuple(state.entries()),
        conditions=state.dated_conditions(now),
        drift=state.drift,
        log_level=state.log_level.document(),
        runtime=None if state.runtime is None else _runtime_document(state.runtime.state),
        cordons=tuple(cordon_documents(state.durable.cordons)),
        cordoned_cpus=str(state.configured.rules.cordoned_cpus),
        invalid=state.invalid,
        failed=state.records.failed_pods(),
    )


def _runtime_document(session: SessionState) -> RuntimeDocument:
    runtime = session.runtime
    return RuntimeDocument(
        connected=session.connected,
        since=session.since,
        name="" if runtime is None else runtime.name,
        version="" if runtime is None else runtime.version,
        nri_version="" if runtime is None else runtime.nri_version,
        connections=session.connections,
        error="" if session.connected else session.last_error,
    )

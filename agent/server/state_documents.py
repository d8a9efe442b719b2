"""The documents that the agent makes of its state: pods, map, status, and answers to admissions.

In goes the state, and for an answer the decision; out come documents of `agent.api`. Nothing is
changed. A document that takes long to make on a large host (`map_now`, `pods_now`) comes as a
function: the state is read at once, in the event loop's thread, and the function makes the document
of what was read, in any thread.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent import __version__
from agent.api import views
from agent.api.documents.admissions import AdmissionDocument
from agent.api.documents.errors import ErrorBody
from agent.api.documents.status import StateDirectoryDocument, StatusDocument
from agent.api.map import map_of_allocations
from agent.managers.cpu.manager import exclusive_cpus, shared_cpus
from agent.managers.numa_policy import numa_policy
from agent.managers.pools import pod_pools
from agent.managers.quality import verdict
from agent.server.operations import current_operation
from agent.server.slowness import slowness
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.api.documents.explanations import ExplanationDocument
    from agent.api.documents.map import MapDocument
    from agent.api.documents.pods import PodDocument
    from agent.devices.cdi_files import CdiFiles
    from agent.isolation.report import LateInterrupt
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision, Rejection
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.quality import Intrusion
    from agent.managers.rules import EffectivePolicy
    from agent.managers.violations import Violation
    from agent.pods.model import Pod
    from agent.server.pod_records import PodRecord
    from agent.server.slowness import PodReading
    from agent.server.state import AgentState


class PodDescriber(Struct, frozen=True):
    """Makes the documents of pods as of one moment."""

    rules: EffectivePolicy
    #: The CPUs of containers without exclusive CPUs.
    pool: Mask
    cdi_files: CdiFiles
    #: The devices that the kubelet beside the agent gave to pods.
    kubelet: KubeletListing
    #: The cgroups that may use exclusive CPUs of a pod they do not belong to, by that pod's uid.
    intrusions: Mapping[str, tuple[Intrusion, ...]]
    #: The interrupts of the host that still come to CPUs which they are to avoid.
    late: tuple[LateInterrupt, ...]

    @classmethod
    def of(cls, state: AgentState, pool: Mask | None = None) -> PodDescriber:
        """Return the describer of the present state, with another pool if one is given."""
        return cls(
            state.configured.rules,
            state.shared_cpus if pool is None else pool,
            state.parts.cdi_files,
            state.kubelet_listing,
            state.intrusions,
            state.isolation.late,
        )

    def document(
        self,
        allocation: PodAllocation,
        record: PodRecord | None,
        *,
        explanation: ExplanationDocument | None = None,
        reading: PodReading | None = None,
        invalid: Iterable[Violation] = (),
    ) -> PodDocument:
        """Return the document of a pod; without a `record` the kernel was not observed."""
        intruding = self.intrusions.get(allocation.uid, ())
        judgements = verdict(self.rules, allocation, intruding)
        own = pod_pools(self.rules, (allocation,), self.pool).get(allocation.uid)
        policy = numa_policy(self.rules, allocation)
        return views.pod_document(
            allocation,
            self.pool if own is None else own.cpus,
            pool="" if own is None else own.name,
            policy=policy,
            record=record,
            explanation=explanation,
            kernel=None if reading is None else reading.settings,
            invalid=invalid,
            intruding=intruding,
            judgements=judgements,
            slow=None
            if reading is None
            else slowness(allocation, reading, judgements, intruding, self.late, policy),
            cdi_names=self.cdi_files.names(allocation),
            kubelet=self.kubelet,
        )


def pods_now(state: AgentState) -> Callable[[], tuple[PodDocument, ...]]:
    """Return a function that makes the documents of all pods, in the order of admission."""
    describer = PodDescriber.of(state)
    violations: dict[str, list[Violation]] = defaultdict(list)
    for violation in state.invalid:
        violations[violation.uid].append(violation)
    # Comparisons change a record in place: another thread gets a copy.
    pods = [
        (allocation, replace(state.observed.records.of(uid)), violations.get(uid, ()))
        for uid, allocation in state.ledger.allocations.items()
    ]
    return lambda: tuple(
        describer.document(allocation, record, invalid=invalid)
        for allocation, record, invalid in pods
    )


def map_now(state: AgentState, now: float) -> Callable[[], MapDocument]:
    """Return a function that draws the map of the present state; `now` is its Unix time."""
    configured, ledger, invalid = state.configured, state.ledger, state.invalid
    kubelet, intrusions = state.kubelet_listing, state.intrusions
    records = {uid: state.observed.records.of(uid) for uid in ledger.allocations}
    not_found = {uid: (record.absence, record.not_found) for uid, record in records.items()}

    def draw() -> MapDocument:
        document = map_of_allocations(
            configured.host,
            configured.rules,
            ledger,
            not_found=not_found,
            invalid=invalid,
            intrusions=intrusions,
            kubelet=kubelet,
        )
        return replace(document, hostname=os.uname().nodename, time=now)

    return draw


def status_document(state: AgentState, now: float) -> StatusDocument:
    """Return the status of the agent with all its conditions; `now` is the Unix time."""
    host, unready = state.configured.host, state.unready()
    allocations = state.ledger.allocations.values()
    rejections = state.observed.records.rejections.values()
    return StatusDocument(
        version=__version__,
        hostname=os.uname().nodename,
        time=now,
        kubernetes_version=state.configured.governing.version,
        kubernetes_version_source=state.configured.governing.source,
        pid=os.getpid(),
        started=state.start.started,
        ready=unready is None,
        unready=unready or "",
        state=None
        if state.start.directory is None
        else StateDirectoryDocument(
            directory=str(state.start.directory), free=state.observed.free_bytes
        ),
        configuration=state.start.configuration,
        policy=views.policy_document(state.configured.rules.policy),
        online_cpus=str(host.online),
        nodes=str(Mask.from_ids(node.id for node in host.nodes)),
        withheld=tuple(map(views.withheld_document, host.withheld)),
        shared_pool=str(state.shared_pool),
        exclusive_cpus=str(exclusive_cpus(state.ledger)),
        pods=len(allocations),
        containers=sum(len(allocation.containers) for allocation in allocations),
        rejected=tuple(
            rejection.answer for rejection in rejections if rejection.answer is not None
        ),
        last_reconcile=state.observed.last_reconcile,
        manifests=tuple(state.observed.sources.entries()),
        conditions=state.dated_conditions(now),
        drift=state.observed.drift,
        runtime=None if state.parts.runtime is None else state.parts.runtime(),
        cordons=tuple(views.cordon_documents(state.durable.cordons)),
        cordoned_cpus=str(state.configured.rules.cordoned_cpus),
        invalid=state.invalid,
        failed=state.observed.records.failed_pods(),
    )


def admission_answer(
    state: AgentState,
    decision: Decision,
    allocation: PodAllocation,
    record: PodRecord,
    *,
    dry_run: bool = False,
) -> AdmissionDocument:
    """Return the answer to a pod that is, or with `dry_run` would be, admitted."""
    # The ledger of the decision lacks the pods that were decided after this one and saved with it:
    # the pool is that of the saved ledger.
    ledger = decision.ledger if dry_run else state.ledger
    describer = PodDescriber.of(state, shared_cpus(state.configured.rules, ledger))
    return AdmissionDocument(
        uid=allocation.uid,
        name=allocation.name,
        namespace=allocation.namespace,
        admitted=True,
        dry_run=dry_run,
        already_admitted=decision.already_admitted,
        pod=describer.document(allocation, None if dry_run else record),
        explanation=record.explanation or views.explanation_document(decision),
    )


def rejection_answer(pod: Pod, decision: Decision, *, dry_run: bool = False) -> AdmissionDocument:
    """Return the answer to a pod that is, or with `dry_run` would be, rejected."""
    rejection = rejection_of(decision)
    return AdmissionDocument(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        admitted=False,
        dry_run=dry_run,
        rejection=views.rejection_document(rejection),
        explanation=views.explanation_document(decision),
        error=ErrorBody(
            code=str(rejection.reason),
            message=rejection.message,
            operation=current_operation(),
        ),
    )


def rejection_of(decision: Decision) -> Rejection:
    """Return why a pod was rejected; raises `ValueError` for a decision without a reason."""
    if decision.rejection is None:
        raise ValueError(f"the decision on {decision.uid} neither admits nor rejects")
    return decision.rejection

"""The ledger's values as documents of the admission API.

In go allocations, decisions and what enforcement recorded, out come documents: sets as lists of the
kernel's format, enumerations as their words. Nothing is observed here. A core struct whose JSON is
the document's goes over the socket as it is (`Violation`, `Advice`, `Shortage`, `FreeCpus`); each
function below changes a name, a unit or a form.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import asdict, replace

from agent.api.documents.explanations import (
    EligibilityDocument,
    ExplanationDocument,
    HintDocument,
    HintTraceDocument,
    ProviderDocument,
)
from agent.api.documents.kernel import EnforcementDocument, KernelDocument
from agent.api.documents.maintenance import CordonDocument
from agent.api.documents.pods import (
    ContainerDocument,
    DeliveryDocument,
    JudgementDocument,
    MemoryDocument,
    NumaPolicyDocument,
    PodDocument,
    UnusedBudgetDocument,
)
from agent.api.documents.rejections import RejectionDocument
from agent.api.documents.status import PolicyDocument, WithheldDocument
from agent.api.documents.verification import IntrusionDocument
from agent.managers.delivery import NOTHING
from agent.managers.device.kubelet import KUBELET_DEVICES, NOT_LISTED, by_resource
from agent.managers.sharing import shares, unused_budget
from agent.managers.topology.many_nodes import HintFamily
from agent.managers.topology.merge import best_few
from agent.managers.violations import Rule
from agent.pods.model import CPU, MEMORY, full_name
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.slowness import Slowness
    from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation
    from agent.managers.cordons import Cordons
    from agent.managers.decision import Decision, Rejection, Trace
    from agent.managers.delivery import Delivery
    from agent.managers.demand import Eligibility
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.numa_policy import NumaPolicy
    from agent.managers.policy import Policy
    from agent.managers.quality import Intrusion, Judgement
    from agent.managers.sharing import Share, UnusedBudget
    from agent.managers.topology.hint import Hint
    from agent.managers.topology.many_nodes import Hints, ProviderHints
    from agent.managers.violations import Violation
    from agent.pods.model import GivenDevice, GivenDevices
    from sysfs.host import WithheldCpus


#: Hints that are shown of a provider at most. On a large host it may offer hundreds.
BEST_HINTS: Final = 8
#: Violations of these rules say that CPUs of an allocation are gone.
_GONE: Final = frozenset({Rule.CPU_OFFLINE, Rule.CPU_WITHHELD, Rule.CPU_MISSING})


class Recorded(Protocol):
    """What enforcement recorded of a pod."""

    #: The names of the containers whose cgroups were found.
    running: frozenset[str]
    #: The containers without a cgroup for longer than a start takes.
    not_found: tuple[str, ...]
    #: Why a container has none (`PodDocument.absence`).
    absence: str
    #: `PodDocument.admission_seconds`.
    admission_seconds: float | None

    @property
    def unenforced_lines(self) -> tuple[str, ...]:
        """The differences, a line each."""
        ...


def pod_document(  # noqa: PLR0913 - each is a part of the document
    allocation: PodAllocation,
    shared_pool: Mask,
    *,
    record: Recorded | None = None,
    explanation: ExplanationDocument | None = None,
    kernel: Mapping[str | None, tuple[KernelDocument, ...]] | None = None,
    invalid: Iterable[Violation] = (),
    intruding: Iterable[Intrusion] = (),
    judgements: Iterable[Judgement] = (),
    cdi_names: Mapping[str, str] = MappingProxyType({}),
    kubelet: KubeletListing = NOT_LISTED,
    slow: Slowness | None = None,
    pool: str = "",
    policy: NumaPolicy | None = None,
) -> PodDocument:
    """Return the document of one pod.

    `shared_pool` are the CPUs of containers without their own, in the pool of this name or, for "",
    in that of the node. Without a `record` the kernel was not observed (a
    dry run). `kernel` are the cgroups by container; None stands for the pod. `invalid` are the
    violations of all pods. `intruding` is what may use exclusive CPUs of the pod, `judgements` its
    verdict. `cdi_names` are the names of containers in the CDI file of the pod, if it is written.
    `kubelet` is what a kubelet beside the agent lists, `slow` what makes the pod slow, `policy` the
    NUMA policy of its processes.
    """
    cgroups, source, kubelet_devices = kernel or {}, allocation.source, kubelet.of(allocation)
    violations = tuple(violation for violation in invalid if violation.uid == allocation.uid)
    gone = [violation.message for violation in violations if violation.rule in _GONE]
    # A pod whose CPUs are all gone is in the shared pool, as desired: there is no difference.
    differences = (record.unenforced_lines if record is not None else ()) or gone
    unprepared = [unprepared_line(allocation)] if allocation.unprepared else []
    containers = tuple(
        _container(
            container,
            share,
            shared_pool,
            cgroups.get(container.name, ()),
            cdi_names.get(container.name, ""),
            kubelet_devices.get(container.name, ()),
        )
        for container, share in zip(allocation.containers, shares(allocation), strict=True)
    )
    return PodDocument(
        uid=allocation.uid,
        name=allocation.name,
        namespace=allocation.namespace,
        qos=str(allocation.qos),
        source="" if source is None else str(source),
        spec_digest=allocation.spec_digest,
        cpus=str(allocation.cpus) if allocation.cpus is not None else None,
        memory=_memory(allocation.memory),
        exclusive_cpus=str(allocation.exclusive_cpus),
        containers=containers,
        enforcement=enforcement_document((*differences, *unprepared)),
        explanation=explanation,
        kernel=cgroups.get(None, ()),
        invalid=violations,
        unused_budget=tuple(map(_unused, unused_budget(allocation))),
        others=dict(allocation.others),
        containers_found=None
        if record is None
        else sum(container.name in record.running for container in allocation.lasting),
        not_found=() if record is None else record.not_found,
        absence="" if record is None else record.absence,
        origin=str(allocation.origin),
        source_name="" if source is None else source.name,
        end=str(allocation.lifetime.end),
        unit=allocation.lifetime.unit,
        isolation=dict(allocation.isolation),
        idle_cpus=str(allocation.idle),
        intruding=tuple(map(intrusion_document, intruding)),
        verdict=tuple(
            JudgementDocument(
                container=judgement.container,
                quality=str(judgement.quality),
                met=judgement.met,
                why=judgement.why,
            )
            for judgement in judgements
        ),
        slow=slow,
        pool=pool,
        numa_policy=None
        if policy is None
        else NumaPolicyDocument(mode=str(policy.mode), nodes=str(policy.nodes)),
        admission_seconds=None if record is None else record.admission_seconds,
    )


def intrusion_document(intrusion: Intrusion) -> IntrusionDocument:
    """Return the document of an intrusion."""
    return IntrusionDocument(
        cgroup=f"/{intrusion.cgroup}",
        cpus=str(intrusion.cpus),
        user=intrusion.user,
        cause=intrusion.cause,
        message=str(intrusion),
    )


def enforcement_document(
    differences: Iterable[str], notes: tuple[str, ...] = ()
) -> EnforcementDocument:
    """Return the enforcement of an allocation, which is enforced without differences."""
    lines = tuple(differences)
    return EnforcementDocument(enforced=not lines, differences=lines, notes=notes)


def unprepared_line(allocation: PodAllocation) -> str:
    """Return the line that says that devices of a pod are not prepared for its containers."""
    return f"devices of {full_name(allocation)} are not prepared: {allocation.unprepared}"


def rejection_document(rejection: Rejection) -> RejectionDocument:
    """Return why a pod was rejected."""
    return RejectionDocument(
        reason=str(rejection.reason),
        message=rejection.message,
        remedy=rejection.remedy,
        resource=rejection.resource,
        container=rejection.container,
        asked=rejection.asked,
        free={str(node): amount for node, amount in sorted(rejection.free.items())},
        shortages=rejection.shortages,
    )


def explanation_document(decision: Decision) -> ExplanationDocument:
    """Return the explanation of a decision, with the best few hints of each provider."""
    return ExplanationDocument(
        eligibility=tuple(_eligibility(item) for item in decision.eligibility),
        hints=tuple(_trace(trace) for trace in decision.hints),
        warnings=decision.warnings,
    )


def policy_document(policy: Policy) -> PolicyDocument:
    """Return the effective policies."""
    return PolicyDocument(
        cpu_manager_policy=str(policy.cpu.policy),
        memory_manager_policy=str(policy.memory.policy),
        topology_manager_policy=str(policy.topology.policy),
        topology_manager_scope=str(policy.topology.scope),
        reserved_cpus=str(policy.cpu.reserved),
        isolated_cpus=str(policy.cpu.isolated),
        isolated_for=str(policy.cpu.isolated_for),
    )


def kubelet_device_documents(devices: GivenDevices) -> dict[str, dict[str, dict[str, str]]]:
    """Return the devices that the kubelet gave to containers: `_kubelet_devices` by container."""
    return {container: _kubelet_devices(given) for container, given in devices.items()}


def withheld_document(withheld: WithheldCpus) -> WithheldDocument:
    """Return the document of CPUs that pods cannot have."""
    return WithheldDocument(
        cpus=str(withheld.cpus),
        cgroup=withheld.cgroup,
        allows=None if withheld.allows is None else str(withheld.allows),
        detail=str(withheld),
    )


def cordon_documents(cordons: Cordons) -> Iterator[CordonDocument]:
    """Yield the document of each cordon."""
    for entry in cordons:
        yield CordonDocument(
            cpus=str(entry.cordon.cpus),
            nodes=str(entry.cordon.nodes),
            reason=entry.reason,
            since=entry.since,
        )


def replacing_answer(
    answer: AdmissionDocument,
    replaced: PodAllocation | None,
    removal: EnforcementDocument | None = None,
) -> AdmissionDocument:
    """Return an answer that names the pod that was replaced.

    `removal` is what the removal of that pod left in the kernel: it is added to the enforcement.
    """
    if replaced is None or answer.pod is None:
        return answer
    pod = answer.pod
    if removal is not None:
        enforcement = pod.enforcement
        differences = tuple(dict.fromkeys((*enforcement.differences, *removal.differences)))
        notes = tuple(dict.fromkeys((*enforcement.notes, *removal.notes)))
        pod = replace(pod, enforcement=enforcement_document(differences, notes))
    return replace(answer, pod=pod, replaced=replaced.uid)


def _container(
    allocation: ContainerAllocation,
    share: Share,
    shared_pool: Mask,
    kernel: tuple[KernelDocument, ...],
    cdi_name: str,
    kubelet_devices: Iterable[GivenDevice],
) -> ContainerDocument:
    return ContainerDocument(
        name=allocation.name,
        kind=str(allocation.kind),
        isolation=str(allocation.isolation),
        cpus=str(shared_pool if allocation.cpus is None else allocation.cpus),
        mems=str(allocation.mems) if allocation.mems else None,
        memory=_memory(allocation.memory),
        devices={resource: tuple(ids) for resource, ids in sorted(allocation.devices.items())},
        hint=_hint(allocation.hint),
        quota_disabled=allocation.quota_disabled,
        kernel=kernel,
        why=allocation.why,
        sharing=str(share.sharing),
        shared_cpus=str(share.cpus),
        shared_with=share.others,
        others={
            manager: part
            for manager, part in allocation.others.items()
            if manager != KUBELET_DEVICES
        },
        kubelet_devices=_kubelet_devices(kubelet_devices),
        delivery=_delivery(allocation.delivery, cdi_name),
    )


def _kubelet_devices(devices: Iterable[GivenDevice]) -> dict[str, dict[str, str]]:
    """Return the NUMA nodes of devices, by id by resource."""
    return {resource: dict(nodes) for resource, nodes in by_resource(devices).items()}


def _delivery(delivery: Delivery, cdi_name: str) -> DeliveryDocument | None:
    """Return what was delivered; None for nothing. `cdi_name` is "" without a CDI file."""
    if delivery == NOTHING:
        return None
    maps = {"environment": dict(delivery.environment), "annotations": dict(delivery.annotations)}
    return DeliveryDocument(**{**asdict(delivery), **maps}, cdi_device=cdi_name)


def _unused(budget: UnusedBudget) -> UnusedBudgetDocument:
    return UnusedBudgetDocument(
        resource=budget.resource,
        unused=budget.unused,
        budget=budget.budget,
        cpus=str(budget.cpus),
    )


def _memory(blocks: Iterable[MemoryBlock]) -> tuple[MemoryDocument, ...]:
    return tuple(
        MemoryDocument(type=block.type, bytes=block.size, nodes=str(block.nodes))
        for block in blocks
    )


def _hint(hint: Hint) -> HintDocument:
    nodes = None if hint.nodes is None else str(Mask(hint.nodes))
    return HintDocument(nodes=nodes, preferred=hint.preferred)


def _eligibility(item: Eligibility) -> EligibilityDocument:
    return EligibilityDocument(
        container=item.container,
        exclusive_cpus=int(item.exclusive.get(CPU, 0)),
        exclusive_memory=MEMORY in item.exclusive,
        why=item.why[CPU],
        reasons=dict(item.why),
    )


def _trace(trace: Trace) -> HintTraceDocument:
    return HintTraceDocument(
        container=trace.container,
        providers=tuple(_provider(name, hints) for name, hints in trace.providers),
        merged=_hint(trace.merged),
        admitted=trace.admitted,
    )


def _provider(name: str, offered: ProviderHints) -> ProviderDocument:
    return ProviderDocument(
        provider=name,
        hints={
            resource: None if hints is None else _best(hints) for resource, hints in offered.items()
        },
        counts={resource: _count(hints) for resource, hints in offered.items()},
    )


def _best(hints: Hints) -> tuple[HintDocument, ...]:
    return tuple(_hint(hint) for hint in best_few(hints, BEST_HINTS))


def _count(hints: Hints | None) -> int | None:
    """Return the number of hints; None for a family of hints with more than are shown."""
    if not isinstance(hints, HintFamily):
        return len(hints or ())
    few = len(best_few(hints, BEST_HINTS + 1))
    return few if few <= BEST_HINTS else None

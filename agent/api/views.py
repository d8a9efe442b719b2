"""The ledger's values as documents of the admission API."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from agent.api import documents as status_wire
from agent.api import documents as wire
from agent.api.documents import CordonDocument, delivery_document
from agent.managers.device.kubelet import KUBELET_DEVICES, NOT_LISTED, by_resource
from agent.managers.sharing import shares, unused_budget
from agent.managers.topology.many_nodes import HintFamily
from agent.managers.topology.merge import best_few
from agent.managers.violations import Rule
from agent.pods.model import CPU, MEMORY, full_name
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation
    from agent.managers.cordons import Cordons
    from agent.managers.decision import Decision, Eligibility, Rejection, Trace
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.policy import Policy
    from agent.managers.quality import Intrusion, Judgement
    from agent.managers.sharing import Share, UnusedBudget
    from agent.managers.topology.hint import Hint
    from agent.managers.topology.many_nodes import Hints, ProviderHints
    from agent.managers.violations import Violation
    from agent.pods.model import GivenDevice, GivenDevices
    from sysfs.host import WithheldCpus


#: A provider may offer hundreds of hints on a large host; the best few are enough.
BEST_HINTS: Final = 8
#: The kernel has none of what an allocation has by these rules.
_GONE: Final = frozenset({Rule.CPU_OFFLINE, Rule.CPU_WITHHELD, Rule.CPU_MISSING})


class Recorded(Protocol):
    """What enforcement found of a pod."""

    running: frozenset[str]
    not_found: tuple[str, ...]
    absence: str

    @property
    def unenforced_lines(self) -> tuple[str, ...]:
        """What is not enforced, a line each."""
        ...


def pod_document(  # noqa: PLR0913 - each is a part of the document
    allocation: PodAllocation,
    shared_pool: Mask,
    *,
    record: Recorded | None = None,
    explanation: wire.ExplanationDocument | None = None,
    kernel: Mapping[str | None, tuple[wire.KernelDocument, ...]] | None = None,
    invalid: Iterable[Violation] = (),
    intruding: Iterable[Intrusion] = (),
    judgements: Iterable[Judgement] = (),
    cdi_names: Mapping[str, str] = MappingProxyType({}),
    kubelet: KubeletListing = NOT_LISTED,
) -> wire.PodDocument:
    """Return one pod; `kernel` has cgroups by container (None: the pod's own).

    Without a `record` the kernel was not observed (a dry run). `judgements` are its verdict,
    `intruding` is what may use its exclusive CPUs.
    `cdi_names` are the names that containers have in the CDI file of the pod, none where it is not
    written. `kubelet` is what a kubelet beside the agent lists.
    """
    seen, source, given = kernel or {}, allocation.source, kubelet.of(allocation)
    violated = tuple(each for each in invalid if each.uid == allocation.uid)
    differences = () if record is None else record.unenforced_lines
    containers = tuple(
        _container(
            container,
            share,
            shared_pool,
            seen.get(container.name, ()),
            cdi_names.get(container.name, ""),
            given.get(container.name, ()),
        )
        for container, share in zip(allocation.containers, shares(allocation), strict=True)
    )
    return wire.PodDocument(
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
        enforcement=enforcement_document(
            (
                # With all of its CPUs gone, the pod has what is desired: those of the shared pool.
                *(differences or (each.message for each in violated if each.rule in _GONE)),
                *((unprepared_line(allocation),) if allocation.unprepared else ()),
            )
        ),
        explanation=explanation,
        kernel=seen.get(None, ()),
        invalid=violated,
        unused_budget=tuple(_unused(each) for each in unused_budget(allocation)),
        others=dict(allocation.others),
        containers_found=None
        if record is None
        else sum(each.name in record.running for each in allocation.lasting),
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
            wire.JudgementDocument(
                container=each.container, quality=str(each.quality), met=each.met, why=each.why
            )
            for each in judgements
        ),
    )


def intrusion_document(found: Intrusion) -> wire.IntrusionDocument:
    """Return a cgroup that may use exclusive CPUs of a pod to which it does not belong."""
    return wire.IntrusionDocument(
        cgroup=f"/{found.cgroup}",
        cpus=str(found.cpus),
        user=found.user,
        cause=found.cause,
        message=str(found),
    )


def enforcement_document(
    differences: Iterable[str], notes: tuple[str, ...] = ()
) -> wire.EnforcementDocument:
    """Return an enforcement document: enforced if there are no differences."""
    found = tuple(differences)
    return wire.EnforcementDocument(enforced=not found, differences=found, notes=notes)


def unprepared_line(allocation: PodAllocation) -> str:
    """Return that a pod's devices are not prepared for its containers."""
    return f"devices of {full_name(allocation)} are not prepared: {allocation.unprepared}"


def rejection_document(rejection: Rejection) -> wire.RejectionDocument:
    """Return why a pod was rejected."""
    return wire.RejectionDocument(
        reason=str(rejection.reason),
        message=rejection.message,
        remedy=rejection.remedy,
        resource=rejection.resource,
        container=rejection.container,
        asked=rejection.asked,
        free={str(node): amount for node, amount in sorted(rejection.free.items())},
        shortages=rejection.shortages,
    )


def explanation_document(decision: Decision) -> wire.ExplanationDocument:
    """Return the explanation of a decision, with the best few hints of each provider."""
    return wire.ExplanationDocument(
        eligibility=tuple(_eligibility(item) for item in decision.eligibility),
        hints=tuple(_trace(trace) for trace in decision.hints),
        warnings=decision.warnings,
    )


def policy_document(policy: Policy) -> status_wire.PolicyDocument:
    """Return the effective policies."""
    return status_wire.PolicyDocument(
        cpu_manager_policy=str(policy.cpu.policy),
        memory_manager_policy=str(policy.memory.policy),
        topology_manager_policy=str(policy.topology.policy),
        topology_manager_scope=str(policy.topology.scope),
        reserved_cpus=str(policy.cpu.reserved),
    )


def _container(  # each is a part of the document
    allocation: ContainerAllocation,
    share: Share,
    shared_pool: Mask,
    kernel: tuple[wire.KernelDocument, ...],
    cdi_name: str,
    given: Iterable[GivenDevice],
) -> wire.ContainerDocument:
    return wire.ContainerDocument(
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
        others={k: part for k, part in allocation.others.items() if k != KUBELET_DEVICES},
        kubelet_devices=_given_document(given),
        delivery=delivery_document(allocation.delivery, cdi_name),
    )


def given_documents(given: GivenDevices) -> dict[str, dict[str, dict[str, str]]]:
    """Return the devices that the kubelet gave to containers, by the name of the container."""
    return {name: _given_document(devices) for name, devices in given.items()}


def _given_document(devices: Iterable[GivenDevice]) -> dict[str, dict[str, str]]:
    """Return devices of the kubelet: their NUMA nodes by id by resource."""
    return {resource: dict(nodes) for resource, nodes in by_resource(devices).items()}


def _unused(found: UnusedBudget) -> wire.UnusedBudgetDocument:
    return wire.UnusedBudgetDocument(
        resource=found.resource,
        unused=found.unused,
        budget=found.budget,
        cpus=str(found.cpus),
    )


def _memory(blocks: Iterable[MemoryBlock]) -> tuple[wire.MemoryDocument, ...]:
    return tuple(
        wire.MemoryDocument(type=block.type, bytes=block.size, nodes=str(block.nodes))
        for block in blocks
    )


def _hint(hint: Hint) -> wire.HintDocument:
    nodes = None if hint.nodes is None else str(Mask(hint.nodes))
    return wire.HintDocument(nodes=nodes, preferred=hint.preferred)


def _eligibility(item: Eligibility) -> wire.EligibilityDocument:
    return wire.EligibilityDocument(
        container=item.container,
        exclusive_cpus=int(item.exclusive.get(CPU, 0)),
        exclusive_memory=MEMORY in item.exclusive,
        why=item.why[CPU],
        reasons=dict(item.why),
    )


def _trace(trace: Trace) -> wire.HintTraceDocument:
    return wire.HintTraceDocument(
        container=trace.container,
        providers=tuple(_provider(name, hints) for name, hints in trace.providers),
        merged=_hint(trace.merged),
        admitted=trace.admitted,
    )


def _provider(name: str, offered: ProviderHints) -> wire.ProviderDocument:
    return wire.ProviderDocument(
        provider=name,
        hints={
            resource: None if hints is None else _best(hints) for resource, hints in offered.items()
        },
        counts={resource: _count(hints) for resource, hints in offered.items()},
    )


def _best(hints: Hints) -> tuple[wire.HintDocument, ...]:
    return tuple(_hint(hint) for hint in best_few(hints, BEST_HINTS))


def _count(hints: Hints | None) -> int | None:
    """Return how many hints there are; None for a family of hints, which is too large to count."""
    if not isinstance(hints, HintFamily):
        return len(hints or ())
    few = len(best_few(hints, BEST_HINTS + 1))
    return few if few <= BEST_HINTS else None


def withheld_document(withheld: WithheldCpus) -> wire.WithheldDocument:
    """Return the document of CPUs that pods cannot have."""
    return wire.WithheldDocument(
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
    answer: wire.AdmissionDocument,
    replaced: PodAllocation | None,
    removal: wire.EnforcementDocument | None = None,
) -> wire.AdmissionDocument:
    """Return an answer with the pod that was replaced, and what is left of it in the kernel."""
    if replaced is None or answer.pod is None:
        return answer
    pod = answer.pod
    if removal is not None:
        own = pod.enforcement
        differences = tuple(dict.fromkeys((*own.differences, *removal.differences)))
        notes = tuple(dict.fromkeys((*own.notes, *removal.notes)))
        pod = replace(pod, enforcement=enforcement_document(differences, notes))
    return replace(answer, pod=pod, replaced=replaced.uid)

"""The answer to an admission, and a pod that was not admitted, as text.

Renders `AdmissionDocument` and `FailedPodDocument`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.api.documents.rejections import INVALID_MANIFEST, RUNS_SHARED
from agent.cli.lines import labelled, moment
from agent.cli.pod_text import container_lines, state_lines
from agent.cli.reason_text import explanation_lines, rejection_lines
from agent.cli.resource_text import kubelet_container_lines
from agent.pods.model import name_and_uid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.rejections import FailedPodDocument


def admission_lines(answer: AdmissionDocument) -> Iterator[str]:
    """Yield what was decided, and what the pod's containers got or why it was rejected."""
    pod_name = name_and_uid(answer)
    if answer.pod is None:
        yield f"{'would reject' if answer.dry_run else 'rejected'} {pod_name}"
        if answer.rejection is not None:
            yield from rejection_lines(answer.rejection)
        if answer.explanation is not None:
            yield from explanation_lines(answer.explanation)
        return
    verb = "would admit" if answer.dry_run else "admitted"
    already = ", as before" if answer.already_admitted else ""
    instead = f", in place of uid {answer.replaced}" if answer.replaced else ""
    yield f"{verb} {pod_name}{already}{instead}"
    if answer.explanation is not None:
        yield from labelled("  warning: ", answer.explanation.warnings)
    yield from container_lines(answer.pod, reasons=True)
    yield from state_lines(answer.pod)
    if answer.plan is not None:
        yield from labelled("  would create ", answer.plan.created)
        writes = (f"{write.cgroup}/{write.file} = {write.value}" for write in answer.plan.writes)
        yield from labelled("  would write  ", writes)


def failed_lines(pod: FailedPodDocument) -> Iterator[str]:
    """Yield why and when a pod was rejected, or the mistakes in its manifest."""
    name = f" {pod.namespace}/{pod.name}" if pod.name else ""
    yield f"{failed_verb(pod)}{name}{f' (uid {pod.uid})' if pod.uid else ''}"
    yield f"  phase: {pod.phase} since {moment(pod.time)}, from {pod.source}"
    yield from labelled("  ", kubelet_container_lines(pod.kubelet_devices))
    if pod.rejection is not None:
        yield from rejection_lines(pod.rejection)
    elif len(pod.details) == 1:  # the message is this detail after the source's name
        yield f"  {pod.reason}: {pod.details[0]}"
    else:
        yield f"  {pod.reason}: {pod.message}"
        yield from (f"    {detail}" for detail in pod.details)
    if pod.explanation is not None:
        yield from explanation_lines(pod.explanation)


def failed_verb(pod: FailedPodDocument) -> str:
    """Return what happened to a pod that was not admitted."""
    if pod.reason == RUNS_SHARED:
        return "not admitted, runs shared"
    return "invalid" if pod.reason == INVALID_MANIFEST else "rejected"

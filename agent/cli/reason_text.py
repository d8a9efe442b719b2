"""Why a pod was decided as it was, as text: `RejectionDocument` and `ExplanationDocument`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cli.lines import labelled
from agent.cli.resource_text import amount_text, hint_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.api.documents.explanations import (
        ExplanationDocument,
        HintDocument,
        HintTraceDocument,
    )
    from agent.api.documents.rejections import RejectionDocument


def rejection_lines(rejection: RejectionDocument) -> Iterator[str]:
    """Yield why a pod was rejected, and what would let it be admitted."""
    yield f"  {rejection.reason}: {rejection.message}"
    if rejection.container is not None:
        yield f"  container: {rejection.container}"
    resource = rejection.resource
    if resource is not None and rejection.asked is not None:
        yield f"  asked: {amount_text(resource, rejection.asked)} of {resource}"
        free = (
            f"node {node}: {amount_text(resource, amount)}"
            for node, amount in rejection.free.items()
        )
        if rejection.free:
            yield f"  free: {', '.join(free)}"
    if rejection.remedy:
        yield f"  remedy: {rejection.remedy}"
    if rejection.advice and rejection.advice[0].kind == "again":
        yield f"  the pod would be admitted now: {rejection.advice[0].text}"
    elif rejection.advice:
        yield "  the pod would be admitted now with one of these changes; each was tried:"
        yield from (f"    {advice.text}" for advice in rejection.advice)
    elif rejection.advice is not None:
        yield (
            "  no change helps of those that were tried: weaker policies, a smaller request of one"
            " resource, the end of other pods"
        )


def explanation_lines(explanation: ExplanationDocument) -> Iterator[str]:
    """Yield which containers are eligible for exclusive CPUs and why, and the topology hints."""
    if not (explanation.warnings or explanation.eligibility or explanation.hints):
        return
    yield ""
    yield "why"
    yield from labelled("  warning: ", explanation.warnings)
    for eligibility in explanation.eligibility:
        yield f"  {eligibility.container}: {eligibility.why}"
    for trace in explanation.hints:
        yield from _trace_lines(trace)


def _trace_lines(trace: HintTraceDocument) -> Iterator[str]:
    """Yield the hints that each provider offered for a container, and the merged hint."""
    offers = [
        (provider.provider, resource, hints, provider.counts.get(resource, 0))
        for provider in trace.providers
        for resource, hints in provider.hints.items()
    ]
    if not offers:
        return
    yield f"  hints for {trace.container or 'the pod'}"
    for provider, resource, hints, count in offers:
        label = resource if resource == provider else f"{provider} {resource}"
        yield f"    {label}: {_hints_text(hints, count)}"
    yield f"    merged: {hint_text(trace.merged)}{'' if trace.admitted else ', rejected'}"


def _hints_text(hints: Sequence[HintDocument] | None, count: int | None) -> str:
    """Return the best hints; `count` is the number of all, None for too many to count."""
    if hints is None:
        return "no preference"
    if not hints:
        return "no set of nodes can serve it"
    more = " and many more" if count is None else ""
    if count is not None and count > len(hints):
        more = f" and {count - len(hints)} more"
    return "; ".join(map(hint_text, hints)) + more

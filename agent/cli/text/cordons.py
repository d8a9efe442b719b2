"""Cordons and drains as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cli.access import moment
from agent.pods.identity import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.api.maintenance import (
        CordonDocument,
        CordonsDocument,
        DrainDocument,
        DrainedPodDocument,
    )


def cordon_line(cordon: CordonDocument) -> str:
    """Return one cordon: what, since when, why."""
    parts = [
        f"{name} {ids}" for name, ids in (("node", cordon.nodes), ("CPUs", cordon.cpus)) if ids
    ]
    why = f": {cordon.reason}" if cordon.reason else ""
    return f"{' and '.join(parts)}, since {moment(cordon.since)}{why}"


def cordons_lines(answer: CordonsDocument) -> Iterator[str]:
    """Yield all cordons after a change, and which pods still use what is cordoned."""
    if not answer.cordons:
        yield "nothing is cordoned"
    for cordon in answer.cordons:
        yield f"cordoned: {cordon_line(cordon)}"
    yield f"shared pool: CPUs {answer.shared_pool or 'none'}"
    for pod in answer.pods:
        yield f"still in use by {full_name(pod)}: {_used(pod.cpus, pod.nodes, pod.devices)}"
    for line in answer.differences:
        yield f"not enforced: {line}"


def drain_lines(answer: DrainDocument) -> Iterator[str]:
    """Yield which pods would have to end, which of them fit elsewhere, and what is left."""
    if answer.rejection:
        yield f"cannot be cordoned now: {answer.rejection}"
    count = len(answer.pods)
    fit = sum(pod.outcome == "fits" for pod in answer.pods)
    if not count:
        yield "no pod would have to end"
    else:
        pods = "pod" if count == 1 else "pods"
        yield f"{count} {pods} would have to end, {fit} would fit elsewhere (tried in this order):"
    for pod in answer.pods:
        yield f"  {full_name(pod)}: {_used(pod.cpus, pod.nodes, pod.devices)}; {_outcome(pod)}"
    yield f"pods that stay: {answer.stay}"
    pool = answer.shared_pool or "none"
    yield f"then the shared pool is CPUs {pool}, and {answer.free_cpus} CPUs are free"


def _outcome(pod: DrainedPodDocument) -> str:
    if pod.outcome != "fits":
        return f"{'does not fit' if pod.outcome == 'rejected' else 'not known'}: {pod.message}"
    cpus = f" with CPUs {pod.moved_cpus}" if pod.moved_cpus else ""
    return f"fits on node {pod.moved_nodes}{cpus}" if pod.moved_nodes else f"fits{cpus}"


def _used(cpus: str, nodes: str, devices: Mapping[str, Sequence[str]]) -> str:
    parts = [f"CPUs {cpus}"] if cpus else []
    parts += [f"memory of node {nodes}"] if nodes else []
    parts += [f"{resource} {', '.join(ids)}" for resource, ids in devices.items()]
    return ", ".join(parts)

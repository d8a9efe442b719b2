"""Pods below a map: the label of each, its CPUs, and what its containers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import full_name
from agent.tools.map.spans import Line, TextSpan, Tone, line
from agent.tools.map.words import counted, named_ids
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.map import MapContainerDocument, MapDocument, MapPodDocument
    from agent.tools.map.marks import Marks

#: Pods with CPUs that a map lists unless it is full.
_PODS: Final = 40


def pod_lines(document: MapDocument, marks: Marks, *, full: bool) -> Iterator[Line]:
    """Yield each pod that has CPUs with its containers, then the number of pods without CPUs.

    A map that is focused has the one pod.
    """
    focus = marks.focus
    width = max((len(label) for label in marks.labels.values()), default=1)
    listed = [pod for pod in document.pods if focus == pod.uid or (focus is None and pod.cpus)]
    shown = listed if full or focus is not None else listed[:_PODS]
    for pod in shown:
        yield from _pod_lines(pod, marks, width)
    if len(listed) > len(shown):
        yield line(f"and {counted(len(listed) - len(shown), 'pod')} with CPUs more: map --full")
    others = 0 if focus is not None else len(document.pods) - len(listed)
    if others:
        yield line(f"{counted(others, 'pod')} in the shared pool alone")


def _pod_lines(pod: MapPodDocument, marks: Marks, width: int) -> Iterator[Line]:
    label = marks.labels.get(pod.uid, ".")
    tone = marks.tones.get(pod.uid, Tone.PLAIN)
    pool = f"the pool {pod.pool}" if pod.pool else ""
    cpus = f"CPUs {pod.cpus}" if pod.cpus else f"in {pool or 'the shared pool'}"
    cpus += f", siblings {pod.idle_cpus} idle" if pod.idle_cpus else ""
    missing = f", {len(pod.not_found)} {pod.absence}" if pod.not_found else ""
    not_exclusive = Mask.parse(pod.not_exclusive)
    lost = TextSpan(f", not exclusive: {not_exclusive}", Tone.WARNING) if not_exclusive else ""
    name = TextSpan(full_name(pod), Tone.HEADING)
    yield line(TextSpan(f"{label:<{width}} ", tone), name, f"  {cpus}", lost, missing)
    longest = max((len(container.name) for container in pod.containers), default=0)
    for container in pod.containers:
        text = _container_text(container, not_exclusive, pool or "the node's shared pool")
        yield line(f"{' ' * (width + 1)}  {container.name:<{longest}}  {text}")


def _container_text(container: MapContainerDocument, not_exclusive: Mask, pool: str) -> str:
    mems = Mask.parse(container.mems)
    memory = f", memory on {named_ids('node', mems)}" if mems else ""
    if container.cpus is None:
        return f"{pool}{memory}"
    if container.isolation == "container":
        until = ", until the next container starts" if container.kind == "init" else ""
        is_exclusive = not_exclusive.isdisjoint(Mask.parse(container.cpus))
        state = "exclusive" if is_exclusive else "not exclusive"
        return f"CPUs {container.cpus} ({state}{until}){memory}"
    return f"CPUs {container.cpus} (the pod's shared pool){memory}"

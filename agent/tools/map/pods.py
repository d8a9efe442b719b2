"""The pods of a map: whose letter is whose, and what each container has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.identity import full_name
from agent.tools.map.lines import Line, TextSpan, Tone, line
from agent.tools.map.parts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.host.map import MapContainerDocument, MapDocument, MapPodDocument
    from agent.tools.map.marks import Marks

#: The most pods with CPUs that are listed in a map that is not full.
_PODS: Final = 40


def pod_lines(document: MapDocument, marks: Marks, *, full: bool) -> Iterator[Line]:
    """Yield each pod that has CPUs with its containers, and how many pods have none."""
    focus = marks.focus
    width = max((len(label) for label in marks.labels.values()), default=1)
    listed = [pod for pod in document.pods if focus == pod.uid or (focus is None and pod.cpus)]
    shown = listed if full or focus is not None else listed[:_PODS]
    for pod in shown:
        yield from _pod(pod, marks, width)
    if len(listed) > len(shown):
        yield line(f"and {counted(len(listed) - len(shown), 'pod')} with CPUs more: map --full")
    others = 0 if focus is not None else len(document.pods) - len(listed)
    if others:
        yield line(f"{counted(others, 'pod')} in the shared pool alone")


def _pod(pod: MapPodDocument, marks: Marks, width: int) -> Iterator[Line]:
    label = marks.labels.get(pod.uid, ".")
    tone = marks.tones.get(pod.uid, Tone.PLAIN)
    cpus = f"CPUs {pod.cpus}" if pod.cpus else "in the shared pool"
    missing = f", {len(pod.not_found)} not found" if pod.not_found else ""
    name = TextSpan(full_name(pod), Tone.HEADING)
    yield line(TextSpan(f"{label:<{width}} ", tone), name, f"  {cpus}{missing}")
    longest = max((len(container.name) for container in pod.containers), default=0)
    for container in pod.containers:
        yield line(f"{' ' * (width + 1)}  {container.name:<{longest}}  {_place(container)}")


def _place(container: MapContainerDocument) -> str:
    mems = f", memory on node{'s' if _several(container.mems) else ''} {container.mems}"
    memory = mems if container.mems else ""
    if container.cpus is None:
        return f"the node's shared pool{memory}"
    if container.isolation == "container":
        until = ", until the next container starts" if container.kind == "init" else ""
        return f"CPUs {container.cpus} (exclusive{until}){memory}"
    return f"CPUs {container.cpus} (the pod's shared pool){memory}"


def _several(nodes: str) -> bool:
    return "," in nodes or "-" in nodes

"""The marks of CPUs on a map: a letter for each pod, a sign for all other uses."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.host.map import CpuUse
from agent.api.host.mapped import is_shared
from agent.pods.identity import full_name
from agent.tools.map.lines import POD_TONES, TextSpan, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.api.host.map import MapCpuDocument, MapDocument
    from agent.tools.map.parts import MappedCore

#: Letters of pods; without those that mean something else in either case: I, O, R, X.
_LETTERS: Final = "ABCDEFGHJKLMNPQSTUVWYZ"
_SIGNS: Final = {
    CpuUse.OFFLINE: "x",
    CpuUse.CORDONED: "/",
    CpuUse.RESERVED: "R",
    CpuUse.SHARED: ".",
    CpuUse.ONLINE: ".",
}
#: The CPU has several owners.
TWICE: Final = "*"
#: Another pod than that on which the map is focused.
OTHER: Final = "o"
ISOLATED: Final = "i"
#: Behind the mark of a thread whose core has several users.
SHARED_CORE: Final = "!"

MEANINGS: Final[Mapping[str, str]] = {
    "R": "reserved",
    ".": "shared pool",
    "/": "cordoned",
    "x": "offline",
    ISOLATED: "isolated, in the shared pool",
    OTHER: "another pod",
    TWICE: "allocated twice",
    SHARED_CORE: "core with several users",
}


class Marks(Struct, frozen=True):
    """The label of each pod that has CPUs, by uid, and its tone; `focus` is the pod asked for.

    `names` are the `namespace/name` of all pods.
    """

    labels: Mapping[str, str]
    tones: Mapping[str, Tone]
    names: Mapping[str, str]
    focus: str | None = None

    def of(self, cpu: MapCpuDocument) -> TextSpan:
        """Return the mark of a CPU: upper case where it is one container's, lower case the pod's.

        An offline CPU is marked as offline also if a pod has it.
        """
        if cpu.use is CpuUse.OFFLINE or not cpu.owners:
            quiet = cpu.use in (CpuUse.OFFLINE, CpuUse.RESERVED, CpuUse.CORDONED)
            unmarked = cpu.isolated and cpu.use in (CpuUse.SHARED, CpuUse.ONLINE)
            sign = ISOLATED if unmarked else _SIGNS[cpu.use]
            return TextSpan(sign, Tone.FAINT if quiet else Tone.PLAIN)
        if len(cpu.owners) > 1:
            return TextSpan(TWICE, Tone.WARNING)
        owner = cpu.owners[0]
        if self.focus not in (None, owner.uid):
            return TextSpan(OTHER, Tone.FAINT)
        label = self.labels[owner.uid]
        return TextSpan(label if owner.container else label.lower(), self.tones[owner.uid])

    def in_core(self, core: MappedCore) -> Iterator[tuple[TextSpan, ...]]:
        """Yield the marks of the threads of a core; those of a shared core have a sign behind."""
        shared = is_shared(core.threads)
        for cpu in core.threads:
            mark = self.of(cpu)
            yield (mark, TextSpan(SHARED_CORE, Tone.WARNING)) if shared else (mark,)


def marks_of(document: MapDocument, focus: str | None = None) -> Marks:
    """Return the marks of a map; with `focus`, the uid of a pod, all others are alike."""
    owners = {owner.uid for cpu in document.cpus for owner in cpu.owners}
    names = _names()
    labels = {pod.uid: next(names) for pod in document.pods if pod.uid in owners}
    tones = {uid: POD_TONES[place % len(POD_TONES)] for place, uid in enumerate(labels)}
    return Marks(labels, tones, {pod.uid: full_name(pod) for pod in document.pods}, focus)


def _names() -> Iterator[str]:
    """Yield A to Z, AA to ZZ and so on, without the letters that mean something else."""
    length = 1
    while True:
        yield from map("".join, product(_LETTERS, repeat=length))
        length += 1

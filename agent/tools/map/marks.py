"""Marks: the character or label that a map draws for a CPU.

A pod that has CPUs gets a label, A, B and so on, in the order of the map. A CPU of one container is
marked with the label, a CPU that the pod's containers share with the label in lower case; a CPU
without a pod is marked with a sign of `MEANINGS`.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.documents.map import CpuUse
from agent.api.map_warnings import is_shared
from agent.pods.model import full_name
from agent.tools.map.spans import POD_TONES, TextSpan, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.api.documents.map import MapCpuDocument, MapDocument
    from agent.tools.map.parts import MappedCore


#: Letters of labels. I, O, R and X are left out: one of their cases is a sign.
_LETTERS: Final = "ABCDEFGHJKLMNPQSTUVWYZ"
_SIGNS: Final = {
    CpuUse.OFFLINE: "x",
    CpuUse.WITHHELD: "-",
    CpuUse.CORDONED: "/",
    CpuUse.RESERVED: "R",
    CpuUse.FREE: ".",
    CpuUse.SHARED: ".",
    CpuUse.ONLINE: ".",
}
#: No pod runs on a CPU of these uses, even where it is allocated.
NOT_THERE: Final = frozenset({CpuUse.OFFLINE, CpuUse.WITHHELD})
#: A CPU with several owners.
TWICE: Final = "*"
#: A CPU of a pod on which the map is not focused.
OTHER: Final = "o"
ISOLATED: Final = "i"
#: Behind the mark of a thread whose core has several users.
SHARED_CORE: Final = "!"

MEANINGS: Final[Mapping[str, str]] = {
    "R": "reserved",
    ".": "shared pool",
    "/": "cordoned",
    "x": "offline",
    "-": "withheld by another cgroup",
    ISOLATED: "isolated, of no pod",
    OTHER: "another pod",
    TWICE: "allocated twice",
    SHARED_CORE: "core with several users",
}


class Marks(Struct, frozen=True):
    """The marks of one map."""

    #: The label of each pod that has CPUs, by uid.
    labels: Mapping[str, str]
    #: The tones of these labels, by uid.
    tones: Mapping[str, Tone]
    #: The `namespace/name` of every pod, by uid.
    names: Mapping[str, str]
    #: The uid of the pod on which the map is focused; the marks of all other pods are alike.
    focus: str | None = None

    def of(self, cpu: MapCpuDocument) -> TextSpan:
        """Return the mark of a CPU.

        A CPU that is offline or withheld has its sign even if a pod has the CPU.
        """
        if cpu.use in NOT_THERE or not cpu.owners:
            usable = cpu.use in (CpuUse.FREE, CpuUse.SHARED, CpuUse.ONLINE)
            sign = ISOLATED if cpu.isolated and usable else _SIGNS[cpu.use]
            return TextSpan(sign, Tone.PLAIN if usable else Tone.FAINT)
        if len(cpu.owners) > 1:
            return TextSpan(TWICE, Tone.WARNING)
        owner = cpu.owners[0]
        if self.focus not in (None, owner.uid):
            return TextSpan(OTHER, Tone.FAINT)
        label = self.labels[owner.uid]
        return TextSpan(label if owner.container else label.lower(), self.tones[owner.uid])

    def in_core(self, core: MappedCore) -> Iterator[tuple[TextSpan, ...]]:
        """Yield the mark of each thread of a core; `SHARED_CORE` follows it in a shared core."""
        shared = is_shared(core.threads)
        for cpu in core.threads:
            mark = self.of(cpu)
            yield (mark, TextSpan(SHARED_CORE, Tone.WARNING)) if shared else (mark,)


def marks_of(document: MapDocument, focus: str | None = None) -> Marks:
    """Return the marks of a map; `focus` is the uid of a pod or None."""
    owners = {owner.uid for cpu in document.cpus for owner in cpu.owners}
    letters = _labels()
    labels = {pod.uid: next(letters) for pod in document.pods if pod.uid in owners}
    tones = {uid: POD_TONES[place % len(POD_TONES)] for place, uid in enumerate(labels)}
    return Marks(labels, tones, {pod.uid: full_name(pod) for pod in document.pods}, focus)


def _labels() -> Iterator[str]:
    """Yield A, B and so on, then AA, AB and so on, of `_LETTERS`."""
    length = 1
    while True:
        yield from map("".join, product(_LETTERS, repeat=length))
        length += 1

"""Interrupts that come while the default is narrowed, and interrupts that cannot be moved at once.

A new interrupt gets the affinity of the default. While that is narrowed for exclusive CPUs, the
interrupt has the narrowed one without having been narrowed: `take_in` says what it would have had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.isolation.places import AFFINITY, DEFAULT_IRQ, IRQ, PLACE_ERRORS, Form, cpus_of
from agent.isolation.report import LateInterrupt
from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.isolation.originals import Custody
    from agent.isolation.places import HostPlaces

_IRQS: Final = f"{IRQ}*{AFFINITY}"


class Interrupts:
    """What is remembered of interrupts between two passes."""

    def __init__(self, places: HostPlaces, custody: Custody) -> None:
        self._places = places
        self._custody = custody
        #: The interrupts of the last pass, none before the first.
        self._seen: set[str] = set()
        #: By place, the CPUs which the interrupt avoids, and how often it had come to these.
        self._came: dict[str, tuple[Mask, int]] = {}

    def take_in(self) -> None:
        """Save the original of the default as that of interrupts that came with the narrowed one.

        Those that came while no agent ran are among them.
        """
        there = set(self._places.find(_IRQS))
        originals = self._custody.originals
        if DEFAULT_IRQ in originals and (new := there - self._seen - originals.keys()):
            wide = str(cpus_of(Form.MASK, originals[DEFAULT_IRQ]))
            narrowed = cpus_of(Form.MASK, self._places.read(DEFAULT_IRQ))
            self._custody.take({name: wide for name in new if self._shows(name, narrowed)})
        self._seen = there

    def _shows(self, name: str, cpus: Mask) -> bool:
        try:
            return Mask.parse(self._places.read(name)) == cpus
        except FileNotFoundError:  # it was freed
            return False

    def still_coming(self, avoided: Mask) -> list[LateInterrupt]:
        """Return the interrupts that came to CPUs that they avoid since the last call.

        One without IRQ_MOVE_PCNTXT is moved when it comes next, so it may come there once more.
        """
        late = []
        for name in self._places.find(_IRQS) if avoided else ():
            if name not in self._custody.originals:
                continue
            irq = name.split("/")[2]
            try:
                effective = Mask.parse(self._places.read(f"{IRQ}{irq}/effective_affinity_list"))
                cpus = effective & avoided - Mask.parse(self._custody.last(name))
                if not cpus:
                    continue
                counts = self._places.read(f"sys/kernel/irq/{irq}/per_cpu_count").split(",")
                came = sum(int(counts[cpu]) for cpu in cpus)
            except (IndexError, *PLACE_ERRORS):  # the kernel shows nothing of it
                continue
            before = self._came.get(name)
            self._came[name] = (cpus, came)
            if before is not None and before[0] == cpus and came > before[1] + 1:
                late.append(LateInterrupt(f"{irq} ({self._places.described(name)})", cpus))
        return late

"""Where an allocation comes from: how its resources were determined."""

from __future__ import annotations

from enum import StrEnum


class Origin(StrEnum):
    """How the resources of an allocation were determined.

    `DECIDED`: for a specification, or matched with one later. `IMPORTED`: taken over from the
    kubelet's state files. `RECOVERED`: taken from what the cgroups of the running pod show. Of the
    last two no specification is known; the first that fits makes the allocation `DECIDED`
    (`agent.managers.readmission`).
    """

    DECIDED = "decided"
    IMPORTED = "imported"
    RECOVERED = "recovered"

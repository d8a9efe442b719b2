"""How long a pod is to stay admitted: until it is removed, or until what runs for it has ended."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agent.values import Saved

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The annotation: `processes` for a pod that ends with its processes.
END: Final = "agent.numawarden/end"
#: The annotation: the systemd unit with which a pod ends.
UNIT: Final = "agent.numawarden/unit"
#: Names of units that have processes (systemd.unit(5)); at most 255 characters.
_UNIT_NAME: Final = re.compile(r"[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]{0,245}\.(service|scope)")


class End(StrEnum):
    """What ends a pod."""

    #: A request over the API, or the source of the pod.
    REMOVAL = "removal"
    #: The end of its last process; until the first one starts, too long a wait for it.
    PROCESSES = "processes"
    #: The end of a systemd unit, but not its restarts.
    UNIT = "unit"


class Lifetime(Saved, frozen=True):
    """What ends a pod; any pod can be removed in addition.

    `unit` is the name of the systemd unit of `End.UNIT`, else "". `started`: processes of the pod
    were seen since its admission.
    """

    end: End = End.REMOVAL
    unit: str = ""
    started: bool = False


UNTIL_REMOVED: Final = Lifetime()


def lifetime_of(annotations: Mapping[str, str]) -> Lifetime:
    """Return the lifetime that the annotations of a valid pod ask for."""
    if unit := annotations.get(UNIT, ""):
        return Lifetime(End.UNIT, unit)
    return Lifetime(End(annotations.get(END, End.REMOVAL)))


def lifetime_faults(annotations: Mapping[str, str], containers: int) -> dict[str, str]:
    """Return what is wrong with the annotations of a pod of so many containers, by annotation."""
    found: dict[str, str] = {}
    end, unit = annotations.get(END), annotations.get(UNIT)
    ends = (End.REMOVAL, End.PROCESSES)
    if end is not None and end not in ends:
        found[END] = f"{end[:40]!r} is not one of {', '.join(ends)}"
    if unit is None:
        return found
    if not _UNIT_NAME.fullmatch(unit):
        found[UNIT] = f"{unit[:40]!r} is not the name of a .service or .scope of systemd"
    elif end is not None:
        found[UNIT] = f"a pod ends with a unit or as {END} says; leave one of the two out"
    elif containers != 1:
        found[UNIT] = f"a unit is one container, the pod has {containers}"
    return found

"""What a pod requires of its allocation, beyond what the policies demand: annotations."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The annotation: names of qualities, separated by commas.
REQUIRE: Final = "agent.numawarden/require"
#: The annotation: NUMA nodes in the kernel's list format, one of which the pod has to be on.
NEAR_NODES: Final = "agent.numawarden/near-nodes"


class Quality(StrEnum):
    """What an allocation can have; each is judged container by container."""

    #: The container has CPUs of its own.
    EXCLUSIVE = "exclusive"
    #: Its CPUs and its memory are on one NUMA node, or on the fewest nodes that have enough.
    ALIGNED = "aligned"
    #: Its exclusive CPUs are whole physical cores: no other container runs on a sibling.
    WHOLE_CORES = "whole-cores"
    #: Each of its devices is on a node of its CPUs, or of its memory where no CPUs are its own.
    NEAR_DEVICE = "near-device"


def required(annotations: Mapping[str, str]) -> frozenset[Quality]:
    """Return what the annotations of a valid pod require."""
    return frozenset(Quality(name) for name in _names(annotations.get(REQUIRE, "")))


def near_nodes(annotations: Mapping[str, str]) -> Mask:
    """Return the nodes that the annotations of a valid pod want to be near, empty for any."""
    return Mask.parse(annotations.get(NEAR_NODES, ""))


def near_nodes_fault(annotations: Mapping[str, str]) -> str:
    """Return what is wrong with the list of nodes in the annotations of a pod, "" for nothing."""
    text = annotations.get(NEAR_NODES)
    if text is None:
        return ""
    try:
        found = Mask.parse(text)
    except ValueError as error:
        return str(error)
    return "" if found else "it lists no node; leave it out or list some, such as 0 or 0-1"


def unknown_qualities(text: str) -> tuple[str, ...]:
    """Return the names in the value of the annotation that are no quality."""
    return tuple(name for name in _names(text) if name not in set(Quality))


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]

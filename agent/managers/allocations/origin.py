"""Where an allocation comes from: who asked for its pod, and how its resources were determined."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from agent.values import Name, Saved


class Origin(StrEnum):
    """How the resources of an allocation were determined.

    `DECIDED`: for a specification, or matched with one later. `IMPORTED`: taken over from the
    kubelet's state files. `RECOVERED`: taken from what the cgroups of the running pod show. Of the
    last two no specification is known; the first that fits makes the allocation `DECIDED`
    (`agent.managers.recovery.readmission`).
    """

    DECIDED = "decided"
    IMPORTED = "imported"
    RECOVERED = "recovered"


class Source(Saved, frozen=True):
    """Who asked for a pod: a source of pods, and what the pod is called there.

    `name` is that of the source (`agent.sources.source.PodSource`). `key` is what the pod belongs
    to (the path of its file, say): the pod ends with it. "" is the key of pods that belong to
    nothing and end when a request removes them, as those of the API.
    """

    name: Name
    key: str = ""

    def __str__(self) -> str:
        return self.key or self.name


#: Pods that were asked for over the API.
API: Final = Source("api")
#: The source of the pods of a kubelet beside the agent.
KUBELET: Final = "kubelet"

"""Events as they happen (`watch`) and as they are kept (`history`), and who asked for a change.

An entry of the history has the same form on the disk (`agent.state.history`).
"""

from __future__ import annotations

from msgspec import field

from agent.api.documents.document import Document
from agent.api.documents.verification import (  # noqa: TC001  # msgspec reads annotations
    DriftDocument,
)


class EventDocument(Document, frozen=True):
    """One line of `watch`.

    `type` is one of `PodAdmitted`, `PodRejected`, `PodShared`, `PodResized`, `PodResizeRejected`,
    `PodMoved`, `PodMoveRejected`, `PodInvalid`, `PodRemoved`, `PodNotEnforced`, `PodNotExclusive`,
    `ContainerBound`, `ContainerUnbound`, `PodRecovered`, `AllocationDisplaced`, `DriftFound`,
    `DriftContested`, `AllocationInvalid`, `HostChanged`, `ManifestInvalid`, `EventsLost`.
    """

    type: str
    time: float
    operation: str
    uid: str | None = None
    pod: str | None = None
    message: str = ""


class HistoryDocument(Document, frozen=True):
    """The latest entries that were asked for, the latest first."""

    entries: tuple[HistoryEntry, ...]
    #: There are older ones.
    more: bool = False
    #: The number of lines that could not be read as entries.
    damaged: int = 0


class HistoryEntry(Document, frozen=True):
    """One event of the past."""

    #: The type of the event (`EventDocument`).
    type: str
    #: Unix time in seconds.
    time: float
    #: The id in the log lines; "" for what belongs to none.
    operation: str = ""
    #: "" for what belongs to no pod.
    uid: str = ""
    #: "" for what belongs to no pod.
    pod: str = ""
    message: str = ""
    #: Null for what the agent does by itself.
    requester: RequesterDocument | None = None
    #: The settings of cgroups that differed: of a `DriftFound`.
    differences: tuple[DriftDocument, ...] = ()
    #: What the kubelet beside the agent had given when a pod was admitted or rejected, by container
    #: (`ContainerDocument`).
    kubelet_devices: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    def of_pod(self, named: str) -> bool:
        """Return whether this is of the pod with a uid, name or namespace/name."""
        return named in (self.uid, self.pod, self.pod.partition("/")[2])


class RequesterDocument(Document, frozen=True):
    """Who asked for a change: a source of pods, or a process over the API."""

    #: `api`, or the key of the pod in the source, such as the path of a manifest.
    source: str
    #: The user of the process, as the kernel recorded it at connect(2); null for another source.
    uid: int | None = None
    #: The process, as the kernel recorded it at connect(2); null for another source.
    pid: int | None = None
    #: The text of `/proc/PID/comm` when the request came; "" where the process had ended.
    command: str = ""
    #: The user who logged in (`/proc/PID/loginuid`), such as before sudo; null where unknown.
    login: int | None = None

    def line(self) -> str:
        """Return who asked, in a few words."""
        if self.pid is None:
            return f"by {self.source}"
        login = "" if self.login in (None, self.uid) else f" (logged in as {self.login})"
        return f"by uid {self.uid}{login}, {self.command or 'process'}[{self.pid}]"

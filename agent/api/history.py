"""The documents of the history: what happened, when, in which operation, and who asked for it.

An entry is one line of the history on disk (`agent.state.history`) and one entry of the answer to
`GET /v1/history`: both have the same form.
"""

from __future__ import annotations

from msgspec import field

from agent.api.documents import Document
from agent.api.status import DriftDocument  # noqa: TC001 - msgspec reads it at run time


class RequesterDocument(Document, frozen=True):
    """Who asked for a change: a source of pods by its key (a file), or a process over the API.

    `source` is `api`, or the key of the source. `uid` and `pid` are those of the process as the
    kernel recorded them at connect(2), null for another source; `command` is what its
    `/proc/PID/comm` showed when the request came, "" where the process had ended by then.
    """

    source: str
    uid: int | None = None
    pid: int | None = None
    command: str = ""

    def line(self) -> str:
        """Return who asked, in a few words."""
        if self.pid is None:
            return f"by {self.source}"
        return f"by uid {self.uid}, {self.command or 'process'}[{self.pid}]"


class HistoryEntry(Document, frozen=True):
    """One thing that happened; `type` is that of the event, `time` a Unix time in seconds.

    `operation` is the id that the log lines have, "" for what belongs to none. `uid` and `pod` are
    "" for what is of no pod. `requester` is null for what the agent does by itself. `differences`
    are the settings of cgroups that differed, of a `DriftFound`. `kubelet_devices` are those that
    the kubelet beside the agent had given when a pod was admitted or rejected, by container
    (`agent.api.documents.ContainerDocument`): what a replay needs beside the manifest.
    """

    type: str
    time: float
    operation: str = ""
    uid: str = ""
    pod: str = ""
    message: str = ""
    requester: RequesterDocument | None = None
    differences: tuple[DriftDocument, ...] = ()
    kubelet_devices: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    def of_pod(self, named: str) -> bool:
        """Return whether this is of the pod with a uid, name or namespace/name."""
        return named in (self.uid, self.pod, self.pod.partition("/")[2])


class HistoryDocument(Document, frozen=True):
    """The latest entries that were asked for, the latest first.

    `more`: there are older ones. `damaged` counts lines that could not be read as entries.
    """

    entries: tuple[HistoryEntry, ...]
    more: bool = False
    damaged: int = 0

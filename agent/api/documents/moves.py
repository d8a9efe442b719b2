"""Moves of running pods: what a plan advises, and what a request asks for.

Sets of CPUs and of NUMA nodes are in the kernel's list format; the nodes are those of pinned
memory, "" where none is pinned.
"""

from __future__ import annotations

from agent.api.documents.document import Document
from agent.api.documents.rejections import RejectionDocument  # noqa: TC001  # msgspec reads it
from agent.managers.amounts import FreeCpus  # noqa: TC001  # msgspec reads it


class MoveRequest(Document, frozen=True, forbid_unknown_fields=True):
    """Where a pod is, and where it is to be."""

    cpus: str
    new_cpus: str
    nodes: str = ""
    new_nodes: str = ""
    #: The share of the last 10 seconds, in percent, in which a task of the pod waited for CPUs or
    #: for memory; above it the pod does not move.
    pressure: float = 20.0


class MovesDocument(Document, frozen=True):
    """Whether a pod fits, and the fewest moves that make room for it; nothing is changed."""

    uid: str
    name: str
    namespace: str
    #: It is admitted, or would be now.
    fits: bool
    #: What it would have after the moves; null where nothing that was tried makes room.
    cpus: str | None
    nodes: str | None
    #: In the order in which they have to be made.
    moves: tuple[MoveDocument, ...]
    #: Why it does not fit now; null if it does.
    rejection: RejectionDocument | None = None
    #: Where no moves make room: pods each of which alone would, with another annotation.
    would_help: tuple[HelpfulPodDocument, ...] = ()
    #: There are more combinations of pods than were tried; one may make room, or be better.
    limited: bool = False


class DefragmentDocument(Document, frozen=True):
    """The moves after which one NUMA node has more free CPUs; nothing is changed."""

    #: In the order in which they have to be made; empty where none helps.
    moves: tuple[MoveDocument, ...]
    #: The CPUs that may still be allocated exclusively, now and after the moves.
    free: FreeCpus
    then: FreeCpus
    #: There are more moves than were tried; others may be better.
    limited: bool = False


class MoveDocument(Document, frozen=True):
    """One pod that moves."""

    uid: str
    name: str
    namespace: str
    cpus: str
    new_cpus: str
    nodes: str
    new_nodes: str
    #: The pages of its cgroup on nodes that it leaves, in bytes; null where that is not known.
    bytes: int | None


class HelpfulPodDocument(Document, frozen=True):
    """A pod whose move would make room, which its annotation does not allow."""

    uid: str
    name: str
    namespace: str
    #: The annotation that would allow it, and its value.
    annotation: str
    value: str

"""A source of pods: what it has to be able to do, and what it passes on.

A source knows which pods are to run and nothing of the ledger. The agent reads it at the start,
whenever its stream of changes yields, and from time to time; it admits what the source asks for and
removes what the source no longer asks for (`agent.server.intake.PodIntake`). Sources are registered
in `SOURCES` (`agent/server/start/wiring.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from agent.pods.identity import NO_IDENTITY, PodIdentity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from agent.pods.model import Pod


#: What has become of an entry: its pod is admitted; or rejected; or its uid is that of another pod
#: or specification; or the pod cannot be read; or it was rejected and runs in the shared pool.
ADMITTED: Final = "admitted"
REJECTED: Final = "rejected"
CONFLICT: Final = "conflict"
INVALID: Final = "invalid"
SHARED: Final = "shared"
ENTRY_STATES: Final = (ADMITTED, CONFLICT, INVALID, REJECTED, SHARED)


class SourceEntry(Struct, frozen=True):
    """One pod that a source asks for, or why the pod cannot be read.

    `key` is what the pod belongs to, such as the path of its file: unique in its source, the same
    after a restart of the agent, never "". Users see the key alone, so it says what it is (a path
    does, a number does not). An entry that cannot be read keeps its pod. Of a
    `ManifestError` each mistake is reported, of another `error` its first line.
    `identity` is that of a pod which cannot be read, as far as the source knows it otherwise.
    """

    key: str
    pod: Pod | None = None
    error: Exception | None = None
    identity: PodIdentity = NO_IDENTITY

    def __post_init__(self) -> None:
        """Raise `ValueError` without a key: a pod that belongs to nothing would never end."""
        if not self.key:
            raise ValueError("an entry of a source of pods needs a key that its pod belongs to")


class SourceReading(Struct, frozen=True):
    """What a source asks for.

    `complete`: `entries` are all that the source asks for, so a pod whose key is missing is
    removed. Otherwise `entries` are new or changed ones, and only the pods of the keys in `removed`
    are removed, unless an entry asks for the key again. `conditions` say what the source could not
    find out, a line each; they replace those of the reading before.
    """

    entries: tuple[SourceEntry, ...] = ()
    complete: bool = True
    removed: frozenset[str] = frozenset()
    conditions: tuple[str, ...] = ()


class PodSource(Protocol):
    """A source of pods.

    Name and keys are stored with each allocation (`agent.managers.allocations.origin.Source`), so
    that a pod which is no longer asked for after a restart of the agent is removed.
    """

    @property
    def name(self) -> str:
        """The name, unique among all sources and the same in every release."""
        ...

    @property
    def removal(self) -> str:
        """What to do to end a pod of this source, as an imperative: `delete that file`."""
        ...

    def covers(self, key: str) -> bool:
        """Return whether the source, as configured now, would list the pod of a key.

        A pod of any other key, such as a file of another directory, stays until it is removed over
        the API.
        """
        ...

    def resume(self, keys: Collection[str]) -> None:
        """Take over the keys of the pods of this source that are admitted or run shared.

        Called once, before the first `read`; those that the source does not cover are not among
        them. A source whose readings are complete need not remember them.
        """
        ...

    def read(self) -> SourceReading:
        """Return what the source asks for.

        Runs in the thread that writes cgroups as well: files may be read here, but nothing may wait
        for another process. That is for `changes`, or for a thread of the source's own.

        An exception means that nothing is known: no pod is admitted or removed, and its message is
        shown in the status until a later reading succeeds. What a sound source can meet is a
        `SourceUnreadableError` with a remedy; the log has the traceback of any other.
        """
        ...

    def changes(self) -> AsyncIterator[object]:
        """Start, and yield whenever there is something to read; runs until the agent stops.

        A stream that ends or breaks is opened again after a while, and its error is shown in the
        status until then. Meanwhile the source is read from time to time.
        """
        ...

"""A source of pods: what it has to be able to do, and what it passes on.

A source knows which pods are to run and nothing of the ledger. The agent reads it at the start,
whenever its stream of changes yields, and from time to time; it admits what the source asks for and
removes what the source no longer asks for (`agent.server.intake.PodIntake`). Sources are registered
in `Plugs.sources` (`agent/server/plugs.py`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.ledger import differences
from agent.pods.model import (
    NO_IDENTITY,
    PodIdentity,
    full_name,
    isolation_of,
    lifetime_of,
    name_and_uid,
    own_annotations,
)
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from pathlib import Path

    from agent.managers.allocation import PodAllocation, Source
    from agent.managers.ledger import Ledger
    from agent.pods.model import Named, Pod

#: What has become of an entry: its pod is admitted; or rejected; or its uid is that of another pod
#: or specification; or the pod cannot be read; or it was rejected and runs in the shared pool.
ADMITTED: Final = "admitted"
REJECTED: Final = "rejected"
CONFLICT: Final = "conflict"
INVALID: Final = "invalid"
SHARED: Final = "shared"
ENTRY_STATES: Final = (ADMITTED, CONFLICT, INVALID, REJECTED, SHARED)


class SourceUnreadableError(Exception):
    """A source of pods cannot be read: `found` says why, `reason` for programs, and a remedy."""

    def __init__(self, found: str, remedy: str, reason: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found
        self.remedy = remedy
        self.reason = reason


class ManifestDirectoryError(SourceUnreadableError):
    """The manifest directory cannot be used; the message has what was found and a remedy."""

    def __init__(
        self, directory: Path, found: str, remedy: str, reason: str = "DirectoryUnusable"
    ) -> None:
        super().__init__(f"manifest directory {directory}: {found}", remedy, reason)


class ManifestFileError(Exception):
    """A file of the manifest directory is not read; `found` has the reason."""

    def __init__(self, path: Path, found: str, remedy: str) -> None:
        super().__init__(f"{printable(str(path))}: {found}; {remedy}")


class EntryFailedError(Exception):
    """An unexpected `error` while processing one entry of a source, such as a file."""

    def __init__(self, key: str, error: Exception) -> None:
        kind = type(error).__name__
        super().__init__(f"{key}: internal error ({kind}); see the agent log")


def owner_after(owner: Source | None, asking: Source) -> Source:
    """Return who a pod of `owner` belongs to after `asking` asked for it, too.

    What belongs to nothing (`Source.key`) takes no pod over: a file keeps its pod if the API is
    asked for the same pod. A file takes over a pod of the API.
    """
    return asking if owner is None or asking.key else owner


def assigned(decision: Decision, before: Ledger, asking: Source) -> Decision:
    """Return a decision whose pod belongs to who asked for it; `before` is the ledger until then.

    A rejection, and a pod that belongs to that source already, stay as they are.
    """
    allocation = decision.allocation
    if allocation is None:
        return decision
    former = before.allocations.get(decision.uid)
    source = owner_after(None if former is None else former.source, asking)
    if allocation.source == source:
        return decision
    ledger = decision.ledger.with_source(decision.uid, source)
    return replace(decision, ledger=ledger, allocation=ledger.allocations[decision.uid])


def lasting(decision: Decision, pod: Pod) -> Decision:
    """Return a decision whose pod has the lifetime and isolation that its annotations ask for.

    A pod that is admitted again with the same ones stays as it is.
    """
    allocation = decision.allocation
    if allocation is None:
        return decision
    asked, isolation = lifetime_of(pod.annotations), isolation_of(pod.annotations)
    annotations, lifetime = own_annotations(pod.annotations), allocation.lifetime
    if replace(lifetime, started=False) != asked:
        lifetime = asked
    elif (allocation.isolation, allocation.annotations) == (isolation, annotations):
        return decision
    ledger = decision.ledger.with_lifetime(decision.uid, lifetime, isolation, annotations)
    return replace(decision, ledger=ledger, allocation=ledger.allocations[decision.uid])


class PodNames:
    """The uids of the admitted pods by namespace and name; those without a name are left out.

    Asked about one ledger after the other, an answer costs as much as the ledger changed.
    """

    def __init__(self) -> None:
        self._allocations: Mapping[str, PodAllocation] = MappingProxyType({})
        self._uids: dict[tuple[str, str], dict[str, None]] = {}

    def others(self, ledger: Ledger, pod: Named) -> tuple[PodAllocation, ...]:
        """Return the admitted pods with the namespace and name of a pod that is not admitted."""
        self._take(ledger.allocations)
        if pod.uid in ledger.allocations or not pod.name:
            return ()
        uids = self._uids.get((pod.namespace, pod.name), {})
        return tuple(ledger.allocations[uid] for uid in uids)

    def _take(self, allocations: Mapping[str, PodAllocation]) -> None:
        old, self._allocations = self._allocations, allocations
        for uid in differences(old, allocations):
            if (former := old.get(uid)) is not None and former.name:
                known = self._uids[former.namespace, former.name]
                del known[uid]
                if not known:
                    del self._uids[former.namespace, former.name]
            if (now := allocations.get(uid)) is not None and now.name:
                self._uids.setdefault((now.namespace, now.name), {})[uid] = None


def name_taken(ledger: Ledger, pod: Pod, others: Sequence[PodAllocation]) -> Decision:
    """Return the rejection of a pod whose name `others` have."""
    if len(others) == 1:
        message = f"pod {name_and_uid(others[0])} is admitted and has that name"
        remedy = "remove it first, replace it (numawarden admit --replace), or rename the new pod"
    else:
        uids = ", ".join(other.uid for other in others)
        message = f"{len(others)} admitted pods are called {full_name(pod)}: {uids}"
        remedy = "remove them by their uids first, or rename the new pod"
    return Decision(pod.uid, ledger, cause=Rejection(Reason.CONFLICT, message, remedy=remedy))


def belongs_elsewhere(
    ledger: Ledger, pod: Pod, owner: Source, removal: str, *, uid: str | None = None
) -> Decision:
    """Return the rejection of a pod: that of its uid, or of `uid`, belongs to another source."""
    allocation, own = ledger.allocations[uid or pod.uid], "a uid" if uid is None else "a name"
    rejection = Rejection(
        Reason.CONFLICT,
        f"pod {name_and_uid(allocation)} belongs to {owner} of the source {owner.name}",
        remedy=f"{removal} to end that pod first, or give the new pod {own} of its own",
    )
    return Decision(pod.uid, ledger, cause=rejection)


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

    Name and keys are stored with each allocation (`agent.managers.allocation.Source`), so
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

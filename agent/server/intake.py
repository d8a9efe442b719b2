"""The intake: keeps the ledger's pods in agreement with what one source of pods asks for.

In go the readings of the source, and the keys of pods whose containers are about to start. Out come
admissions and removals of pods, and for each key a `ManifestDocument` with its outcome:

- admitted: the pod has an allocation.
- rejected: there is no room for the pod. It is tried again when another pod may have made room.
- shared: the pod was rejected, and its kubelet runs it all the same, on the CPUs of the shared
  pool. It is tried again when one of its containers starts and there is room.
- conflict: the uid is that of an earlier entry, or of an admitted pod that differs.
- invalid: the entry cannot be read, or an error prevented its admission or removal.

Always true:

- An admitted pod is not decided again. An entry that changed but has the uid of its admitted pod is
  a conflict, until it is removed and added again.
- Only an entry that is certainly removed, or states another uid, releases its pod. An entry that
  can no longer be read keeps its pod, and so do all entries if the source cannot be read.
- An admitted pod belongs to the entry that it was admitted for. Any other pod belongs to the first
  entry of a reading that states its uid.
- An entry does not change while its pod is being admitted: the reading waits for the admission.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from agent.api.documents.status import ManifestDocument
from agent.managers.allocation import Source
from agent.managers.decision import Reason
from agent.pods.model import END, UNIT, End, ManifestError, PodIdentity, lifetime_of
from agent.server.admissions import MOST_AT_ONCE
from agent.sources.source import (
    ADMITTED,
    CONFLICT,
    INVALID,
    REJECTED,
    SHARED,
    EntryFailedError,
    SourceEntry,
)
from agent.text import printable
from agent.yaml import MISTAKES_REPORTED, Mistake

if TYPE_CHECKING:
    from agent.api.documents.admissions import AdmissionDocument
    from agent.pods.model import Named, Pod
    from agent.server.source_admissions import SourceAdmissions
    from agent.sources.source import PodSource, SourceReading

#: What is said of a pod that runs shared and would be admitted now.
ROOM_NOW: Final = (
    "there is room now, and the pod gets its own when one of its containers starts again"
)


class EntryState(Enum):
    """How far an entry is; `Entry` says what leads from one to the next."""

    UNREAD = auto()
    TO_SETTLE = auto()
    SETTLING = auto()
    SETTLED = auto()
    REMOVED = auto()


class EntryOutcome(Struct, frozen=True):
    """The last outcome of an entry."""

    document: ManifestDocument
    #: The pod that was tried. None if none was, or if the next sync is to try it in any case.
    pod: Pod | None = None
    #: `SourceAdmissions.generation` when the pod was tried.
    generation: int = 0


class Entry(Struct, eq=False):
    """A key of the source, what the source says of it, and its outcome.

    | state | what it means | what leads out of it |
    |---|---|---|
    | `UNREAD` | a pod of an earlier run has the key; no reading named it | a reading |
    | `TO_SETTLE` | the source asks for a pod that was not tried | a sync: `SETTLING` |
    | `SETTLING` | the pod is being admitted | `SETTLED`; after an error `TO_SETTLE` |
    | `SETTLED` | `outcome` is that of the pod | a reading; if the ledger changed, a sync |
    | `REMOVED` | the source no longer asks for a pod | a reading that names the key |

    An entry that is unread or removed is forgotten once no pod has its key.
    """

    key: str
    #: What the source says of the key now.
    says: SourceEntry | Literal[EntryState.UNREAD, EntryState.REMOVED] = EntryState.UNREAD
    outcome: EntryOutcome | None = None
    #: Whether a container of the pod starts: if the pod runs shared, it is tried again.
    starts: bool = False
    #: The admission of the pod that is in progress.
    admission: asyncio.Task[EntryOutcome] | None = None

    @property
    def pod(self) -> Pod | None:
        """The pod that the source asks for. None: it asks for none, or cannot be read."""
        return self.says.pod if isinstance(self.says, SourceEntry) else None

    @property
    def state(self) -> EntryState:
        """How far the entry is."""
        if not isinstance(self.says, SourceEntry):
            return self.says
        if self.admission is not None:
            return EntryState.SETTLING
        tried = self.outcome is not None and self.outcome.pod == self.pod
        return EntryState.SETTLED if tried else EntryState.TO_SETTLE

    def keeps(self, uid: str) -> bool:
        """Return whether a pod of the key stays: neither removed nor replaced by another one."""
        return self.says is not EntryState.REMOVED if self.pod is None else self.pod.uid == uid


class PodIntake:
    """Admits the pods that a source asks for and removes those that it no longer asks for."""

    def __init__(self, source: PodSource, admissions: SourceAdmissions) -> None:
        self.source = source
        self._admissions = admissions
        #: By key, in the order of the last reading.
        self._entries: dict[str, Entry] = {}
        #: What the last reading could not find out; None until the source was resumed.
        self._conditions: tuple[str, ...] | None = None
        #: Held by the call that reads the source.
        self._reading = asyncio.Lock()
        #: Whether a call waits for a reading that has not begun.
        self._reading_due = False

    async def sync(self) -> None:
        """Read the source, release and admit pods; report the outcome of every entry.

        Raises what the source raises if it cannot be read, without having changed anything. Raises
        what the admission of one pod raises; other admissions that were begun go on.
        """
        await self._read()
        # An admission begins when it is drawn from the iterator. So at most these wait in the line
        # before a pod whose container starts.
        admissions = filter(None, map(self._begin, tuple(self._entries.values())))
        pending = {*islice(admissions, MOST_AT_ONCE)}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for admission in done:
                admission.result()
            pending.update(islice(admissions, MOST_AT_ONCE - len(pending)))
        self._report()

    async def settle(self, key: str) -> ManifestDocument | None:
        """Read the source, release pods, and admit one pod before all others that wait.

        Returns the outcome of the entry, None without an entry. Raises as `sync` does.
        """
        await self._read()
        entry = self._entries.get(key) or Entry(key)
        admission = self._begin(entry)
        outcome = entry.outcome if admission is None else await asyncio.shield(admission)
        self._report()
        return None if outcome is None else outcome.document

    def try_again(self, key: str) -> None:
        """Note that a container starts: an entry that runs shared is tried when settled next."""
        self._entries.setdefault(key, Entry(key)).starts = True

    async def _read(self) -> None:
        """Have a reading that begins after this call; of several calls, one reads for all."""
        self._reading_due = True
        async with self._reading:
            if not self._reading_due:
                return
            self._reading_due = False
            try:
                if self._conditions is None:
                    self.source.resume([*self._owned().values()])
                    self._conditions = ()
                reading = await self._admissions.read(self.source)
                await self._apply(reading)
                await self._release()
            except BaseException:
                self._reading_due = True
                raise

    def _owned(self) -> dict[str, str]:
        """Return the key of every pod that the source, as configured now, answers for, by uid."""
        owned = self._admissions.owned(self.source.name)
        return {uid: key for uid, key in owned.items() if self.source.covers(key)}

    async def _apply(self, reading: SourceReading) -> None:
        """Bring the entries up to a reading."""
        # 1. Have an entry for every key of the reading, of former readings and of pods.
        owned, named = self._owned(), {says.key: says for says in reading.entries}
        keys = dict.fromkeys((*named, *self._entries, *owned.values()))
        self._entries = {key: self._entries.get(key) or Entry(key) for key in keys}
        # 2. Find the entries that change. A complete reading removes what it does not name.
        changes = dict[str, SourceEntry | Literal[EntryState.REMOVED]](named)
        for key in keys if reading.complete else reading.removed:
            changes.setdefault(key, EntryState.REMOVED)
        entries = self._entries.values()
        changed = [entry for entry in entries if changes.get(entry.key, entry.says) != entry.says]
        # 3. Change them after their admissions.
        while pending := [entry.admission for entry in changed if entry.admission is not None]:
            await asyncio.wait(pending)
        for entry in changed:
            entry.says = changes[entry.key]
            if entry.says is EntryState.REMOVED:
                entry.outcome, entry.starts = None, False
        # 4. An entry that is not read yet has an outcome all the same if its pod runs shared.
        for uid, key in owned.items():
            entry, shared = self._entries[key], self._admissions.shared(uid)
            if entry.state is EntryState.UNREAD and shared is not None:
                entry.outcome = EntryOutcome(self._document(key, SHARED, shared.why, shared))
        self._conditions = reading.conditions

    async def _release(self) -> None:
        """Release the pods that no entry asks for, then forget the entries without a pod.

        If a removed entry has a pod and another entry states its uid, the pod is not released here:
        `_admit` hands it over.
        """
        uids = {entry.pod.uid for entry in self._entries.values() if entry.pod is not None}
        for uid, key in self._owned().items():
            entry = self._entries.setdefault(key, Entry(key))
            if entry.keeps(uid) or (entry.state is EntryState.REMOVED and uid in uids):
                continue
            try:
                await self._admissions.release(uid, self._source(key))
            except EntryFailedError as error:
                message = f"its pod is no longer asked for but could not be removed: {error}"
                document = self._document(key, INVALID, message, PodIdentity(uid))
                entry.outcome = EntryOutcome(document)
        keys = {*self._owned().values()}
        for key, entry in tuple(self._entries.items()):
            if key not in keys and not isinstance(entry.says, SourceEntry):
                del self._entries[key]

    def _begin(self, entry: Entry) -> asyncio.Task[EntryOutcome] | None:
        """Return the admission of an entry's pod. None if it needs none: `outcome` is current."""
        says = entry.says
        if entry.admission is not None or not isinstance(says, SourceEntry):
            return entry.admission
        if says.pod is None:
            entry.outcome = EntryOutcome(self._unreadable(says))
        elif (outcome := self._outcome_without_admission(entry, says.pod)) is not None:
            entry.outcome = outcome
        else:
            entry.admission = asyncio.create_task(self._settle(entry, says.pod))
            # An error is raised to the calls that wait for the admission. If none does, the next
            # sync meets the error again.
            entry.admission.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry.admission

    def _outcome_without_admission(self, entry: Entry, pod: Pod) -> EntryOutcome | None:
        """Return the outcome of an entry, None if its pod is to be admitted or tried again."""
        # 1. A pod that ends by itself would be admitted again as soon as it had ended.
        if lifetime_of(pod.annotations).end is not End.REMOVAL:
            message = f"its pod cannot end by itself: leave {END} and {UNIT} out, or admit it"
            document = self._document(entry.key, INVALID, f"{message} over the API", pod)
            return EntryOutcome(document)
        # 2. Another entry has the uid.
        if (first := self._entry_of(pod.uid)) is not entry:
            message = f"states the same uid as {first.key}, which came first"
            return EntryOutcome(self._document(entry.key, CONFLICT, message, pod))
        # 3. The pod was not tried as it is now, or its last outcome may be another one by now.
        outcome = entry.outcome if entry.state is EntryState.SETTLED else None
        if outcome is None:
            return None
        state = outcome.document.state
        is_current = outcome.generation == self._admissions.generation()
        if self._admissions.shared(pod.uid) is not None:
            is_current = is_current and state == SHARED and not entry.starts
        elif state == ADMITTED:
            is_current = self._entry_of_admitted(pod.uid) is entry
        return outcome if is_current else None

    def _entry_of(self, uid: str) -> Entry:
        """Return the entry that a uid belongs to; at least one entry states the uid."""
        admitted = self._entry_of_admitted(uid)
        if admitted is not None and admitted.keeps(uid):
            return admitted
        entries = self._entries.values()
        return next(entry for entry in entries if entry.pod is not None and entry.pod.uid == uid)

    def _entry_of_admitted(self, uid: str) -> Entry | None:
        """Return the entry that an admitted pod belongs to, None if it is not of this source."""
        owner = self._admissions.owner(uid)
        if owner is None or owner.name != self.source.name:
            return None
        return self._entries.get(owner.key)

    async def _settle(self, entry: Entry, pod: Pod) -> EntryOutcome:
        try:
            entry.outcome = outcome = await self._try(entry, pod)
            return outcome
        finally:
            entry.admission = None

    async def _try(self, entry: Entry, pod: Pod) -> EntryOutcome:
        """Admit a pod; if it runs shared, only when one of its containers starts and it fits."""
        key, generation = entry.key, self._admissions.generation()
        starts, entry.starts = entry.starts, False
        shared = self._admissions.shared(pod.uid)
        try:
            fits = shared is None or await self._admissions.fits(pod, self._source(key))
            if shared is None or (fits and starts):
                state, message = _state_and_message(await self._admit(pod, key))
            else:
                state, message = SHARED, f"{shared.why}; {ROOM_NOW}" if fits else shared.why
        except EntryFailedError as error:
            return EntryOutcome(self._document(key, INVALID, str(error), pod))
        if shared is not None and state == REJECTED:  # another pod took the room meanwhile
            state, message = SHARED, shared.why
        return EntryOutcome(self._document(key, state, message, pod), pod, generation)

    async def _admit(self, pod: Pod, key: str) -> AdmissionDocument:
        """Admit a pod. If a removed entry still has it, release it there and admit it again."""
        answer = await self._admissions.admit(pod, self._source(key))
        owner = self._entry_of_admitted(pod.uid)
        if owner is None or owner.state is not EntryState.REMOVED:
            return answer
        await self._admissions.release(pod.uid, self._source(owner.key))
        return await self._admissions.admit(pod, self._source(key))

    def _source(self, key: str) -> Source:
        return Source(self.source.name, key)

    def _report(self) -> None:
        entries = self._entries.items()
        documents = {key: entry.outcome.document for key, entry in entries if entry.outcome}
        self._admissions.report(self.source.name, documents, self._conditions or ())

    def _document(
        self, key: str, state: str, message: str, pod: Named, details: tuple[Mistake, ...] = ()
    ) -> ManifestDocument:
        return ManifestDocument(
            file=printable(key),
            state=state,
            uid=pod.uid or None,
            message=message,
            details=details,
            name=pod.name,
            namespace=pod.namespace,
            source=self.source.name,
        )

    def _unreadable(self, says: SourceEntry) -> ManifestDocument:
        """Return the document of an entry that cannot be read."""
        identity, details = says.identity, tuple[Mistake, ...]()
        if isinstance(says.error, ManifestError):
            identity = says.error.identity
            details = says.error.problems[:MISTAKES_REPORTED]
        message = _without_key(str(says.error).partition("\n")[0], says.key)
        return self._document(says.key, INVALID, message, identity, details)


def _state_and_message(answer: AdmissionDocument) -> tuple[str, str]:
    """Return the state of an entry whose pod had this answer, and the message for it."""
    rejection = answer.rejection
    if rejection is None:
        return ADMITTED, ""
    state = CONFLICT if rejection.reason == Reason.CONFLICT else REJECTED
    return state, f"{rejection.reason}: {rejection.message}"


def _without_key(message: str, key: str) -> str:
    """Return a message without the key that it begins with: the document names the key already."""
    return message.removeprefix(f"{key}: ").removeprefix(f"{printable(key)}: ")

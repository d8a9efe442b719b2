"""The intake: keeps the ledger's pods in agreement with what one source of pods asks for.

In go the readings of the source, and the keys of pods whose containers are about to start. Out come
admissions and removals of pods, and for each key the `ManifestDocument` of what became of it. What
a source says of a key, and what came of it, is one `Entry`. Always true:

- An admitted pod is not decided again. An entry that changed but has the uid of its admitted pod is
  reported as a conflict, until it is removed and added again.
- Only an entry that is certainly removed, or states another uid, releases its pod. An entry that
  can no longer be read keeps its pod, and so does a source that cannot be read at all.
- An admitted pod belongs to the entry that it was admitted for, any other to the first entry of a
  reading that states its uid.
- What an entry says does not change while its pod is being admitted: the reading waits for that.

A rejected pod that its kubelet starts all the same *runs shared*: on the CPUs of the shared pool,
until one of its containers starts again and there is room for its own.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import structlog
from msgspec import Struct

from agent.api.documents import ManifestDocument, RequesterDocument
from agent.managers.allocation import Source
from agent.managers.decision import Reason
from agent.pods.model import END, UNIT, End, ManifestError, PodIdentity, lifetime_of
from agent.server.admissions import MOST_AT_ONCE
from agent.server.errors import PodNotFoundError, RequestError
from agent.server.operations import requested_by
from agent.server.queue import QueueStopped
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
    from collections.abc import Mapping

    from agent.api.documents import AdmissionDocument
    from agent.pods.model import Named, Pod
    from agent.server.controller import Controller
    from agent.sources.source import PodSource, SourceReading
    from agent.state.checkpoint import SharedPod

log = structlog.get_logger(__name__)


#: What is said of a pod that runs shared and would be admitted now.
_ROOM_NOW: Final = (
    "there is room now, and the pod gets its own when one of its containers starts again"
)


class SourceAdmissions:
    """Admits and removes the pods of sources through the controller.

    `admit` and `release` raise `EntryFailedError` for an unexpected error of one pod; all other
    exceptions concern all entries.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def read(self, source: PodSource) -> SourceReading:
        """Read a source in the worker thread."""
        return await self._controller.worker.run(source.read)

    async def admit(self, pod: Pod, source: Source) -> AdmissionDocument:
        """Admit a pod; it belongs to `source` from then on."""
        try:
            with requested_by(RequesterDocument(source=printable(str(source)))):
                return await self._controller.admit(pod, source)
        except (RequestError, QueueStopped):
            raise
        except Exception as error:
            raise _failed(source, error) from error

    async def fits(self, pod: Pod, source: Source) -> bool:
        """Return whether a pod would be admitted now."""
        decider = self._controller.decider
        try:
            pod = await decider.with_devices(pod, source)
            return decider.preview(pod, source).allocation is not None
        except Exception as error:
            raise _failed(source, error) from error

    async def release(self, uid: str, source: Source) -> None:
        """Remove a pod that its source no longer asks for, admitted or not."""
        try:
            with requested_by(RequesterDocument(source=printable(str(source)))):
                if self.shared(uid) is not None:
                    await self._controller.end_shared(uid)
                else:
                    await self._controller.release(uid)
        except PodNotFoundError:  # removed by another request meanwhile
            return
        except (RequestError, QueueStopped):
            raise
        except Exception as error:
            raise _failed(source, error) from error

    def owner(self, uid: str) -> Source | None:
        """Return who asked for an admitted pod, None for an unknown pod."""
        allocation = self._controller.state.ledger.allocations.get(uid)
        return None if allocation is None else allocation.source

    def owned(self, name: str) -> Mapping[str, str]:
        """Return the key of every pod of a source that is admitted or runs shared, by uid."""
        durable = self._controller.state.durable
        return {
            uid: pod.source.key
            for pods in (durable.ledger.allocations, durable.shared)
            for uid, pod in pods.items()
            if pod.source is not None and pod.source.name == name
        }

    def shared(self, uid: str) -> SharedPod | None:
        """Return a rejected pod that runs in the shared pool, None for any other pod."""
        return self._controller.shared_pod(uid)

    def generation(self) -> int:
        """Return a number that changes whenever a rejected pod might fit now."""
        return self._controller.state.observed.releases

    def report(
        self, name: str, documents: Mapping[str, ManifestDocument], conditions: tuple[str, ...]
    ) -> None:
        """Report entries that became invalid, and keep all for the status."""
        self._controller.rejections.report_entries(name, documents)
        self._controller.state.observed.sources.note_reading(name, documents, conditions)


class EntryState(Enum):
    """How far an entry is; `Entry` says what leads from one to the next."""

    UNREAD = auto()
    TO_SETTLE = auto()
    SETTLING = auto()
    SETTLED = auto()
    REMOVED = auto()


class EntryOutcome(Struct, frozen=True):
    """What became of an entry last."""

    document: ManifestDocument
    #: The pod that was tried; None if none was, or it is to be tried again whatever happens.
    pod: Pod | None = None
    #: `SourceAdmissions.generation` when the pod was tried.
    generation: int = 0


class Entry(Struct, eq=False):
    """All that is known of one key of a source.

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
    #: Whether a container of the pod starts, so that it is admitted where it runs shared and there
    #: is room now.
    again: bool = False
    #: The admission of the pod, while that goes on.
    task: asyncio.Task[EntryOutcome] | None = None

    @property
    def pod(self) -> Pod | None:
        """The pod that the source asks for, None if it asks for none or that cannot be read."""
        return self.says.pod if isinstance(self.says, SourceEntry) else None

    @property
    def state(self) -> EntryState:
        """How far the entry is."""
        if not isinstance(self.says, SourceEntry):
            return self.says
        if self.task is not None:
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
        #: For one reading at a time, and whether a call waits for one that has not begun.
        self._turn = asyncio.Lock()
        self._due = False

    async def sync(self) -> None:
        """Read the source, release and admit pods; report what became of every entry.

        Raises what the source raises if it cannot be read, without having changed anything; and
        what the admission of one pod raises, while those that were begun go on.
        """
        await self._read()
        # A task begins when it is drawn: at most these are in the line before a pod for which a
        # container waits.
        tasks = filter(None, map(self._begin, tuple(self._entries.values())))
        going = {*islice(tasks, MOST_AT_ONCE)}
        while going:
            done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            going.update(islice(tasks, MOST_AT_ONCE - len(going)))
        self._report()

    async def settle(self, key: str) -> ManifestDocument | None:
        """Read the source, release pods, and admit one pod before all others that wait.

        Returns what became of the entry, None without one. Raises as `sync` does.
        """
        await self._read()
        entry = self._entries.get(key) or Entry(key)
        task = self._begin(entry)
        outcome = entry.outcome if task is None else await asyncio.shield(task)
        self._report()
        return None if outcome is None else outcome.document

    def try_again(self, key: str) -> None:
        """Admit an entry that runs shared, when it is settled next, if there is room now."""
        self._entries.setdefault(key, Entry(key)).again = True

    async def _read(self) -> None:
        """Have a reading that begins after this call; of several calls, one reads for all."""
        self._due = True
        async with self._turn:
            if not self._due:
                return
            self._due = False
            try:
                if self._conditions is None:
                    self.source.resume([*self._owned().values()])
                    self._conditions = ()
                reading = await self._admissions.read(self.source)
                await self._take(reading)
                await self._release()
            except BaseException:
                self._due = True
                raise

    def _owned(self) -> dict[str, str]:
        """Return the key of every pod that the source, as configured now, answers for, by uid."""
        owned = self._admissions.owned(self.source.name)
        return {uid: key for uid, key in owned.items() if self.source.covers(key)}

    async def _take(self, reading: SourceReading) -> None:
        """Apply a reading, after the admissions of entries that it changes."""
        owned, named = self._owned(), {says.key: says for says in reading.entries}
        keys = dict.fromkeys((*named, *self._entries, *owned.values()))
        self._entries = {key: self._entries.get(key) or Entry(key) for key in keys}
        changes = dict[str, SourceEntry | Literal[EntryState.REMOVED]](named)
        for key in keys if reading.complete else reading.removed:
            changes.setdefault(key, EntryState.REMOVED)
        entries = self._entries.values()
        changed = [entry for entry in entries if changes.get(entry.key, entry.says) != entry.says]
        while tasks := [entry.task for entry in changed if entry.task is not None]:
            await asyncio.wait(tasks)
        for entry in changed:
            entry.says = changes[entry.key]
            if entry.says is EntryState.REMOVED:
                entry.outcome, entry.again = None, False
        for uid, key in owned.items():
            entry, shared = self._entries[key], self._admissions.shared(uid)
            if entry.state is EntryState.UNREAD and shared is not None:
                entry.outcome = EntryOutcome(self._document(key, SHARED, shared.why, shared))
        self._conditions = reading.conditions

    async def _release(self) -> None:
        """Release the pods that no entry asks for, then forget the entries without a pod.

        The pod of a removed entry whose uid another entry states is handed over when that is
        settled.
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
                entry.outcome = EntryOutcome(
                    self._document(key, INVALID, message, PodIdentity(uid))
                )
        keys = {*self._owned().values()}
        for key, entry in tuple(self._entries.items()):
            if key not in keys and not isinstance(entry.says, SourceEntry):
                del self._entries[key]

    def _begin(self, entry: Entry) -> asyncio.Task[EntryOutcome] | None:
        """Return the admission of an entry's pod, None if none is needed: `outcome` is current."""
        says = entry.says
        if entry.task is not None or not isinstance(says, SourceEntry):
            return entry.task
        if says.pod is None:
            entry.outcome = EntryOutcome(self._invalid(says))
        elif (outcome := self._outcome(entry, says.pod)) is not None:
            entry.outcome = outcome
        else:
            entry.task = asyncio.create_task(self._settle(entry, says.pod))
            # An error is for those that wait, if any does; the next sync meets it again.
            entry.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry.task

    def _outcome(self, entry: Entry, pod: Pod) -> EntryOutcome | None:
        """Return the outcome of an entry without an admission, None if its pod needs one."""
        key = entry.key
        if lifetime_of(pod.annotations).end is not End.REMOVAL:
            # The pod would be admitted again as soon as it had ended.
            message = f"its pod cannot end by itself: leave {END} and {UNIT} out, or admit it"
            return EntryOutcome(self._document(key, INVALID, f"{message} over the API", pod))
        outcome = entry.outcome if entry.state is EntryState.SETTLED else None
        state = None if outcome is None else outcome.document.state
        same = outcome is not None and outcome.generation == self._admissions.generation()
        if (first := self._first(pod.uid)) is not entry:
            message = f"states the same uid as {first.key}, which came first"
            return EntryOutcome(self._document(key, CONFLICT, message, pod))
        if self._admissions.shared(pod.uid) is not None:
            return outcome if same and state == SHARED and not entry.again else None
        stands = self._holder(pod.uid) is entry if state == ADMITTED else same
        return outcome if stands else None

    def _first(self, uid: str) -> Entry:
        """Return the entry that a uid belongs to, of those that have it."""
        holder = self._holder(uid)
        if holder is not None and holder.keeps(uid):
            return holder
        entries = self._entries.values()
        return next(entry for entry in entries if entry.pod is not None and entry.pod.uid == uid)

    def _holder(self, uid: str) -> Entry | None:
        """Return the entry that an admitted pod belongs to, None if it is not of this source."""
        owner = self._admissions.owner(uid)
        if owner is None or owner.name != self.source.name:
            return None
        return self._entries.get(owner.key)

    async def _settle(self, entry: Entry, pod: Pod) -> EntryOutcome:
        try:
            entry.outcome = outcome = await self._attempt(entry, pod)
            return outcome
        finally:
            entry.task = None

    async def _attempt(self, entry: Entry, pod: Pod) -> EntryOutcome:
        """Admit a pod; one that runs shared only where one of its containers starts."""
        key, generation = entry.key, self._admissions.generation()
        shared, again, entry.again = self._admissions.shared(pod.uid), entry.again, False
        try:
            room = shared is None or await self._admissions.fits(pod, self._source(key))
            if shared is not None and not (room and again):
                state, message = SHARED, f"{shared.why}; {_ROOM_NOW}" if room else shared.why
            else:
                state, message = _verdict(await self._admit(pod, key))
        except EntryFailedError as error:
            return EntryOutcome(self._document(key, INVALID, str(error), pod))
        if shared is not None and state == REJECTED:  # the room was taken meanwhile
            message, state = shared.why, SHARED
        return EntryOutcome(self._document(key, state, message, pod), pod, generation)

    async def _admit(self, pod: Pod, key: str) -> AdmissionDocument:
        """Admit a pod; one that a removed entry still holds then is released and admitted."""
        answer = await self._admissions.admit(pod, self._source(key))
        holder = self._holder(pod.uid)
        if holder is None or holder.state is not EntryState.REMOVED:
            return answer
        await self._admissions.release(pod.uid, self._source(holder.key))
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

    def _invalid(self, says: SourceEntry) -> ManifestDocument:
        identity, details = says.identity, tuple[Mistake, ...]()
        if isinstance(says.error, ManifestError):
            identity = says.error.identity
            details = says.error.problems[:MISTAKES_REPORTED]
        message = _without(says.key, str(says.error).partition("\n")[0])
        return self._document(says.key, INVALID, message, identity, details)


def _verdict(answer: AdmissionDocument) -> tuple[str, str]:
    """Return the state of an entry whose pod had this answer, and the message for it."""
    rejection = answer.rejection
    if rejection is None:
        return ADMITTED, ""
    state = CONFLICT if rejection.reason == Reason.CONFLICT else REJECTED
    return state, f"{rejection.reason}: {rejection.message}"


def _without(key: str, message: str) -> str:
    """Return a message without the key that it begins with: the document names the key already."""
    return message.removeprefix(f"{key}: ").removeprefix(f"{printable(key)}: ")


def _failed(source: Source, error: Exception) -> EntryFailedError:
    kind = type(error).__name__
    log.error(
        "manifest processing failed",
        source=source.name,
        file=source.key,
        error=kind,
        exc_info=error,
    )
    return EntryFailedError(str(source), error)

"""The intake: keeps the ledger's pods in agreement with what one source of pods asks for.

A running pod is never decided again. So an entry that changed but has the uid of its running pod is
reported as a conflict, until it is removed and added again. An entry that can no longer be read
keeps its pod, and so does a source that cannot be read at all: only what is certainly removed
releases its pod. A pod belongs to the entry that asked for it first, in this source or another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from agent.api.documents import ManifestDocument, RequesterDocument
from agent.managers.allocation import Source
from agent.managers.decision import Reason
from agent.pods.model import END, UNIT, End, ManifestError, lifetime_of
from agent.server.admissions import MOST_AT_ONCE
from agent.server.errors import PodNotFoundError, RequestError
from agent.server.events import requested_by
from agent.server.queue import QueueStopped
from agent.sources.source import (
    ADMITTED,
    CONFLICT,
    INVALID,
    REJECTED,
    SHARED,
    EntryFailedError,
    printable,
)
from agent.yaml import MISTAKES_REPORTED, Mistake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.api.documents import AdmissionDocument
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.sources.source import PodSource, SourceEntry, SourceReading
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
        admissions = self._controller.admissions
        try:
            pod = await admissions.with_devices(pod, source)
            return admissions.preview(pod, source).allocation is not None
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
        return self._controller.state.releases

    def report(
        self, name: str, documents: Mapping[str, ManifestDocument], conditions: tuple[str, ...]
    ) -> None:
        """Report entries that became invalid, and keep all for the status."""
        self._controller.rejections.entries(name, documents)
        self._controller.state.note_source(name, documents, conditions)


class _Tried(Struct, frozen=True):
    """The last attempt to admit an entry's pod: the pod, `generation`, and the result."""

    pod: Pod
    generation: int
    document: ManifestDocument


class PodIntake:
    """Admits the pods that a source asks for and removes those that it no longer asks for."""

    def __init__(self, source: PodSource, admissions: SourceAdmissions) -> None:
        self.source = source
        self._admissions = admissions
        self._entries: dict[str, SourceEntry] = {}
        self._removed: set[str] = set()
        self._tried: dict[str, _Tried] = {}
        #: The entries that run shared and are admitted if there is room.
        self._again: set[str] = set()
        self._turn = asyncio.Lock()
        self._begun = self._done = 0
        self._resumed = False
        #: The entries that are waited for, and the syncs that go on although no caller waits.
        self._awaited: dict[str, asyncio.Future[ManifestDocument]] = {}
        self._syncing: set[asyncio.Task[None]] = set()
        #: The entries that are being settled.
        self._settling: dict[str, asyncio.Task[None]] = {}
        #: What became of each entry in the last sync, and in the one in progress.
        self._documents: dict[str, ManifestDocument] = {}
        self._settled_now: dict[str, ManifestDocument] = {}
        #: Whether a sync settles entries now.
        self._settles = False

    async def sync(self) -> None:
        """Read the source, release and admit pods; report what has become of every entry.

        One at a time; of the calls that come meanwhile, one does it for all. Raises what the source
        raises if it cannot be read, without having changed anything.
        """
        begun = self._begun
        async with self._turn:
            if self._done > begun:  # begun after this call, by another one
                return
            self._begun += 1
            await self._sync()
            self._done = self._begun

    async def settle(self, key: str) -> ManifestDocument | None:
        """Sync with one entry before all others; return what has become of the entry.

        Returns as soon as that is known, and the sync goes on; None without such an entry. Raises
        as `sync` does.
        """
        if key not in self._awaited:
            self._awaited[key] = asyncio.get_running_loop().create_future()
        found, syncing = self._awaited[key], asyncio.create_task(self.sync())
        self._syncing.add(syncing)
        syncing.add_done_callback(self._synced)
        if self._settles:  # what has become of it may be known already
            self._begin(key)
        await asyncio.wait((found, syncing), return_when=asyncio.FIRST_COMPLETED)
        if not found.done() and key in self._settling:
            waiting = (found, self._settling[key])
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if found.done():
            return found.result()
        self._awaited.pop(key, None)
        syncing.result()
        return self._documents.get(key)

    def try_again(self, key: str) -> None:
        """Admit an entry that runs shared, when it is settled next, if there is room now."""
        self._again.add(key)

    def _synced(self, task: asyncio.Task[None]) -> None:
        """Forget a sync; what it raised is raised by the next one, too, and reported there."""
        self._syncing.discard(task)
        if not task.cancelled():
            task.exception()

    async def _sync(self) -> None:
        if not self._resumed:
            owned = self._admissions.owned(self.source.name).values()
            self.source.resume([key for key in owned if self.source.covers(key)])
            self._resumed = True
        reading = await self._admissions.read(self.source)
        self._take(reading)
        kept = await self._release(complete=reading.complete)
        settled = self._documents = await self._settle_all()
        documents = settled | kept | self._shared_unread(settled)
        self._admissions.report(self.source.name, documents, reading.conditions)

    async def _settle_all(self) -> dict[str, ManifestDocument]:
        """Settle every entry, a few at a time, those that are waited for first.

        Raises what one of them raises, once the others that were begun are settled.
        """
        self._settled_now, self._settles = {}, True
        self._settling = {}
        left = deque(self._entries)
        try:
            while self._begin_next(left):
                await asyncio.wait(self._settling.values(), return_when=asyncio.FIRST_COMPLETED)
                for key in [key for key, task in self._settling.items() if task.done()]:
                    self._settling.pop(key).result()
        finally:
            # Their errors are those of the first, such as a queue that stopped.
            await asyncio.gather(*self._settling.values(), return_exceptions=True)
            self._settles = False
        return {key: self._settled_now[key] for key in self._entries if key in self._settled_now}

    def _begin_next(self, left: deque[str]) -> bool:
        """Begin with the next entries of those `left`; return whether any is being settled."""
        for key in tuple(self._awaited):
            self._begin(key)
        for _ in range(len(left)):
            if len(self._settling) >= MOST_AT_ONCE:
                break
            if not self._begin(left[0]):
                left.append(left[0])
            left.popleft()
        return bool(self._settling)

    def _begin(self, key: str) -> bool:
        """Begin to settle an entry; return False if its uid is being settled for another entry.

        On what has become of the first of these others may depend. Nearly always it is known what
        has become of an entry: then nothing is begun.
        """
        entry = self._entries.get(key)
        if entry is None or key in self._settling:
            return True
        if key in self._settled_now:
            self._answer(key)
            return True
        pod = entry.pod
        if pod is None:
            document = self._invalid(entry)
        elif any(task.get_name() == pod.uid for task in self._settling.values()):
            return False
        elif (known := self._known(entry, pod)) is not None:
            document = known
        else:
            task = asyncio.create_task(self._settle(entry, pod), name=pod.uid)
            self._settling[key] = task
            return True
        self._settled_now[key] = document
        self._answer(key)
        return True

    async def _settle(self, entry: SourceEntry, pod: Pod) -> None:
        self._settled_now[entry.key] = await self._admitted(entry, pod)
        self._answer(entry.key)

    def _answer(self, key: str) -> None:
        """Let those that wait for an entry have what has become of it."""
        awaited = self._awaited.pop(key, None)
        if awaited is not None:
            awaited.set_result(self._settled_now[key])

    def _take(self, reading: SourceReading) -> None:
        known = {} if reading.complete else self._entries
        kept = {key: entry for key, entry in known.items() if key not in reading.removed}
        self._entries = kept | {entry.key: entry for entry in reading.entries}
        self._removed = (self._removed | reading.removed) - self._entries.keys()
        self._tried = {key: tried for key, tried in self._tried.items() if key in self._entries}
        self._again &= self._entries.keys()

    async def _release(self, *, complete: bool) -> dict[str, ManifestDocument]:
        """Release the pods of removed entries; return those that could not be released."""
        kept: dict[str, ManifestDocument] = {}
        named = {
            entry.pod.uid: (entry, entry.pod)
            for entry in self._entries.values()
            if entry.pod is not None
        }
        for uid, key in self._admissions.owned(self.source.name).items():
            if not self.source.covers(key):
                continue
            entry = self._entries.get(key)
            gone = entry is None and (complete or key in self._removed)
            if gone and uid in named:
                await self._move(uid, *named[uid], key)
            elif gone or (entry is not None and entry.pod is not None and entry.pod.uid != uid):
                try:
                    await self._admissions.release(uid, self._source(key))
                except EntryFailedError as error:
                    kept[key] = self._kept(key, uid, error)
        self._removed &= kept.keys()
        return kept

    async def _move(self, uid: str, entry: SourceEntry, pod: Pod, former: str) -> None:
        """Move a pod to the entry that has its uid now; another specification is a new pod."""
        document = self._known(entry, pod) or await self._admitted(entry, pod)
        if document.state == CONFLICT:
            await self._admissions.release(uid, self._source(former))
            self._tried.pop(entry.key, None)

    async def _admitted(self, entry: SourceEntry, pod: Pod) -> ManifestDocument:
        """Have the pod of an entry admitted; return what has become of it.

        A pod that runs shared is admitted only while its containers start, so that they have their
        CPUs from the start.
        """
        generation, source = self._admissions.generation(), self._source(entry.key)
        shared, again = self._admissions.shared(pod.uid), entry.key in self._again
        self._again.discard(entry.key)
        try:
            room = shared is None or await self._admissions.fits(pod, source)
            if shared is not None and not (room and again):
                message = f"{shared.why}; {_ROOM_NOW}" if room else shared.why
                document = self._document(entry, SHARED, message)
            else:
                document = self._outcome(entry, await self._admissions.admit(pod, source))
        except EntryFailedError as error:
            return self._document(entry, INVALID, str(error))
        if shared is not None and document.state == REJECTED:  # the room was taken meanwhile
            document = self._document(entry, SHARED, shared.why)
        self._tried[entry.key] = _Tried(pod, generation, document)
        return document

    def _known(self, entry: SourceEntry, pod: Pod) -> ManifestDocument | None:
        """Return what has become of the pod of an entry, None if it is to be admitted."""
        if lifetime_of(pod.annotations).end is not End.REMOVAL:
            # The pod would be admitted again as soon as it had ended.
            message = f"its pod cannot end by itself: leave {END} and {UNIT} out, or admit it"
            return self._document(entry, INVALID, f"{message} over the API")
        tried = self._tried.get(entry.key)
        if tried is not None and tried.pod != pod:
            tried = None
        if self._admissions.shared(pod.uid) is not None:
            if tried is None or tried.document.state != SHARED or entry.key in self._again:
                return None
            return tried.document if tried.generation == self._admissions.generation() else None
        own, owner = self._source(entry.key), self._admissions.owner(pod.uid)
        if owner is not None and owner.name == own.name and owner != own:
            first = self._entries.get(owner.key)
            if first is not None and (first.pod is None or first.pod.uid == pod.uid):
                message = f"states the same uid as {owner.key}, which came first"
                return self._document(entry, CONFLICT, message)
        if tried is not None:
            admitted = tried.document.state == ADMITTED
            if owner == own if admitted else tried.generation == self._admissions.generation():
                return tried.document
        return None

    def _source(self, key: str) -> Source:
        return Source(self.source.name, key)

    # --- documents ------------------------------------------------------------------------------

    def _outcome(self, entry: SourceEntry, answer: AdmissionDocument) -> ManifestDocument:
        if answer.rejection is None:
            return self._document(entry, ADMITTED, "")
        state = CONFLICT if answer.rejection.reason == Reason.CONFLICT else REJECTED
        message = f"{answer.rejection.reason}: {answer.rejection.message}"
        return self._document(entry, state, message)

    def _document(self, entry: SourceEntry, state: str, message: str) -> ManifestDocument:
        pod = entry.pod
        return ManifestDocument(
            file=printable(entry.key),
            state=state,
            uid=None if pod is None else pod.uid,
            message=message,
            name="" if pod is None else pod.name,
            namespace="" if pod is None else pod.namespace,
            source=self.source.name,
        )

    def _shared_unread(
        self, settled: Mapping[str, ManifestDocument]
    ) -> dict[str, ManifestDocument]:
        """Return the documents of pods that run shared and that the source has not read yet."""
        return {
            key: ManifestDocument(
                file=printable(key),
                state=SHARED,
                uid=uid,
                message=shared.why,
                name=shared.name,
                namespace=shared.namespace,
                source=self.source.name,
            )
            for uid, key in self._admissions.owned(self.source.name).items()
            if key not in settled and (shared := self._admissions.shared(uid)) is not None
        }

    def _kept(self, key: str, uid: str, error: EntryFailedError) -> ManifestDocument:
        message = f"its pod is no longer asked for but could not be removed: {error}"
        return ManifestDocument(
            file=printable(key), state=INVALID, uid=uid, message=message, source=self.source.name
        )

    def _invalid(self, entry: SourceEntry) -> ManifestDocument:
        identity, details = entry.identity, tuple[Mistake, ...]()
        if isinstance(entry.error, ManifestError):
            identity = entry.error.identity
            details = entry.error.problems[:MISTAKES_REPORTED]
        return ManifestDocument(
            file=printable(entry.key),
            state=INVALID,
            uid=identity.uid or None,
            message=_without(entry.key, str(entry.error).partition("\n")[0]),
            details=details,
            name=identity.name,
            namespace=identity.namespace,
            source=self.source.name,
        )


def _without(key: str, message: str) -> str:
    """Return a message without the key that it begins with: the document has that beside it."""
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

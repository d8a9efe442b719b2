"""The manifest directory (`staticPodPath`): each file is a pod, admitted until the file is removed.

A running pod is never decided again. So an edited file with the uid of its running pod is reported
as a conflict; delete the file, then write it again. A file without a uid gets a new one with every
change (as with the kubelet), which removes the old pod and admits the new one. A file that can no
longer be read or parsed keeps its pod, and so does a directory that vanished: only a file that is
certainly removed releases its pod.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from agent.api.documents import ErrorDetail, ManifestDocument
from agent.managers.decision import Reason
from agent.parsing.errors import MISTAKES_REPORTED
from agent.pods.errors import ManifestError
from agent.pods.identity import NO_IDENTITY
from agent.sources.errors import FileFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.api.documents import AdmissionDocument
    from agent.pods.model import Pod
    from agent.sources.files import FileStamp, ManifestFile, ManifestFormat

ADMITTED: Final = "admitted"
REJECTED: Final = "rejected"
CONFLICT: Final = "conflict"
INVALID: Final = "invalid"


class PodIntake(Protocol):
    """Admits and removes pods, and knows the file of each pod.

    `admit` and `release` raise `FileFailedError` for an unexpected error of one pod; all other
    exceptions concern all files.
    """

    async def admit(self, pod: Pod, manifest: str) -> AdmissionDocument:
        """Admit a pod of a file; the file owns it from then on."""

    async def release(self, uid: str) -> None:
        """Remove a pod whose file was removed."""

    async def scan(
        self, directory: Path, known: Mapping[Path, ManifestFile], form: ManifestFormat
    ) -> list[ManifestFile]:
        """Run `files.scan` in a thread."""

    def owners(self) -> Mapping[str, str]:
        """Return the file of every admitted pod that came from one, by uid."""

    def generation(self) -> int:
        """Return a number that changes whenever a rejected pod might fit now."""


class _Tried(Struct, frozen=True):
    """The last attempt to admit a file's pod: the file's stamp, `generation`, and the result."""

    stamp: FileStamp
    generation: int
    document: ManifestDocument


class ManifestSource:
    """Synchronizes the ledger's pods with one directory."""

    def __init__(self, directory: Path, intake: PodIntake, form: ManifestFormat) -> None:
        self.directory = directory
        self._intake = intake
        self._form = form
        self._known: dict[Path, ManifestFile] = {}
        self._tried: dict[Path, _Tried] = {}

    async def sync(self) -> dict[str, ManifestDocument]:
        """Read the directory, release and admit pods; return the state of every file.

        Raises `ManifestDirectoryError` without having changed anything.
        """
        files = await self._intake.scan(self.directory, self._known, self._form)
        self._known = {file.path: file for file in files}
        self._tried = {path: tried for path, tried in self._tried.items() if path in self._known}
        kept = await self._release(files)
        documents = [await self._settle(file) for file in files]
        return {document.file: document for document in (*documents, *kept)}

    async def _release(self, files: Iterable[ManifestFile]) -> list[ManifestDocument]:
        """Release the pods of removed files; return the files whose pods could not be released."""
        kept: list[ManifestDocument] = []
        named = {file.pod.uid: file for file in files if file.pod is not None}
        for uid, owner in tuple(self._intake.owners().items()):
            path = Path(owner)
            if path.parent != self.directory:
                continue  # of a previously configured directory
            file = self._known.get(path)
            if file is None and uid in named:
                await self._move(uid, named[uid])
            elif file is None or (file.pod is not None and file.pod.uid != uid):
                try:
                    await self._intake.release(uid)
                except FileFailedError as error:
                    said = f"its pod was deleted from the file but could not be removed: {error}"
                    kept.append(ManifestDocument(file=owner, state=INVALID, uid=uid, message=said))
        return kept

    async def _move(self, uid: str, file: ManifestFile) -> None:
        """Move a pod to the file that has its uid now; another spec is a new pod."""
        document = await self._settle(file)
        if document.state == CONFLICT:
            await self._intake.release(uid)
            self._tried.pop(file.path, None)

    async def _settle(self, file: ManifestFile) -> ManifestDocument:
        try:
            return await self._settled(file)
        except FileFailedError as error:
            return _document(file, INVALID, str(error))

    async def _settled(self, file: ManifestFile) -> ManifestDocument:
        if file.pod is None:
            return _invalid(file)
        owner = self._intake.owners().get(file.pod.uid)
        if owner is not None and owner != str(file.path) and self._has_pod(owner, file.pod.uid):
            message = f"states the same uid as {owner}, which came first"
            return _document(file, CONFLICT, message)
        tried = self._tried.get(file.path)
        if tried is not None and not self._worth_trying(file.pod.uid, file.stamp, tried):
            return tried.document
        return await self._try(file, file.pod)

    def _has_pod(self, owner: str, uid: str) -> bool:
        file = self._known.get(Path(owner))
        return file is not None and (file.pod is None or file.pod.uid == uid)

    def _worth_trying(self, uid: str, stamp: FileStamp, tried: _Tried) -> bool:
        if tried.stamp != stamp:
            return True
        if tried.document.state == ADMITTED:
            return uid not in self._intake.owners()
        return tried.generation != self._intake.generation()

    async def _try(self, file: ManifestFile, pod: Pod) -> ManifestDocument:
        generation = self._intake.generation()
        document = _outcome(file, await self._intake.admit(pod, str(file.path)))
        self._tried[file.path] = _Tried(file.stamp, generation, document)
        return document


def _outcome(file: ManifestFile, answer: AdmissionDocument) -> ManifestDocument:
    if answer.rejection is None:
        return _document(file, ADMITTED, "")
    state = CONFLICT if answer.rejection.reason == Reason.CONFLICT else REJECTED
    return _document(file, state, f"{answer.rejection.reason}: {answer.rejection.message}")


def _document(file: ManifestFile, state: str, message: str) -> ManifestDocument:
    pod = file.pod
    return ManifestDocument(
        file=file.name,
        state=state,
        uid=None if pod is None else pod.uid,
        message=message,
        name="" if pod is None else pod.name,
        namespace="" if pod is None else pod.namespace,
    )


def _invalid(file: ManifestFile) -> ManifestDocument:
    identity, details = NO_IDENTITY, tuple[ErrorDetail, ...]()
    if isinstance(file.error, ManifestError):
        identity = file.error.identity
        details = tuple(
            ErrorDetail(path=problem.path, message=problem.message)
            for problem in file.error.problems[:MISTAKES_REPORTED]
        )
    return ManifestDocument(
        file=file.name,
        state=INVALID,
        uid=identity.uid or None,
        message=str(file.error).splitlines()[0],
        details=details,
        name=identity.name,
        namespace=identity.namespace,
    )

"""What an intake has the controller do: read a source, admit and release its pods, report them.

In go pods of a source. Out come the controller's answers, and which pods of the ledger a source
answers for. A pod belongs to the `Source` (name and key) that it was admitted for. An unexpected
error of one pod is logged here, and the others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from agent.api.documents.history import RequesterDocument
from agent.server.errors import PodNotFoundError, RequestError
from agent.server.operations import requested_by
from agent.server.queue import QueueStopped
from agent.sources.source import EntryFailedError
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.status import ManifestDocument
    from agent.managers.allocation import Source
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.sources.source import PodSource, SourceReading
    from agent.state.checkpoint import SharedPod

log = structlog.get_logger(__name__)


class SourceAdmissions:
    """Admits and removes the pods of sources through the controller.

    `admit`, `fits` and `release` raise `EntryFailedError` for an unexpected error of one pod; all
    other exceptions concern all entries.
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
            pod = await decider.informed(pod, source)
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
        """Return what asks for an admitted pod, None for a pod that is not admitted."""
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
        """Report entries that became invalid, and keep all documents for the status."""
        self._controller.rejections.report_entries(name, documents)
        self._controller.state.observed.sources.note_reading(name, documents, conditions)


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

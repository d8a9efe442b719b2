"""Passes pods of the manifest directory to the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from agent.server.errors import PodNotFoundError, RequestError
from agent.server.queue import QueueStopped
from agent.sources.errors import FileFailedError
from agent.sources.files import scan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.api.documents import AdmissionDocument
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.sources.files import ManifestFile, ManifestFormat


log = structlog.get_logger(__name__)


class ControllerIntake:
    """Admits and removes through the controller (`agent.sources.manifests.PodIntake`)."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def admit(self, pod: Pod, manifest: str) -> AdmissionDocument:
        """Admit a pod of a file; the file owns it from then on."""
        try:
            return await self._controller.admit(pod, manifest)
        except (RequestError, QueueStopped):
            raise
        except Exception as error:
            log.exception("manifest processing failed", file=manifest, error=type(error).__name__)
            raise FileFailedError(manifest, error) from error

    async def release(self, uid: str) -> None:
        """Remove a pod whose file is gone."""
        file = self.owners().get(uid, "")
        try:
            await self._controller.release(uid)
        except PodNotFoundError:  # removed by another request meanwhile
            return
        except (RequestError, QueueStopped):
            raise
        except Exception as error:
            log.exception("manifest processing failed", file=file, error=type(error).__name__)
            raise FileFailedError(file, error) from error

    async def scan(
        self, directory: Path, known: Mapping[Path, ManifestFile], form: ManifestFormat
    ) -> list[ManifestFile]:
        """Read the directory in the worker thread."""
        return await self._controller.worker.run(scan, directory, known, form)

    def owners(self) -> Mapping[str, str]:
        """Return the file of every admitted pod that came from one, by uid."""
        state = self._controller.state
        return {
            uid: file
            for uid, file in state.durable.manifests.items()
            if uid in state.ledger.allocations
        }

    def generation(self) -> int:
        """Return a counter of releases and host changes."""
        return self._controller.state.releases

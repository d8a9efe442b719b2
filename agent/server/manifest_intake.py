"""How the manifest directory asks the keeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from agent.server.errors import PodNotFoundError, RequestError
from agent.server.queue import Stopped
from agent.sources.errors import FileFailedError
from agent.sources.files import scan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.api.documents import AdmissionDocument
    from agent.pods.model import Pod
    from agent.server.controller import Keeper
    from agent.sources.files import Format, ManifestFile


log = structlog.get_logger(__name__)


class KeeperIntake:
    """Admits and removes through the keeper (`agent.sources.manifests.Intake`)."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def admit(self, pod: Pod, manifest: str) -> AdmissionDocument:
        """Admit a pod of a file; the file owns it from then on."""
        try:
            return await self._keeper.admit(pod, manifest)
        except (RequestError, Stopped):
            raise
        except Exception as error:
            log.exception("manifest failed", file=manifest, error=type(error).__name__)
            raise FileFailedError(manifest, error) from error

    async def release(self, uid: str) -> None:
        """Remove a pod whose file is gone."""
        file = self.owners().get(uid, "")
        try:
            await self._keeper.release(uid)
        except PodNotFoundError:  # somebody else removed it meanwhile
            return
        except (RequestError, Stopped):
            raise
        except Exception as error:
            log.exception("manifest failed", file=file, error=type(error).__name__)
            raise FileFailedError(file, error) from error

    async def scan(
        self, directory: Path, known: Mapping[Path, ManifestFile], form: Format
    ) -> list[ManifestFile]:
        """Read the directory in the worker thread."""
        return await self._keeper.worker.run(scan, directory, known, form)

    def owners(self) -> Mapping[str, str]:
        """Return the file of every admitted pod that came from one, by uid."""
        state = self._keeper.state
        return {
            uid: file for uid, file in state.held.manifests.items() if uid in state.ledger.grants
        }

    def generation(self) -> int:
        """Return how often something was freed, or the host changed."""
        return self._keeper.state.releases

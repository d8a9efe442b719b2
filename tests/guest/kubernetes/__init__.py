"""A real kubelet in a guest, and its control plane on the host: `make guest-kubelet`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.guest.kubernetes import control_plane

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.guest.kubernetes.control_plane import ControlPlane
    from tests.guest.kubernetes.programs import Programs


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """What guests with a real kubelet share: a disk, programs of the host, etcd's command."""

    disk: Path
    programs: Programs
    etcd: tuple[str, ...]

    def control_plane(self, directory: Path) -> AbstractContextManager[ControlPlane]:
        """Start a control plane in a new directory (see `control_plane.started`)."""
        return control_plane.started(self.programs, self.etcd, directory)

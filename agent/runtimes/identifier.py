"""Identifying containers by the records of container runtimes: the interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from agent.pods.identity import Named
    from cgroupfs.state import WriterRecord


class RuntimeName(Struct, frozen=True):
    """A runtime's name of a cgroup; `container` is None for a pod's sandbox."""

    container: str | None


class ContainerIdentifier(Protocol):
    """Identifies container cgroups by another source, such as a container runtime's files."""

    def container_of(self, pod: Named, cgroup: str) -> RuntimeName | None:
        """Return what lives in `cgroup`, a container's cgroup of `pod`; None if unknown."""
        ...

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return what the runtime last set in `cgroup`, None if it keeps no record of it."""
        ...

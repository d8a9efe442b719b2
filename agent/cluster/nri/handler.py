"""What answers the events of a runtime, as the service of the plugin calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent.cluster.nri.ttrpc import STATUS_CODES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.cluster.nri.messages import (
        Adjustment,
        ContainerResources,
        PodSandbox,
        RuntimeContainer,
        RuntimeInfo,
    )


class ContainerRejectedError(Exception):
    """Raised by a handler to reject CreateContainer, UpdateContainer or UpdatePodSandbox.

    `code` is gRPC's name of a status, such as "FAILED_PRECONDITION"; `message` is what users see in
    the pod's events. Raises `ValueError` for any other code.
    """

    def __init__(self, code: str, message: str) -> None:
        if code not in STATUS_CODES:
            raise ValueError(f"{code!r} is not a status of gRPC that means an error")
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RuntimeHandler(Protocol):
    """Answers the events of a runtime.

    A coroutine is cancelled at its deadline, and the runtime goes on without its answer. What a
    handler raises is logged and changes nothing, but for `ContainerRejectedError`.
    """

    def configured(self, info: RuntimeInfo) -> None:
        """Take note of a runtime that registered the plugin; `synchronize` follows."""

    async def synchronize(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[RuntimeContainer]
    ) -> Mapping[str, Adjustment]:
        """Return, by container id, what is to be changed of all containers that there are."""

    async def sandbox_started(self, sandbox: PodSandbox) -> None:
        """Take note of a sandbox; its cgroup exists and its pause process runs."""

    def sandbox_stopped(self, sandbox: PodSandbox) -> None:
        """Take note of a sandbox whose containers have all ended."""

    def sandbox_removed(self, sandbox: PodSandbox) -> None:
        """Take note of the end of a sandbox."""

    def sandbox_updated(self, sandbox: PodSandbox) -> None:
        """Take note of a sandbox whose pod is resized in place; raises `ContainerRejectedError`."""

    async def container_created(
        self, sandbox: PodSandbox, container: RuntimeContainer, seconds: float
    ) -> Adjustment | None:
        """Return what is to be changed of a container before its process starts.

        The answer may take so many seconds. Raises `ContainerRejectedError`.
        """

    async def container_updated(
        self,
        sandbox: PodSandbox,
        container: RuntimeContainer,
        requested: ContainerResources,
        seconds: float,
    ) -> Adjustment | None:
        """Return what is to be set in place of what is `requested`.

        `container` has the resources from before. The answer may take so many seconds. Raises
        `ContainerRejectedError`.
        """

    def container_started(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Take note of a container whose process runs."""

    def container_stopped(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Take note of a container whose process ended, by itself or not."""

    def container_removed(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Take note of the end of a container."""

    def disconnected(self, why: str) -> None:
        """Take note of the end of a connection after `configured`; events are missed now."""

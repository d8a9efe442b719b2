"""Bindings: which cgroup is a container that no runtime's files and no name identify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.api.documents import BindDocument
from agent.api.views import enforcement_document
from agent.pods.identity import full_name
from agent.server.errors import BindingNotFoundError
from agent.server.reporting.records import details

if TYPE_CHECKING:
    from agent.api.documents import BindRequest
    from agent.managers.allocations.bindings import Binding
    from agent.server.control.outcomes import OutcomeReporter
    from agent.server.control.queue import Worker
    from agent.server.control.saving import Saving
    from agent.server.kernel.ports import Enforcement
    from agent.server.reporting.events import EventReporter
    from agent.server.state import AgentState

log = structlog.get_logger(__name__)


class Binder:
    """Binds containers and removes bindings; the controller queues both with all other changes."""

    def __init__(
        self,
        state: AgentState,
        kernel: Enforcement,
        saving: Saving,
        worker: Worker,
        outcomes: OutcomeReporter,
        reporter: EventReporter,
    ) -> None:
        self._state = state
        self._kernel = kernel
        self._saving = saving
        self._worker = worker
        self._outcomes = outcomes
        self._publish = reporter.publish

    async def bind(self, uid: str, container: str, request: BindRequest) -> BindDocument:
        """Bind a container to a cgroup and save that; raises `BindError` and `RequestError`s."""
        allocation = self._state.allocation(uid, container)
        durable, target = self._state.durable, self._state.target()
        binding = await self._worker.run(
            self._kernel.locate, target, allocation, container, request
        )
        await self._saving.commit(replace(durable, bindings=durable.bindings.with_binding(binding)))
        await self._enforce(uid)
        log.info("container bound", cgroup=f"/{binding.cgroup}")
        message = f"{container} is /{binding.cgroup}"
        self._publish("ContainerBound", uid, full_name(allocation), message)
        return self._bound(binding)

    async def unbind(self, uid: str, container: str) -> BindDocument:
        """Remove the binding of a container and save that; raises `BindingNotFoundError`."""
        allocation, durable = self._state.allocation(uid, container), self._state.durable
        binding = durable.bindings.of_container(uid, container)
        if binding is None:
            raise BindingNotFoundError(full_name(allocation), container)
        bindings = durable.bindings.without_binding(binding)
        await self._saving.commit(replace(durable, bindings=bindings))
        # The unbound cgroup is confined before the container's CPUs may be allocated again.
        await self._enforce(uid)
        cgroup = f"/{binding.cgroup}"
        log.info("container unbound", cgroup=cgroup)
        self._publish("ContainerUnbound", uid, full_name(allocation), f"{container} was {cgroup}")
        return self._bound(binding)

    def _bound(self, binding: Binding) -> BindDocument:
        unenforced = details(self._state.records.of(binding.pod_uid).unenforced)
        return BindDocument(
            uid=binding.pod_uid,
            container=binding.container,
            cgroup=f"/{binding.cgroup}",
            enforcement=enforcement_document(unenforced),
        )

    async def _enforce(self, uid: str) -> None:
        target = self._state.target()
        self._outcomes.note(await self._worker.run(self._kernel.admitted, target, uid))

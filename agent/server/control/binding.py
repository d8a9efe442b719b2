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
    from agent.server.control.change_steps import ChangeSteps

log = structlog.get_logger(__name__)


class Binder:
    """Binds containers and removes bindings; the controller queues both with all other changes."""

    def __init__(self, steps: ChangeSteps) -> None:
        self._state = steps.state
        self._steps = steps

    async def bind(self, uid: str, container: str, request: BindRequest) -> BindDocument:
        """Bind a container to a cgroup and save that; raises `BindError` and `RequestError`s."""
        allocation = self._state.allocation(uid, container)
        durable, target = self._state.durable, self._state.target()
        steps = self._steps
        binding = await steps.worker.run(
            steps.kernel.locate, target, allocation, container, request
        )
        await steps.commit(replace(durable, bindings=durable.bindings.with_binding(binding)))
        await steps.enforce_pods(uid)

        def report() -> None:
            log.info("container bound", cgroup=f"/{binding.cgroup}")
            message = f"{container} is /{binding.cgroup}"
            steps.publish("ContainerBound", uid, full_name(allocation), message)

        await steps.after_save(report, uid)
        return self._bound(binding)

    async def unbind(self, uid: str, container: str) -> BindDocument:
        """Remove the binding of a container and save that; raises `BindingNotFoundError`."""
        allocation, durable = self._state.allocation(uid, container), self._state.durable
        binding = durable.bindings.of_container(uid, container)
        if binding is None:
            raise BindingNotFoundError(full_name(allocation), container)
        bindings = durable.bindings.without_binding(binding)
        await self._steps.commit(replace(durable, bindings=bindings))
        # The unbound cgroup is confined before the container's CPUs may be allocated again.
        await self._steps.enforce_pods(uid)

        def report() -> None:
            log.info("container unbound", cgroup=f"/{binding.cgroup}")
            message = f"{container} was /{binding.cgroup}"
            self._steps.publish("ContainerUnbound", uid, full_name(allocation), message)

        await self._steps.after_save(report, uid)
        return self._bound(binding)

    def _bound(self, binding: Binding) -> BindDocument:
        unenforced = details(self._state.records.of(binding.pod_uid).unenforced)
        return BindDocument(
            uid=binding.pod_uid,
            container=binding.container,
            cgroup=f"/{binding.cgroup}",
            enforcement=enforcement_document(unenforced),
        )

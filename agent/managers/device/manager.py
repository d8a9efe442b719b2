"""The device manager: devices of an inventory, aligned with CPUs and memory (KEP-693, KEP-3573)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from agent.managers.decision import Reason, Rejection
from agent.managers.device.assignment import assign_devices, device_hints, reusable_devices_after
from agent.managers.errors import ManagerError
from agent.managers.manager import Rejected
from agent.managers.rejection import FreeRoom, allocated_devices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.demand import ContainerDemand
    from agent.managers.allocations.draft import Draft
    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import ProviderHints


@final
class DeviceManager:
    """Hint provider for every resource of the device inventory."""

    name = "devices"

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        """Return the sets of nodes from which the container's devices are reached."""
        return _hints(draft, container.devices)

    def pod_hints(self, draft: Draft) -> ProviderHints:
        """Return the sets of nodes from which the pod's devices are reached."""
        return _hints(draft, draft.demand.devices)

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        """Allocate the container's devices, from the hint's nodes as far as these suffice."""
        for resource, count in container.devices.items():
            given = _assign(draft, container, resource, count, hint)
            if not given:
                continue
            draft.devices.setdefault(container.name, {})[resource] = given
            draft.reusable_devices[resource] = reusable_devices_after(
                draft.reusable_devices.get(resource, frozenset()),
                given,
                standard_init=container.is_standard_init,
            )

    def allocate_pod(self, draft: Draft, hint: Hint) -> None:
        """Allocate the devices container by container with the pod's hint.

        A budget (KEP-5526) has CPUs and memory only, so there is nothing to divide. The kubelet
        waits until a container starts; by then another pod may have been admitted with the same
        device.
        """
        for container in draft.demand.containers:
            self.allocate(draft, container, hint)


def _hints(draft: Draft, requests: Mapping[str, int]) -> ProviderHints:
    return {
        resource: device_hints(
            draft.rules.machine.node_mask.bits,
            draft.rules.policy.devices[resource],
            count,
            allocated_devices(draft, resource),
            draft.reusable_devices.get(resource, frozenset()),
            draft.work(),
        )
        for resource, count in requests.items()
    }


def _assign(
    draft: Draft, container: ContainerDemand, resource: str, count: int, hint: Hint
) -> tuple[str, ...]:
    try:
        return assign_devices(
            resource,
            draft.rules.policy.devices[resource],
            count,
            hint,
            allocated_devices(draft, resource),
            draft.reusable_devices.get(resource, frozenset()),
        )
    except ManagerError as error:
        rejection = Rejection(
            Reason.UNEXPECTED,
            error.message,
            remedy=error.remedy,
            resource=resource,
            container=container.name,
            asked=count,
            free=FreeRoom.of(draft).by_node(resource),
        )
        raise Rejected(rejection) from error

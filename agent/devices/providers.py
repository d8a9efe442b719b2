"""All providers of devices as one: what they offer together, and what they deliver for a pod."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.config.devices import variable_part
from agent.devices.delivery_checks import checked
from agent.devices.provider import DeviceError, Offer
from agent.managers.delivery import Delivery, conflicts, merged
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.devices.provider import DeviceProvider
    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.decision import Answers, Question
    from agent.managers.policy import PluginDevice
    from sysfs.mask import Mask

log = structlog.get_logger(__name__)

#: How long plugins may take for the decision on one pod, in seconds: what they prefer, and all its
#: devices. All other changes wait meanwhile. Containers of a runtime wait 2 s for a decision.
PLUGIN_SECONDS: Final = 5.0
PLUGIN_SECONDS_BESIDE_RUNTIME: Final = 1.0

#: How long a provider may take to prepare devices for a container, in seconds: a plugin has the
#: kubelet's 30 s for that (`agent.devices.plugin_limits`).
PREPARE_SECONDS: Final = 31.0


class DeliveryError(Exception):
    """A provider did not deliver what was allocated to a container."""

    def __init__(
        self, container: str, resource: str, ids: tuple[str, ...], cause: DeviceError
    ) -> None:
        super().__init__(cause.message)
        self.container = container
        self.resource = resource
        self.ids = ids
        self.message = cause.message
        self.remedy = cause.remedy


class Providers:
    """The providers of devices, in the order in which they get a resource that several offer.

    `configured` are the resources whose devices the configuration lists: no provider gets them.
    """

    def __init__(
        self,
        providers: Iterable[DeviceProvider] = (),
        configured: Collection[str] = (),
    ) -> None:
        self.all = tuple(providers)
        self._configured = frozenset(configured)

    def offer(self) -> Offer:
        """Return what all providers offer now."""
        devices: dict[str, tuple[PluginDevice, ...]] = {}
        preferring: set[str] = set()
        for provider, offer in self._offers():
            for resource, inventory in offer.devices.items():
                if self._provider(resource) is provider:
                    devices[resource] = inventory
                    preferring.update({resource} & offer.preferring)
        return Offer(MappingProxyType(devices), frozenset(preferring))

    def conditions(self) -> Iterator[tuple[str, str]]:
        """Yield what is not as it should be: the provider's name and a line."""
        for provider, offer in self._offers():
            for line in provider.conditions():
                yield provider.name, line
            for resource in offer.devices:
                if resource in self._configured:
                    message = f"{resource} is not taken from here: agent.devices lists its devices"
                    yield provider.name, message
                elif (other := self._provider(resource)) is not None and other is not provider:
                    message = f"{resource} is not taken from here: {other.name} offers it as well"
                    yield provider.name, message

    def connected(self) -> dict[str, bool]:
        """Return of each resource of device plugins whether its plugin is connected."""
        return {
            resource: connected
            for provider in self.all
            for resource, connected in provider.connected().items()
        }

    async def answers(self, questions: Iterable[Question]) -> Answers:
        """Return which devices are preferred, by question; without an answer there are none."""
        found: dict[Question, tuple[str, ...]] = {}
        for question in questions:
            provider = self._provider(question.resource)
            found[question] = (
                ()
                if provider is None
                else await provider.preferred(
                    question.resource, question.available, question.required, question.size
                )
            )
        return MappingProxyType(found)

    async def delivered(self, allocation: PodAllocation, deadline: float) -> PodAllocation:
        """Return the allocation with what each container gets with its devices.

        All of that by the `deadline`, in the loop's time. Raises `DeliveryError`.
        """
        containers = [await self._of_container(each, deadline) for each in allocation.containers]
        return replace(allocation, containers=tuple(containers))

    def prepares(self, allocation: PodAllocation) -> bool:
        """Return whether devices of a pod are prepared for its containers."""
        return any(
            (provider := self._provider(resource)) is not None and provider.prepares(resource)
            for container in allocation.containers
            for resource in container.devices
        )

    async def prepare(self, allocation: PodAllocation) -> None:
        """Have the devices of a pod prepared for its containers; raises `DeliveryError`.

        Each call may take `PREPARE_SECONDS`.
        """
        for container in allocation.containers:
            for resource, ids in sorted(container.devices.items()):
                if resource in self._configured:
                    continue
                try:
                    await self._prepare(resource, ids)
                except DeviceError as error:
                    raise DeliveryError(container.name, resource, ids, error) from error

    async def _prepare(self, resource: str, ids: tuple[str, ...]) -> None:
        provider = self._offering(resource)
        try:
            async with asyncio.timeout(PREPARE_SECONDS):
                await provider.start_container(resource, ids)
        except TimeoutError as error:
            raise DeviceError(
                f"{provider.name} did not prepare {','.join(ids)} of {resource} within "
                f"{PREPARE_SECONDS:g} s",
                "see the log of what provides the devices, then admit the pod again",
            ) from error

    async def _of_container(
        self, container: ContainerAllocation, deadline: float
    ) -> ContainerAllocation:
        found = []
        for resource, ids in sorted(container.devices.items()):
            try:
                async with asyncio.timeout_at(deadline):
                    found.append((resource, await self._allocate(resource, ids)))
            except (DeviceError, TimeoutError) as error:
                cause = error if isinstance(error, DeviceError) else _late(resource)
                raise DeliveryError(container.name, resource, ids, cause) from error
        for conflict in conflicts(found):
            log.warning("conflicting setting", container=container.name, conflict=conflict)
        return (
            replace(container, delivery=merged(each for _, each in found)) if found else container
        )

    async def _allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        if resource in self._configured:
            return _listed(resource, ids)
        provider = self._offering(resource)
        delivery = checked(await provider.allocate(resource, ids), provider.name, resource)
        offered = {device.id for device in provider.offer().devices.get(resource, ())}
        if gone := sorted({*ids} - offered):
            raise DeviceError(
                f"{provider.name} no longer offers {gone[0]} of {resource}",
                "admit the pod again: it gets one of the devices that are there then",
            )
        return delivery

    def _offering(self, resource: str) -> DeviceProvider:
        """Return who offers a resource now; raises `DeviceError`."""
        provider = self._provider(resource)
        if provider is None:
            raise DeviceError(
                f"{resource} is no longer offered", "admit the pod again once it is back"
            )
        return provider

    def _offers(self) -> Iterator[tuple[DeviceProvider, Offer]]:
        for provider in self.all:
            yield provider, provider.offer()

    def _provider(self, resource: str) -> DeviceProvider | None:
        """Return who provides a resource; None for devices of the configuration."""
        if resource in self._configured:
            return None
        return next(
            (provider for provider, offer in self._offers() if resource in offer.devices), None
        )


def _late(resource: str) -> DeviceError:
    return DeviceError(
        f"{resource} was not delivered in the time that plugins have for one pod "
        f"({PLUGIN_SECONDS:g} s, {PLUGIN_SECONDS_BESIDE_RUNTIME:g} s while a container runtime is "
        "connected)",
        "see the log of what provides the devices, then admit the pod again",
    )


def _listed(resource: str, ids: tuple[str, ...]) -> Delivery:
    """Return what a container gets with devices that the configuration lists: their ids."""
    return Delivery(environment=MappingProxyType({variable_of(resource): ",".join(ids)}))


def variable_of(resource: str) -> str:
    """Return the variable with the ids of listed devices: `NUMAWARDEN_DEVICES_EXAMPLE_COM_GPU`."""
    return f"NUMAWARDEN_DEVICES_{variable_part(resource)}"


def allocated_nodes(
    allocations: Mapping[str, PodAllocation],
) -> Mapping[str, Mapping[str, Mask]]:
    """Return the NUMA nodes of all allocated devices by id by resource, empty if not known."""
    found: dict[str, dict[str, Mask]] = {}
    for allocation in allocations.values():
        for container in allocation.containers:
            for resource, ids in container.devices.items():
                nodes = container.device_nodes.get(resource, {})
                found.setdefault(resource, {}).update(
                    (each, nodes.get(each, EMPTY)) for each in ids
                )
    return MappingProxyType(found)

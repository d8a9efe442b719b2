"""All providers of devices as one: what they offer together, and what they deliver for a pod."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.config.devices import variable_part
from agent.devices.cdi import checked
from agent.devices.provider import DeviceError, Offer
from agent.managers.allocation import Delivery, conflicts, merged
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.devices.provider import DeviceProvider
    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.decision import Answers, Question
    from agent.managers.policy import PluginDevice
    from sysfs.mask import Mask

log = structlog.get_logger(__name__)

#: How long the delivery of all devices of one pod may take, in seconds, its turn at the plugins
#: included. A provider has its own, shorter deadline for each call.
DELIVERY_SECONDS: Final = 60.0


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
        seconds: float = DELIVERY_SECONDS,
    ) -> None:
        self.all = tuple(providers)
        self._configured = frozenset(configured)
        self._seconds = seconds

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

    async def delivered(self, allocation: PodAllocation) -> PodAllocation:
        """Return the allocation with what each container gets with its devices.

        First every device is allocated, then every container's devices are prepared for its start,
        which is the next thing that happens to it. Raises `DeliveryError`.
        """
        if not allocation.has_devices:
            return allocation
        deadline = asyncio.get_running_loop().time() + self._seconds
        containers = [await self._of_container(each, deadline) for each in allocation.containers]
        for container in containers:
            for resource, ids in sorted(container.devices.items()):
                await self._start(container.name, resource, ids, deadline)
        return replace(allocation, containers=tuple(containers))

    async def _of_container(
        self, container: ContainerAllocation, deadline: float
    ) -> ContainerAllocation:
        found = [
            (resource, await self._allocate(container.name, resource, ids, deadline))
            for resource, ids in sorted(container.devices.items())
        ]
        for conflict in conflicts(found):
            log.warning("conflicting setting", container=container.name, conflict=conflict)
        return (
            replace(container, delivery=merged(each for _, each in found)) if found else container
        )

    async def _allocate(
        self, container: str, resource: str, ids: tuple[str, ...], deadline: float
    ) -> Delivery:
        provider = self._provider(resource)
        if provider is None:
            return _listed(resource, ids)
        try:
            async with asyncio.timeout_at(deadline):
                delivery = await provider.allocate(resource, ids)
            return checked(delivery, provider.name, resource)
        except DeviceError as error:
            raise DeliveryError(container, resource, ids, error) from error
        except TimeoutError as error:
            raise DeliveryError(container, resource, ids, self._late(provider)) from error

    async def _start(
        self, container: str, resource: str, ids: tuple[str, ...], deadline: float
    ) -> None:
        provider = self._provider(resource)
        if provider is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await provider.start_container(resource, ids)
        except DeviceError as error:
            raise DeliveryError(container, resource, ids, error) from error
        except TimeoutError as error:
            raise DeliveryError(container, resource, ids, self._late(provider)) from error

    def _late(self, provider: DeviceProvider) -> DeviceError:
        return DeviceError(
            f"{provider.name} did not deliver the pod's devices within {self._seconds:g} s",
            "see the log of what provides the devices, then admit the pod again",
        )

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

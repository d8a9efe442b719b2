"""The protocol of a provider of devices: device plugins, and the host's own devices.

What a provider offers is an input of decisions, which stay pure. After a decision and before it is
saved the provider is asked for the delivery of what was allocated; if it fails, the pod is rejected
and nothing is left behind. Once the pod is enforced, its devices are prepared for its containers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from agent.managers.delivery import Delivery
    from agent.managers.policy import PluginDevice


class Offer(Struct, frozen=True):
    """The devices that a provider offers, by resource.

    A resource without devices is known, but has none at present. `preferring` are the resources
    whose provider wants to be asked which of several devices it prefers.
    """

    devices: Mapping[str, tuple[PluginDevice, ...]] = MappingProxyType({})
    preferring: frozenset[str] = frozenset()


NO_OFFER: Final = Offer()


class DeviceError(Exception):
    """A provider did not deliver a device; `message` says why, with the provider's name."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class DeviceProvider(Protocol):
    """Offers devices and delivers those that were allocated."""

    @property
    def name(self) -> str:
        """The name of the provider in conditions, logs and metrics."""
        ...

    @property
    def settled(self) -> asyncio.Event:
        """Set while it serves, once others can connect to it or it knows why they cannot."""
        ...

    def offer(self) -> Offer:
        """Return what is offered now; from memory and in any thread, it never blocks."""
        ...

    def conditions(self) -> tuple[str, ...]:
        """Return what is not as it should be, a line each."""
        ...

    def connected(self) -> Mapping[str, bool]:
        """Return of each resource that depends on another process whether that is connected."""
        ...

    async def serve(self, changed: Callable[[], None]) -> None:
        """Run until cancelled; call `changed` whenever the offer or the conditions change."""
        ...

    async def preferred(
        self, resource: str, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Return which `size` of the `available` devices are preferred, with all `required` ones.

        Empty if the provider has no preference or did not answer in time.
        """
        ...

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        """Return what a container gets with these devices; raises `DeviceError`."""
        ...

    def prepares(self, resource: str) -> bool:
        """Return whether devices of a resource are prepared for each container that starts."""
        ...

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        """Prepare devices for a container that is about to start; raises `DeviceError`."""
        ...

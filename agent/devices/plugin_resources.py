"""What device plugins listed: the devices of each resource, and why they are unhealthy.

In: plugins that connect, their lists of devices, and plugins that are lost. Out: the offer, and a
condition for each resource that is not as it should be. A resource is in one of these states:

- listed: the devices are as the plugin's last list says. Ends with an unusable list, or when the
  plugin is lost.
- rejected: the last list is unusable, so the devices are unhealthy. Ends with a usable list, or
  when the plugin is lost.
- lost: no plugin is connected, so the devices are unhealthy. Ends when a plugin connects; after
  `GRACE` seconds the resource is dropped.
- silent: a plugin connected to a lost resource and sent no list yet; the devices are unhealthy.
  Ends with the first list, or when the plugin is lost again.

A lost or silent resource is *away* for `GRACE` seconds after its last usable list if its plugin may
be starting again: nothing is known against its devices, and no condition is reported.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.devices.plugin_calls import unanswered
from agent.devices.plugin_limits import GRACE, MOST_RESOURCES
from agent.devices.provider import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.devices.plugin_calls import Plugin
    from agent.managers.policy import PluginDevice


class PluginResources:
    """All resources by name; plugins come and go."""

    def __init__(
        self, former: Mapping[str, tuple[PluginDevice, ...]], monotonic: Callable[[], float]
    ) -> None:
        """Begin with the `former` devices, those of plugins before the agent started, as lost."""
        self._monotonic = monotonic
        self._resources = {
            name: _Resource(
                devices, "its plugin has not registered since the agent started", monotonic()
            )
            for name, devices in former.items()
        }

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._resources)

    def offer(self) -> Offer:
        """Return what all plugins offer."""
        devices = {name: resource.offered for name, resource in self._resources.items()}
        preferring = frozenset(
            name
            for name, resource in self._resources.items()
            if resource.plugin is not None and resource.plugin.options.preferred_allocation
        )
        return Offer(MappingProxyType(devices), preferring)

    def conditions(self) -> Iterable[str]:
        """Yield a line for each thing that is not as it should be, by name of the resource."""
        for name, resource in sorted(self._resources.items()):
            for text in resource.conditions():
                yield f"device plugin of {name}: {text}"

    def has_room(self, name: str) -> bool:
        """Return whether a resource is known or one more may be."""
        return name in self._resources or len(self._resources) < MOST_RESOURCES

    def plugin(self, name: str) -> Plugin | None:
        """Return the connected plugin of a resource."""
        resource = self._resources.get(name)
        return None if resource is None else resource.plugin

    def why_lost(self, name: str) -> str:
        """Return why a resource has no plugin."""
        resource = self._resources.get(name)
        return "no plugin registered this resource" if resource is None else resource.fault

    def connect(self, plugin: Plugin) -> Plugin | None:
        """Make a plugin that of its resource; return the connected plugin that it replaces.

        Devices of a replaced plugin stay as they are until the first list of the new one.
        """
        resource = self._resources.get(plugin.resource)
        if resource is None:
            resource = self._resources[plugin.resource] = _Resource((), "", 0.0)
        former, resource.plugin, resource.note = resource.plugin, plugin, ""
        if former is None:
            away = self._is_in_grace(resource.unlisted_at)
            resource.set_unhealthy("its plugin has not sent a list of devices yet", away=away)
        elif former.socket != plugin.socket:
            self._note(
                resource,
                f"{former.socket.name} was connected when {plugin.socket.name} "
                "registered the same resource and replaced it",
            )
        return former

    def list(self, plugin: Plugin, devices: tuple[PluginDevice, ...]) -> None:
        """Offer the devices of a plugin's list."""
        resource = self._of(plugin)
        if resource is not None:
            resource.set_devices(devices)

    def reject(self, plugin: Plugin, why: str) -> None:
        """Offer no healthy device, since a plugin's list cannot be used.

        The list before does not stay in effect: the unusable list may say that a device is broken.
        """
        resource = self._of(plugin)
        if resource is not None:
            if not resource.fault:
                resource.unlisted_at = self._monotonic()
            resource.set_unhealthy(why)

    def note(self, plugin: Plugin, text: str) -> None:
        """Report something about a plugin whose devices are offered all the same."""
        resource = self._of(plugin)
        if resource is not None:
            self._note(resource, text)

    def lose(self, plugin: Plugin, why: str, *, away: bool) -> bool:
        """Note that a plugin is gone; return False if another one replaced it before.

        `away`: the plugin may be starting again.
        """
        resource = self._of(plugin)
        if resource is None:
            return False
        resource.plugin, resource.lost_at = None, self._monotonic()
        if not resource.fault:
            resource.unlisted_at = resource.lost_at
        # The grace of a plugin that ends again and again before its first list is not renewed.
        resource.set_unhealthy(why, away=away and self._is_in_grace(resource.unlisted_at))
        return True

    def expire(self) -> tuple[str, ...]:
        """End what has lasted `GRACE` seconds: lost resources, notes, being away.

        Returns the resources that were dropped.
        """
        expired = tuple(
            [
                name
                for name, resource in self._resources.items()
                if resource.plugin is None and not self._is_in_grace(resource.lost_at)
            ]
        )
        for name in expired:
            del self._resources[name]
        for resource in self._resources.values():
            if resource.note and not self._is_in_grace(resource.noted_at):
                resource.note = ""
            if resource.away and not self._is_in_grace(resource.unlisted_at):
                resource.set_unhealthy(resource.fault)
        return expired

    def _of(self, plugin: Plugin) -> _Resource | None:
        """Return the resource of a plugin, None if another plugin replaced it."""
        resource = self._resources.get(plugin.resource)
        return None if resource is None or resource.plugin is not plugin else resource

    def _is_in_grace(self, moment: float) -> bool:
        """Return whether a moment is less than `GRACE` seconds ago."""
        return self._monotonic() - moment < GRACE

    def _note(self, resource: _Resource, text: str) -> None:
        resource.note, resource.noted_at = text, self._monotonic()


class _Resource:
    """A resource: the devices of its plugin's last usable list, and the plugin if connected."""

    def __init__(self, devices: tuple[PluginDevice, ...], fault: str, lost_at: float) -> None:
        self.plugin: Plugin | None = None
        #: When the plugin was lost.
        self.lost_at = lost_at
        #: When the last usable list ceased to count.
        self.unlisted_at = lost_at
        #: What is reported although devices are offered, and since when.
        self.note = ""
        self.noted_at = 0.0
        #: Why every device is unhealthy; "": the last list says which are.
        self.fault = fault
        #: Whether the plugin may be starting again, so that the fault is not reported yet.
        self.away = False
        #: The devices as offered; all are unhealthy if there is a fault.
        self.offered = self._devices = devices
        self.set_unhealthy(fault, away=True)

    def set_devices(self, devices: tuple[PluginDevice, ...]) -> None:
        """Offer the devices of a list."""
        self.offered = self._devices = devices
        self.fault, self.away = "", False

    def set_unhealthy(self, fault: str, *, away: bool = False) -> None:
        """Offer the devices of the last list as unhealthy; as they were listed if `fault` is ""."""
        self.fault = fault
        self.away = away and bool(fault) and bool(self._devices)
        self.offered = self._devices
        if fault:
            self.offered = tuple(
                [replace(device, healthy=False, away=self.away) for device in self._devices]
            )

    def conditions(self) -> Iterator[str]:
        """Yield what is not as it should be, a line each."""
        if self.fault and not self.away:
            yield f"{self.fault}; its {len(self.offered)} devices are unhealthy"
        if self.note:
            yield self.note
        breakers = {} if self.plugin is None else self.plugin.breakers
        for method, breaker in breakers.items():
            if breaker.timeouts:
                yield unanswered(method, breaker)

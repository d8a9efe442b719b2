"""The resources of all plugins: their devices, whether these can be given, and what is amiss."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.devices.plugins.limits import GRACE, MOST_RESOURCES
from agent.devices.plugins.plugin import unanswered
from agent.devices.provider import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.devices.plugins.plugin import Plugin
    from agent.managers.policy import PluginDevice


class PluginResource:
    """A resource of plugins: the devices of the last list, and the plugin while it is connected.

    `lost_at` is when the plugin was lost, `unlisted_at` when its last list ceased to count. It is
    `away` while it may come back and nothing is known against its devices. `note` says what is odd
    although devices are offered, and `noted_at` since when.
    """

    def __init__(self, devices: tuple[PluginDevice, ...], amiss: str, lost_at: float) -> None:
        self.plugin: Plugin | None = None
        self.lost_at = self.unlisted_at = lost_at
        self.note = ""
        self.noted_at = 0.0
        self.away = False
        self._devices = devices
        self.set_amiss(amiss, away=True)

    @property
    def amiss(self) -> str:
        """Why no device is healthy; "" if the last list of a connected plugin counts."""
        return self._amiss

    @property
    def offered(self) -> tuple[PluginDevice, ...]:
        """The devices; all are unhealthy if something is amiss."""
        return self._offered

    def set_devices(self, devices: tuple[PluginDevice, ...]) -> None:
        """Offer the devices of a list."""
        self._devices = self._offered = devices
        self._amiss = ""
        self.away = False

    def set_amiss(self, amiss: str, *, away: bool = False) -> None:
        """Offer the devices of the last list as unhealthy for a reason; "" as they were listed."""
        self._amiss = amiss
        self.away = away and bool(amiss) and bool(self._devices)
        self._offered = self._devices
        if amiss:
            self._offered = tuple(
                [replace(device, healthy=False, away=self.away) for device in self._devices]
            )


class PluginResources:
    """All resources by name; plugins come and go, what they offered stays for `GRACE` seconds."""

    def __init__(
        self, known: Mapping[str, tuple[PluginDevice, ...]], monotonic: Callable[[], float]
    ) -> None:
        self._monotonic = monotonic
        self._resources = {
            name: PluginResource(
                devices, "its plugin has not registered since the agent started", monotonic()
            )
            for name, devices in known.items()
        }

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._resources)

    def has_room(self, resource: str) -> bool:
        """Return whether a resource is known or one more may be."""
        return resource in self._resources or len(self._resources) < MOST_RESOURCES

    def plugin(self, resource: str) -> Plugin | None:
        """Return the connected plugin of a resource."""
        found = self._resources.get(resource)
        return None if found is None else found.plugin

    def why_lost(self, resource: str) -> str:
        """Return why a resource has no plugin."""
        found = self._resources.get(resource)
        return "no plugin registered this resource" if found is None else found.amiss

    def connect(self, plugin: Plugin) -> Plugin | None:
        """Make a plugin that of its resource; return the connected one that it replaces.

        Devices stay as they are until the plugin's first list.
        """
        found = self._resources.get(plugin.resource)
        if found is None:
            found = PluginResource((), "", 0.0)
            self._resources[plugin.resource] = found
        former, found.plugin, found.note = found.plugin, plugin, ""
        if former is None:
            away = self._is_in_grace(found.unlisted_at)
            found.set_amiss("its plugin has not sent a list of devices yet", away=away)
        elif former.socket != plugin.socket:
            self._note(
                found,
                f"{former.socket.name} was connected when {plugin.socket.name} "
                "registered the same resource and replaced it",
            )
        return former

    def list(self, plugin: Plugin, devices: tuple[PluginDevice, ...]) -> None:
        """Take over the devices of a plugin's list."""
        found = self._of(plugin)
        if found is not None:
            found.set_devices(devices)

    def reject(self, plugin: Plugin, why: str) -> None:
        """Offer no healthy device, since a plugin's list cannot be used.

        The former list does not stay in effect: the one that cannot be used may be the one which
        says that a device is broken.
        """
        found = self._of(plugin)
        if found is not None:
            if not found.amiss:
                found.unlisted_at = self._monotonic()
            found.set_amiss(why)

    def note(self, plugin: Plugin, text: str) -> None:
        """Note what is odd about a plugin whose devices can be given."""
        found = self._of(plugin)
        if found is not None:
            self._note(found, text)

    def lose(self, plugin: Plugin, why: str, *, away: bool) -> bool:
        """Note that a plugin is gone; return False if another one replaced it before.

        `away`: it may be starting again, so that nothing is amiss before `GRACE` seconds.
        """
        found = self._of(plugin)
        if found is None:
            return False
        found.plugin, found.lost_at = None, self._monotonic()
        if not found.amiss:
            found.unlisted_at = found.lost_at
        # One that ends again and again before it lists its devices has one grace for all of that.
        found.set_amiss(why, away=away and self._is_in_grace(found.unlisted_at))
        return True

    def expire(self) -> tuple[str, ...]:
        """Drop resources that were lost `GRACE` seconds ago and old notes; return what dropped."""
        expired = tuple(
            [
                name
                for name, found in self._resources.items()
                if found.plugin is None and not self._is_in_grace(found.lost_at)
            ]
        )
        for name in expired:
            del self._resources[name]
        for found in self._resources.values():
            if found.note and not self._is_in_grace(found.noted_at):
                found.note = ""
            if found.away and not self._is_in_grace(found.unlisted_at):
                found.set_amiss(found.amiss)
        return expired

    def offer(self) -> Offer:
        """Return what all plugins offer."""
        devices = {name: found.offered for name, found in self._resources.items()}
        preferring = frozenset(
            name
            for name, found in self._resources.items()
            if found.plugin is not None and found.plugin.options.preferred_allocation
        )
        return Offer(MappingProxyType(devices), preferring)

    def conditions(self) -> Iterable[str]:
        """Yield a line for each thing that is amiss, by name of the resource."""
        for name, found in sorted(self._resources.items()):
            for text in _lines(found):
                yield f"device plugin of {name}: {text}"

    def _of(self, plugin: Plugin) -> PluginResource | None:
        found = self._resources.get(plugin.resource)
        return None if found is None or found.plugin is not plugin else found

    def _is_in_grace(self, moment: float) -> bool:
        """Return whether a moment is less than `GRACE` seconds ago."""
        return self._monotonic() - moment < GRACE

    def _note(self, found: PluginResource, text: str) -> None:
        found.note, found.noted_at = text, self._monotonic()


def _lines(found: PluginResource) -> Iterator[str]:
    if found.amiss and not found.away:
        yield f"{found.amiss}; its {len(found.offered)} devices are unhealthy"
    if found.note:
        yield found.note
    breakers = {} if found.plugin is None else found.plugin.breakers
    for method, breaker in breakers.items():
        if breaker.timeouts:
            yield unanswered(method, breaker)

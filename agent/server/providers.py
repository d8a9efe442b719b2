"""The providers of devices that a configuration asks for; gRPC is imported only for plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from agent.devices.host import host_devices
from agent.devices.providers import Providers, allocated_nodes
from agent.managers.policy import PluginDevice
from agent.server.errors import missing_extra
from agent.server.watches import directory_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.clock import Clock
    from agent.config.model import Config
    from agent.devices.plugin_limits import Measure
    from agent.devices.provider import DeviceProvider
    from agent.managers.allocation import PodAllocation
    from sysfs.mask import Mask


class ProviderInputs(Struct, frozen=True):
    """What providers are made of.

    `allocated` are the NUMA nodes of the devices that are allocated when the agent starts, by id by
    resource: until they are offered again they are not healthy.
    """

    config: Config
    allocated: Mapping[str, Mapping[str, Mask]]
    clock: Clock
    measure: Measure


#: Makes a provider of devices as configured, None if it is not configured; raises `StartError`.
ProviderFactory: TypeAlias = "Callable[[ProviderInputs], DeviceProvider | None]"


def own_devices(inputs: ProviderInputs) -> DeviceProvider | None:
    """Return the provider of the host's own devices (`agent.hostDevices`)."""
    return host_devices(inputs.config, inputs.allocated)


def device_plugins(inputs: ProviderInputs) -> DeviceProvider | None:
    """Return the provider of the devices of plugins (`agent.devicePlugins`).

    Raises `StartError` without the extra `grpc`.
    """
    agent = inputs.config.agent
    if not agent.device_plugins.enabled:
        return None
    try:
        from agent.devices.plugin_limits import Deadlines  # noqa: PLC0415  # needs the extra
        from agent.devices.plugins import DevicePlugins  # noqa: PLC0415
    except ImportError as error:
        raise missing_extra("agent.devicePlugins.enabled", error) from error
    known = {
        resource: tuple(PluginDevice(*each, healthy=False) for each in sorted(nodes.items()))
        for resource, nodes in inputs.allocated.items()
    }
    return DevicePlugins(
        agent.device_plugins.directory,
        inputs.clock,
        inputs.measure,
        configured={*agent.devices, *(each.resource for each in agent.host_devices)},
        known=known,
        deadlines=Deadlines.of_calls(agent.device_plugins.call_timeout),
        registry=agent.device_plugins.registry_directory,
        watch=directory_names,
    )


def make_providers(
    factories: Iterable[ProviderFactory],
    config: Config,
    allocations: Mapping[str, PodAllocation],
    clock: Clock,
    measure: Measure,
) -> Providers:
    """Return all providers that the configuration asks for; raises `StartError`."""
    inputs = ProviderInputs(config, allocated_nodes(allocations), clock, measure)
    made = [make(inputs) for make in factories]
    return Providers([each for each in made if each is not None], config.agent.devices)

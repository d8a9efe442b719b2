"""The host as last read, and the effective policy that the configuration makes of it.

In go the configuration, the host, what providers offer and what is cordoned; out comes what
decisions and enforcement are based on: a value, made again when one of these changes.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.config.model import Config, ConfigError
from agent.config.resolve import resolve, resolve_what_fits
from agent.devices.provider import NO_OFFER
from agent.managers.machine import Machine
from agent.managers.policy import NO_CORDON
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, with_cordon
from agent.managers.versions import NEWEST, KubernetesVersion

if TYPE_CHECKING:
    from agent.devices.provider import Offer
    from agent.managers.policy import Cordon, PluginDevice, Policy
    from agent.managers.resource_manager import ResourceManager
    from sysfs.host import Host
    from sysfs.mask import Mask


class GoverningVersion(Struct, frozen=True):
    """The version of Kubernetes whose rules apply, and what says so."""

    version: KubernetesVersion = NEWEST
    source: str = "the default"


class ConfiguredHost(Struct, frozen=True):
    """What decisions and enforcement are based on."""

    host: Host
    rules: EffectivePolicy
    #: The settings of the configuration that do not fit the host, a line each.
    mismatches: tuple[str, ...] = ()
    #: Whether the configuration did not fit when the agent started, and still does not: `rules` has
    #: only the settings that fit, and no new pod is admitted.
    frozen: bool = False
    #: The version whose rules the policy follows.
    governing: GoverningVersion = GoverningVersion()

    def conditions(self) -> tuple[str, ...]:
        """Return the mismatches and their effect, a line each."""
        effect = (
            "pods keep their allocations and no new pod is admitted"
            if self.frozen
            else "the previous policy stays in effect"
        )
        return tuple(
            f"{mismatch}; until the configuration fits the host, {effect}"
            for mismatch in self.mismatches
        )


def situate(
    config: Config,
    host: Host,
    previous: ConfiguredHost | None = None,
    *,
    allocated: bool = False,
    managers: tuple[ResourceManager, ...] = MANAGERS,
    offer: Offer = NO_OFFER,
    cordon: Cordon = NO_CORDON,
) -> ConfiguredHost:
    """Return a host with the effective policy that a configuration makes of it.

    The devices are those that the configuration lists and those that providers `offer`. Nothing
    new is allocated from cordoned resources. `allocated`: pods have allocations already. If the
    configuration does not fit the host (for example, its reserved CPUs are gone):

    1. a `previous` policy stays in effect, on the host as it is now, and goes on admitting pods;
    2. at a start with allocations, the settings that fit are used to keep these (`frozen`);
    3. at a start without, `ConfigError` is raised.
    """
    machine = Machine.of(host)

    def effective(policy: Policy) -> EffectivePolicy:
        offered = _with_offer(policy, config, machine, offer)
        return with_cordon(EffectivePolicy(machine, offered, managers), cordon)

    try:
        return ConfiguredHost(host, effective(resolve(config, machine, offline=host.offline)))
    except ConfigError as error:
        mismatches = tuple(f"{problem.path}: {problem.message}" for problem in error.problems)
        if previous is not None:
            rules = effective(previous.rules.policy)
            return ConfiguredHost(host, rules, mismatches, previous.frozen, previous.governing)
        if not allocated:
            raise
        rules = effective(resolve_what_fits(config, machine))
        return ConfiguredHost(host, rules, mismatches, frozen=True)


class _Inventory:
    """The devices of a resource as a key that is compared by identity.

    Comparing thousands of devices takes long, and providers offer the same tuple until it changes.
    """

    def __init__(self, devices: tuple[PluginDevice, ...]) -> None:
        self.devices = devices

    def __hash__(self) -> int:
        return id(self.devices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inventory) and self.devices is other.devices


@lru_cache(maxsize=128)
def _placed(inventory: _Inventory, nodes: Mask) -> tuple[PluginDevice, ...]:
    """Return devices, each with only those of its nodes that a machine has."""
    if all(device.nodes <= nodes for device in inventory.devices):
        return inventory.devices
    return tuple(replace(device, nodes=device.nodes & nodes) for device in inventory.devices)


def _with_offer(policy: Policy, config: Config, machine: Machine, offer: Offer) -> Policy:
    """Return the policy with the devices of the configuration and those that are offered.

    A node that the machine does not have says nothing about where a device is.
    """
    offered = {
        resource: _placed(_Inventory(inventory), machine.node_mask)
        for resource, inventory in offer.devices.items()
    }
    devices = MappingProxyType({**offered, **config.agent.devices})
    preferring = offer.preferring - config.agent.devices.keys()
    if (devices, preferring) == (policy.devices, policy.preferring):
        return policy
    return replace(policy, devices=devices, preferring=preferring)

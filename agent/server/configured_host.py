"""The host as last read, and the effective policy derived from it and the configuration."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.config.model import Config, ConfigError
from agent.config.resolve import resolve, resolve_what_fits
from agent.devices.provider import NO_OFFER
from agent.managers.admission import admit
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.effective_policy import EffectivePolicy, with_cordon
from agent.managers.machine import Machine
from agent.managers.policy import NO_CORDON
from agent.managers.registry import MANAGERS

if TYPE_CHECKING:
    from agent.devices.provider import Offer
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.policy import Cordon, PluginDevice, Policy
    from agent.managers.resource_manager import ResourceManager
    from agent.pods.model import Pod
    from sysfs.host import Host
    from sysfs.mask import Mask


class ConfiguredHost(Struct, frozen=True):
    """What decisions and enforcement are based on.

    `mismatches` are the settings of the configuration that do not fit the host, a line each.
    `frozen`: the configuration has not fitted the host since the start, so that `rules` has only
    the settings that fit, and no new pod is admitted.
    """

    host: Host
    rules: EffectivePolicy
    mismatches: tuple[str, ...] = ()
    frozen: bool = False

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


def decide(configured: ConfiguredHost, ledger: Ledger, pod: Pod) -> Decision:
    """Decide by the effective policy; a frozen host admits no new pod."""
    if configured.frozen and pod.uid not in ledger.allocations:
        rejection = Rejection(
            Reason.UNEXPECTED,
            f"the configuration does not fit this host: {'; '.join(configured.mismatches)}",
            remedy="correct the configuration and restart the agent; running pods are not affected",
        )
        return Decision(pod.uid, ledger, cause=rejection)
    return admit(configured.rules, ledger, pod)


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
    """Return the effective policy of a configuration on a host, with the `managers`.

    The devices are those that the configuration lists, and those that providers `offer`. Nothing
    new is allocated from what the `cordon` has.

    If the configuration does not fit (for example, its reserved CPUs are gone), the `previous`
    policy stays in effect on the host as it is now. Without a previous policy, the settings that
    fit are used to keep existing allocations (`allocated`: there are some); if there are none,
    `ConfigError` is raised.
    """
    machine = Machine.of(host)

    def ruled(policy: Policy) -> EffectivePolicy:
        offered = _with_offer(policy, config, machine, offer)
        return with_cordon(EffectivePolicy(machine, offered, managers), cordon)

    try:
        return ConfiguredHost(host, ruled(resolve(config, machine, offline=host.offline)))
    except ConfigError as error:
        mismatches = tuple(f"{problem.path}: {problem.message}" for problem in error.problems)
        if previous is not None:
            rules = ruled(previous.rules.policy)
            return ConfiguredHost(host, rules, mismatches, previous.frozen)
        if not allocated:
            raise
        rules = ruled(resolve_what_fits(config, machine))
        return ConfiguredHost(host, rules, mismatches, frozen=True)


class _Inventory:
    """The devices of a resource, the same only as themselves: comparing thousands takes long."""

    def __init__(self, devices: tuple[PluginDevice, ...]) -> None:
        self.devices = devices

    def __hash__(self) -> int:
        return id(self.devices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inventory) and self.devices is other.devices


@lru_cache(maxsize=128)
def _placed(inventory: _Inventory, nodes: Mask) -> tuple[PluginDevice, ...]:
    """Return devices with those of their nodes that a machine has; of one change, not of all."""
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

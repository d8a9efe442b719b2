from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hypothesis import given
from msgspec.structs import replace

from agent.api.documents import decode, encode
from agent.api.views import SnapshotDocument, snapshot_document
from agent.config.load import load_config
from agent.config.model import Config
from agent.config.resolve import resolve_what_fits
from agent.managers.machine import Machine
from agent.managers.policy import PluginDevice
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from sysfs.mask import Mask
from tests.sysfs.hosts import hosts

if TYPE_CHECKING:
    from sysfs.host import Host


def sent(config: Config, rules: EffectivePolicy, host: Host) -> SnapshotDocument:
    """Return a snapshot as it arrives at a client."""
    taken = snapshot_document(config, rules, host.offline, b'{"a": [1]}\n', version="1")
    return decode(encode(taken), SnapshotDocument)


@given(hosts(devices=False))
def test_the_machine_of_a_snapshot_is_the_agents(host: Host) -> None:
    machine = Machine.of(host)
    rules = EffectivePolicy(machine, resolve_what_fits(Config(), machine), MANAGERS)
    found = sent(Config(), rules, host)
    assert found.machine() == machine
    assert Mask.parse(found.offline) == host.offline
    assert load_config(found.config, "x") == Config()
    assert bytes(found.checkpoint) == b'{"a": [1]}'


@given(hosts(devices=False))
def test_the_devices_of_a_snapshot_are_those_that_can_be_allocated(host: Host) -> None:
    """Those of plugins are not in the configuration, but in the policy that is in effect."""
    machine = Machine.of(host)
    inventory = (PluginDevice("a", machine.node_mask), PluginDevice("b", healthy=False))
    policy = replace(
        resolve_what_fits(Config(), machine),
        devices=MappingProxyType({"example.com/gpu": inventory}),
        preferring=frozenset({"example.com/gpu"}),
    )
    found = sent(Config(), EffectivePolicy(machine, policy, MANAGERS), host)
    assert load_config(found.config, "x").agent.devices == policy.devices
    assert found.preferring == ("example.com/gpu",)

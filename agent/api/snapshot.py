"""The agent's input to a decision: what `numawarden replay --from-live` decides on.

Configuration, machine and allocations are those in effect when the snapshot was made. From them
the client makes the same values, and decides with the same functions.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from agent.api.documents import Document
from agent.api.views import given_documents
from agent.config.load import config_yaml
from agent.managers.cpu.topology import CpuTopology
from agent.managers.device.given import devices_of
from agent.managers.machine import Machine, MachineNode
from agent.pods.identity import full_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.model import Config
    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import GivenDevices, Pod
    from sysfs.mask import Mask

#: Of no pod.
NOTHING_GIVEN: Final[Mapping[str, GivenDevices]] = MappingProxyType({})


class SnapshotDocument(Document, frozen=True):
    """What decisions are based on.

    `config` is a configuration file (YAML) with every key; `agent.devices` are the devices that can
    be allocated now, those of device plugins and of the host included. `cpus` has a list
    `[cpu, core, package, node, uncore cache]` for each online CPU, `offline` the CPUs that do not
    run. `checkpoint` is the checkpoint (`docs/state-files.md`), which has the allocations.
    `mismatches` are settings that do not fit the host, `preferring` the resources whose device
    plugins are asked which devices they prefer, which a replay cannot do. `kubelet_devices` are the
    devices that the kubelet beside the agent gave, by container (`ContainerDocument`) by the
    `namespace/name` of the pod, admitted or not.
    """

    version: str
    config: str
    cpus: tuple[tuple[int, int, int, int, int], ...]
    nodes: tuple[MachineNode, ...]
    offline: str
    checkpoint: msgspec.Raw
    mismatches: tuple[str, ...] = ()
    preferring: tuple[str, ...] = ()
    kubelet_devices: dict[str, dict[str, dict[str, dict[str, str]]]] = msgspec.field(
        default_factory=dict
    )

    def given(self, pod: Pod) -> GivenDevices:
        """Return the devices that the kubelet gave to the containers of a pod."""
        found = self.kubelet_devices.get(full_name(pod), {})
        return {container: tuple(devices_of(part)) for container, part in found.items()}

    def machine(self) -> Machine:
        """Return the machine; raises `CpuTopologyError` for rows that describe none."""
        return Machine(CpuTopology.from_rows(self.cpus), self.nodes)


def snapshot_document(
    config: Config,
    rules: EffectivePolicy,
    offline: Mask,
    checkpoint: bytes,
    *,
    version: str,
    mismatches: tuple[str, ...] = (),
    given: Mapping[str, GivenDevices] = NOTHING_GIVEN,
) -> SnapshotDocument:
    """Return the snapshot of an agent; `checkpoint` are the bytes that would be saved.

    `given` are the devices of pods that the kubelet gave, by `namespace/name`.
    """
    offered = replace(config.agent, devices=rules.policy.devices)
    return SnapshotDocument(
        version=version,
        config=config_yaml(replace(config, agent=offered)),
        cpus=tuple((row.cpu, row.core, row.socket, row.node, row.uncore)
                   for row in rules.machine.cpus.rows),
        nodes=rules.machine.nodes,
        offline=str(offline),
        checkpoint=msgspec.Raw(checkpoint.strip()),
        mismatches=mismatches,
        preferring=tuple(sorted(rules.policy.preferring)),
        kubelet_devices={name: given_documents(devices) for name, devices in given.items()},
    )  # fmt: skip

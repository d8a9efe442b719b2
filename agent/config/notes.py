"""What is allowed in a configuration and may not be what was meant: one line for each."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from agent.config.amounts import MEMORY_AVAILABLE
from agent.config.gates import MEMORY_QOS, gate_notes
from agent.config.model import Config
from agent.config.policy_options import ALIGN_BY_SOCKET, MAX_NODES
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from cgroupfs.settings import KernelController

if TYPE_CHECKING:
    from collections.abc import Iterator


def notes_on(config: Config) -> Iterator[str]:
    """Yield one line for each setting that changes nothing here, or leaves something to others."""
    metrics = config.agent.metrics
    if not ip_address(metrics.address).is_loopback:
        yield (
            f"agent.metrics.address {metrics.address} is reached from this host alone under "
            "numawarden.service, until IPAddressAllow= of the unit names others"
        )
        if metrics.tls_certificate is None:
            yield (
                f"agent.metrics.address {metrics.address} is served in plain HTTP to every host "
                "that reaches it; set tlsCertificate and tlsKey"
            )
    yield from (
        f"agent.enforce leaves {controller} to others: {controller.without}"
        for controller in KernelController
        if controller not in config.agent.enforce
    )
    if config.memory_throttling_factor is not None and not config.memory_qos:
        yield f"memoryThrottlingFactor changes nothing without the feature gate {MEMORY_QOS}"
    yield from gate_notes(config.feature_gates)
    if MAX_NODES in config.topology_manager_policy_options:
        yield f"{MAX_NODES} is not needed: the number of NUMA nodes is not limited"
    if config.topology_manager_policy is TopologyManagerPolicy.NONE:
        yield from _without_topology_manager(config)
    without_memory = config.memory_manager_policy is MemoryManagerPolicy.NONE
    without_cpus = config.cpu_manager_policy is CpuManagerPolicy.NONE
    if without_memory and without_cpus and config.gates.pod_level_resource_managers:
        yield (
            "featureGates.PodLevelResourceManagers changes nothing with cpuManagerPolicy none and "
            "memoryManagerPolicy None: pods get nothing exclusive, and no budget is divided"
        )
    if config.reserved_memory and without_memory:
        yield "reservedMemory changes nothing with memoryManagerPolicy None"
    signals = [name for name in config.eviction_hard if name != MEMORY_AVAILABLE]
    if signals and config.eviction_hard != Config().eviction_hard:
        yield f"evictionHard {', '.join(signals)}: only memory.available counts here"


def _without_topology_manager(config: Config) -> Iterator[str]:
    if config.topology_manager_policy_options:
        yield "topologyManagerPolicyOptions change nothing with topologyManagerPolicy none"
    if config.topology_manager_scope is TopologyManagerScope.POD:
        yield (
            "topologyManagerScope pod changes nothing with topologyManagerPolicy none: containers "
            "are served one by one, and no pod-level budget is divided"
        )
    if config.cpu_options.align_by_socket:
        yield (
            f"{ALIGN_BY_SOCKET} with topologyManagerPolicy none chooses CPUs of one socket where "
            "one has room; memory and devices are not aligned to them"
        )

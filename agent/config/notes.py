"""What is accepted in a configuration and worth knowing: what changes nothing, what is open."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from agent.config.config import MEMORY_AVAILABLE, Config, EnforcedController
from agent.config.features import ignored_gates
from agent.config.options import ALIGN_BY_SOCKET, MAX_NODES, cpu_options
from agent.managers.policy import (
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def notes_on(config: Config) -> Iterator[str]:
    """Yield one line for each setting that changes nothing here, or opens a door to others."""
    metrics = config.agent.metrics
    if not ip_address(metrics.address).is_loopback and metrics.tls_certificate is None:
        yield (
            f"agent.metrics.address {metrics.address} is served in plain HTTP to everybody who "
            "reaches it; set tlsCertificate and tlsKey"
        )
    yield from _left_to_others(config.agent.enforce)
    for gate in ignored_gates(config.feature_gates):
        yield f"featureGates.{gate} changes nothing here"
    options = config.topology_manager_policy_options
    if MAX_NODES in options:
        yield f"{MAX_NODES} is not needed: the number of NUMA nodes is not limited"
    if options and config.topology_manager_policy is TopologyManagerPolicy.NONE:
        yield "topologyManagerPolicyOptions change nothing with topologyManagerPolicy none"
    if config.topology_manager_policy is TopologyManagerPolicy.NONE:
        yield from _without_topology_manager(config)
    if config.reserved_memory and config.memory_manager_policy is MemoryManagerPolicy.NONE:
        yield "reservedMemory changes nothing with memoryManagerPolicy None"
    signals = [name for name in config.eviction_hard if name != MEMORY_AVAILABLE]
    if signals and config.eviction_hard != Config().eviction_hard:
        yield f"evictionHard {', '.join(signals)}: only memory.available counts here"


#: What nobody holds the kernel to where a controller is not among `agent.enforce`.
_LEFT: Final = {
    EnforcedController.CPUSET: "exclusive CPUs and memory nodes are decided but not written",
    EnforcedController.CPU: "neither quotas nor weights of pods are written",
    EnforcedController.MEMORY: "memory.max of pods is not written",
    EnforcedController.HUGETLB: "limits of huge pages of pods are not written",
}


def _left_to_others(enforce: Collection[EnforcedController]) -> Iterator[str]:
    for controller, left in _LEFT.items():
        if controller not in enforce:
            yield f"agent.enforce leaves {controller} to others: {left}"


def _without_topology_manager(config: Config) -> Iterator[str]:
    if config.topology_manager_scope is TopologyManagerScope.POD:
        yield (
            "topologyManagerScope pod changes nothing with topologyManagerPolicy none: containers "
            "are served one by one, and no pod-level budget is divided"
        )
    if cpu_options(config.cpu_manager_policy_options).align_by_socket:
        yield (
            f"{ALIGN_BY_SOCKET} with topologyManagerPolicy none chooses CPUs of one socket where "
            "one has room; memory and devices are not aligned to them"
        )

"""Policy options: their values, their gates, and which exclude each other.

Sources: KEP-2625 (CPU manager policy options), KEP-3545 (topology manager policy options),
KEP-4540 (strict-cpu-reservation), KEP-4800 (uncore cache).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.managers.policy import CpuPolicyOptions, TopologyManagerPolicy
from agent.yaml import guess, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.policy import FeatureGates

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
DISTRIBUTE_ACROSS_CORES: Final = "distribute-cpus-across-cores"
ALIGN_BY_SOCKET: Final = "align-by-socket"
STRICT_RESERVATION: Final = "strict-cpu-reservation"
ALIGN_BY_UNCORE: Final = "prefer-align-cpus-by-uncorecache"
PREFER_CLOSEST: Final = "prefer-closest-numa-nodes"
MAX_NODES: Final = "max-allowable-numa-nodes"

CPU_OPTIONS: Final = (
    FULL_PCPUS_ONLY,
    DISTRIBUTE_ACROSS_NUMA,
    ALIGN_BY_SOCKET,
    DISTRIBUTE_ACROSS_CORES,
    STRICT_RESERVATION,
    ALIGN_BY_UNCORE,
)
TOPOLOGY_OPTIONS: Final = (PREFER_CLOSEST, MAX_NODES)
_ALPHA: Final = (ALIGN_BY_SOCKET, DISTRIBUTE_ACROSS_CORES)
_BETA: Final = (DISTRIBUTE_ACROSS_NUMA,)
_EXCLUSIVE: Final = (
    (FULL_PCPUS_ONLY, DISTRIBUTE_ACROSS_CORES),
    (DISTRIBUTE_ACROSS_NUMA, DISTRIBUTE_ACROSS_CORES),
    (ALIGN_BY_UNCORE, DISTRIBUTE_ACROSS_CORES),
    (ALIGN_BY_UNCORE, DISTRIBUTE_ACROSS_NUMA),
)
#: What Go's strconv.ParseBool accepts.
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
#: The lowest value that the kubelet allows, which is also its default.
MIN_MAX_NODES: Final = 8


def cpu_option_problems(
    options: Mapping[str, str], gates: FeatureGates
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with `cpuManagerPolicyOptions`, as (option, message)."""
    for name, value in options.items():
        if name not in CPU_OPTIONS:
            yield name, f"unknown CPU manager policy option{guess(name, CPU_OPTIONS)}"
        elif name in _ALPHA and not gates.cpu_manager_policy_alpha_options:
            yield name, "this option needs the feature gate CPUManagerPolicyAlphaOptions"
        elif name in _BETA and not gates.cpu_manager_policy_beta_options:
            yield name, "this option needs the feature gate CPUManagerPolicyBetaOptions"
        elif value not in _BOOLEANS:
            yield name, _not_boolean(value)
    for first, second in _EXCLUSIVE:
        if _is_on(options, first) and _is_on(options, second):
            yield first, f"it cannot be used together with {second}; switch one of them off"


def cpu_options(options: Mapping[str, str]) -> CpuPolicyOptions:
    """Return valid options as values; see `cpu_option_problems`."""
    return CpuPolicyOptions(
        **{name.replace("-", "_"): _is_on(options, name) for name in CPU_OPTIONS}
    )


def topology_option_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with `topologyManagerPolicyOptions`, as (option, message)."""
    for name, value in options.items():
        if name not in TOPOLOGY_OPTIONS:
            yield name, f"unknown topology manager policy option{guess(name, TOPOLOGY_OPTIONS)}"
        elif name == PREFER_CLOSEST and value not in _BOOLEANS:
            yield name, _not_boolean(value)
        elif name == MAX_NODES and not _INTEGER.fullmatch(value):
            yield name, f"{shown(value)} is not a whole number"
        elif name == MAX_NODES and int(value) < MIN_MAX_NODES:
            yield (
                name,
                (
                    f"{shown(value)} is below {MIN_MAX_NODES}, the least that the kubelet takes; "
                    "the option is not needed here, where the number of nodes is not limited"
                ),
            )


def prefers_closest(options: Mapping[str, str]) -> bool:
    """Return whether valid options ask for the closest nodes."""
    return _is_on(options, PREFER_CLOSEST)


def host_problems(
    options: CpuPolicyOptions, topology: TopologyManagerPolicy, sockets: int, nodes: int
) -> Iterator[tuple[str, str]]:
    """Yield which options do not go with the topology policy or the host, as (option, message)."""
    if not options.align_by_socket:
        return
    if topology is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield (
            ALIGN_BY_SOCKET,
            f"it cannot be used together with topologyManagerPolicy {topology}",
        )
    if sockets > nodes:
        yield (
            ALIGN_BY_SOCKET,
            f"this host has more sockets ({sockets}) than NUMA nodes with CPUs ({nodes})",
        )


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return _BOOLEANS.get(options.get(name, ""), False)


def _not_boolean(value: str) -> str:
    return f'{shown(value)} is not a boolean; write "true" or "false"'

"""The options of the CPU manager's and the topology manager's policies, one row each.

In go the texts of `cpuManagerPolicyOptions` and `topologyManagerPolicyOptions`, out come values, or
what is wrong with the texts. Sources: KEP-2625 (CPU manager), KEP-3545 (topology manager), KEP-4540
(strict-cpu-reservation), KEP-4800 (uncore cache).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.config.gates import ALPHA_OPTIONS, BETA_OPTIONS, GATES
from agent.managers.policy import CpuPolicyOptions, FeatureGates, TopologyManagerPolicy
from agent.yaml import guesses, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
DISTRIBUTE_ACROSS_CORES: Final = "distribute-cpus-across-cores"
ALIGN_BY_SOCKET: Final = "align-by-socket"
ALIGN_BY_UNCORE: Final = "prefer-align-cpus-by-uncorecache"
PREFER_CLOSEST: Final = "prefer-closest-numa-nodes"
MAX_NODES: Final = "max-allowable-numa-nodes"

#: What Go's strconv.ParseBool accepts.
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
#: The lowest value that the kubelet allows, which is also its default.
MIN_MAX_NODES: Final = 8


def _boolean_fault(value: str) -> str | None:
    if value in _BOOLEANS:
        return None
    return f'{shown(value)} is not a boolean; write "true" or "false"'


def _max_nodes_fault(value: str) -> str | None:
    if not _INTEGER.fullmatch(value):
        return f"{shown(value)} is not a whole number"
    if int(value) < MIN_MAX_NODES:
        return (
            f"{shown(value)} is below {MIN_MAX_NODES}, the least that the kubelet takes; the "
            "option is not needed here, where the number of nodes is not limited"
        )
    return None


class PolicyOption(Struct, frozen=True):
    """An option of a policy."""

    effect: str
    #: The feature gate without which the option is a mistake.
    gate: str = ""
    #: Other options that cannot be on beside the option.
    excludes: tuple[str, ...] = ()
    #: Return the mistake in a value; None without one.
    fault: Callable[[str], str | None] = _boolean_fault

    @property
    def meaning(self) -> str:
        """What the option does, needs and excludes."""
        gate = f" (gate {self.gate})" if self.gate else ""
        excludes = f"; excludes {', '.join(self.excludes)}" if self.excludes else ""
        return f"{self.effect}{gate}{excludes}"


CPU_OPTIONS: Final[Mapping[str, PolicyOption]] = {
    FULL_PCPUS_ONLY: PolicyOption("only whole physical cores; reject what would split one"),
    DISTRIBUTE_ACROSS_NUMA: PolicyOption(
        "spread evenly when more than one NUMA node is needed", gate=BETA_OPTIONS
    ),
    "strict-cpu-reservation": PolicyOption("keep shared containers off the reserved CPUs as well"),
    ALIGN_BY_UNCORE: PolicyOption(
        "keep a container within one last level cache where possible",
        excludes=(DISTRIBUTE_ACROSS_NUMA,),
    ),
    ALIGN_BY_SOCKET: PolicyOption(
        "align to sockets, to one where one has room; only CPUs without a topologyManagerPolicy, "
        "and never with single-numa-node",
        gate=ALPHA_OPTIONS,
    ),
    DISTRIBUTE_ACROSS_CORES: PolicyOption(
        "spread over cores",
        gate=ALPHA_OPTIONS,
        excludes=(FULL_PCPUS_ONLY, DISTRIBUTE_ACROSS_NUMA, ALIGN_BY_UNCORE),
    ),
}
TOPOLOGY_OPTIONS: Final[Mapping[str, PolicyOption]] = {
    PREFER_CLOSEST: PolicyOption("among equals choose nodes that are near each other"),
    MAX_NODES: PolicyOption(
        f"accepted ({MIN_MAX_NODES} or more) and not needed; the number of nodes has no limit",
        fault=_max_nodes_fault,
    ),
}


def cpu_options(options: Mapping[str, str]) -> CpuPolicyOptions:
    """Return valid options as values."""
    return CpuPolicyOptions(
        **{name.replace("-", "_"): _is_on(options, name) for name in CPU_OPTIONS}
    )


def prefers_closest(options: Mapping[str, str]) -> bool:
    """Return whether valid options ask for the closest nodes."""
    return _is_on(options, PREFER_CLOSEST)


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return _BOOLEANS.get(options.get(name, ""), False)


def cpu_option_problems(
    options: Mapping[str, str], gates: FeatureGates
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with `cpuManagerPolicyOptions`, as (option, message)."""
    return _problems("CPU", CPU_OPTIONS, options, gates)


def topology_option_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with `topologyManagerPolicyOptions`, as (option, message)."""
    return _problems("topology", TOPOLOGY_OPTIONS, options, FeatureGates())


def _problems(
    manager: str, known: Mapping[str, PolicyOption], options: Mapping[str, str], gates: FeatureGates
) -> Iterator[tuple[str, str]]:
    guess = guesses()
    for name, value in options.items():
        option = known.get(name)
        if option is None:
            yield name, f"unknown {manager} manager policy option{guess(name, known)}"
        elif option.gate and not GATES[option.gate].is_on(gates):
            yield name, f"this option needs the feature gate {option.gate}"
        elif (fault := option.fault(value)) is not None:
            yield name, fault
    for name, option in known.items():
        for other in option.excludes:
            if _is_on(options, name) and _is_on(options, other):
                yield name, f"it cannot be used together with {other}; switch one of them off"


def socket_problems(
    options: CpuPolicyOptions, topology: TopologyManagerPolicy, sockets: int = 0, nodes: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield why `align-by-socket` cannot be on, as (option, message).

    `sockets` and `nodes` are the numbers of a host; without them the policies alone are compared.
    """
    if not options.align_by_socket:
        return
    if topology is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield ALIGN_BY_SOCKET, f"it cannot be used together with topologyManagerPolicy {topology}"
    if sockets > nodes:
        yield (
            ALIGN_BY_SOCKET,
            f"this host has more sockets ({sockets}) than NUMA nodes with CPUs ({nodes})",
        )

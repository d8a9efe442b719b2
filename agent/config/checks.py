"""What does not go together within one configuration, whatever the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from agent.config.features import gate_problems
from agent.config.options import (
    cpu_option_problems,
    cpu_options,
    host_problems,
    topology_option_problems,
)
from agent.config.reservations import reserved_millicpus
from agent.managers.policy import CpuManagerPolicy
from agent.parsing.errors import Mistake
from agent.parsing.nodes import join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.config.config import Config

_CPU_OPTIONS: Final = "cpuManagerPolicyOptions"
_TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
_Check: TypeAlias = "Callable[[Config], Iterable[Mistake]]"


def find_problems(config: Config, unread: frozenset[str] = frozenset()) -> list[Mistake]:
    """Return every contradiction within a configuration, with the path of a field to change.

    `unread` are keys whose values could not be read; what depends on one of them is not judged.
    """
    return [
        problem for keys, check in _CHECKS if unread.isdisjoint(keys) for problem in check(config)
    ]


def _at(section: str, found: Iterable[tuple[str, str]]) -> Iterator[Mistake]:
    return (Mistake(join(section, key), message) for key, message in found)


def _gate_problems(config: Config) -> Iterator[Mistake]:
    return _at("featureGates", gate_problems(config.feature_gates))


def _cpu_option_problems(config: Config) -> Iterator[Mistake]:
    return _at(_CPU_OPTIONS, cpu_option_problems(config.cpu_manager_policy_options, config.gates))


def _alignment_problems(config: Config) -> Iterator[Mistake]:
    options = cpu_options(config.cpu_manager_policy_options)
    return _at(_CPU_OPTIONS, host_problems(options, config.topology_manager_policy, 0, 0))


def _topology_option_problems(config: Config) -> Iterator[Mistake]:
    found = topology_option_problems(config.topology_manager_policy_options)
    return _at(_TOPOLOGY_OPTIONS, found)


def _cpu_problems(config: Config) -> Iterator[Mistake]:
    if config.cpu_manager_policy is not CpuManagerPolicy.STATIC:
        if config.cpu_manager_policy_options:
            yield Mistake(
                _CPU_OPTIONS,
                "options need the static policy; set cpuManagerPolicy to static or remove them",
            )
        return
    millis = reserved_millicpus(config)
    listed = config.reserved_system_cpus
    if listed is None and not millis:
        yield Mistake(
            "cpuManagerPolicy",
            "the static policy needs CPUs for the system: set reservedSystemCPUs to a list such as "
            "0-1, or systemReserved.cpu and kubeReserved.cpu to amounts above zero",
        )
    if listed is not None and millis and len(listed) != -(-millis // 1000):
        yield Mistake(
            "reservedSystemCPUs",
            f"the list {listed} has {len(listed)} CPUs, but systemReserved.cpu and "
            f"kubeReserved.cpu together reserve {millis}m, which is {-(-millis // 1000)}; make "
            "them agree or leave the amounts out",
        )


def _ignored_problems(config: Config) -> Iterator[Mistake]:
    for resource in config.agent.ignored_resources:
        if resource in config.agent.devices:
            yield Mistake(
                "agent.ignoredResources",
                f"{resource} has devices in agent.devices, so the agent provides it; remove it "
                "from one of the two",
            )


def _tls_problems(config: Config) -> Iterator[Mistake]:
    metrics = config.agent.metrics
    if (metrics.tls_certificate is None) != (metrics.tls_key is None):
        missing = "tlsKey" if metrics.tls_key is None else "tlsCertificate"
        yield Mistake("agent.metrics", f"{missing} is missing: TLS needs tlsCertificate and tlsKey")


#: Each check with the keys that it goes by.
_CHECKS: Final[tuple[tuple[tuple[str, ...], _Check], ...]] = (
    (("featureGates",), _gate_problems),
    ((_CPU_OPTIONS, "featureGates"), _cpu_option_problems),
    ((_CPU_OPTIONS, "topologyManagerPolicy"), _alignment_problems),
    ((_TOPOLOGY_OPTIONS,), _topology_option_problems),
    (
        ("cpuManagerPolicy", _CPU_OPTIONS, "reservedSystemCPUs", "systemReserved", "kubeReserved"),
        _cpu_problems,
    ),
    (("agent",), _tls_problems),
    (("agent",), _ignored_problems),
)

"""What contradicts itself within a configuration, whatever the host.

In goes a configuration that was read, out comes each contradiction as a mistake with the path of a
key to change. `agent.config.host_checks` finds what does not fit a host.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.config.agent import METRIC_NAMES
from agent.config.gates import MEMORY_QOS, gate_problems
from agent.config.model import MemoryReservationPolicy, NodeAllocatable
from agent.config.policy_options import (
    cpu_option_problems,
    socket_problems,
    topology_option_problems,
)
from agent.managers.policy import CpuManagerPolicy
from agent.yaml import Mistake, guess, join, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from agent.config.model import Config

#: What to do where packages of the extra `grpc` are missing.
INSTALL_GRPC: Final = "install the extra: pip install 'numawarden[grpc]'"
#: The modules that are imported of the extra `grpc`, with their packages.
_GRPC: Final = {"grpc": "grpcio", "google.protobuf": "protobuf"}
_CPU_OPTIONS: Final = "cpuManagerPolicyOptions"
_TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
_PERFORMANCE: Final = "performance"


def find_problems(config: Config, unread: frozenset[str] = frozenset()) -> list[Mistake]:
    """Return every contradiction within a configuration.

    `unread` are keys whose values could not be read; what depends on one of them is not judged.
    """
    return [
        problem for keys, check in _CHECKS if unread.isdisjoint(keys) for problem in check(config)
    ]


def _gates(config: Config) -> Iterator[Mistake]:
    return _at("featureGates", gate_problems(config.feature_gates, config.version))


def _cpu_options(config: Config) -> Iterator[Mistake]:
    return _at(_CPU_OPTIONS, cpu_option_problems(config.cpu_manager_policy_options, config.gates))


def _alignment_by_socket(config: Config) -> Iterator[Mistake]:
    policy = config.topology_manager_policy
    return _at(_CPU_OPTIONS, socket_problems(config.cpu_options, policy))


def _topology_options(config: Config) -> Iterator[Mistake]:
    options = config.topology_manager_policy_options
    return _at(_TOPOLOGY_OPTIONS, topology_option_problems(options))


def _at(key: str, problems: Iterable[tuple[str, str]]) -> Iterator[Mistake]:
    return (Mistake(join(key, entry), message) for entry, message in problems)


def _options_without_policy(config: Config) -> Iterator[Mistake]:
    static = config.cpu_manager_policy is CpuManagerPolicy.STATIC
    if config.cpu_manager_policy_options and not static:
        yield Mistake(
            _CPU_OPTIONS,
            "options need the static policy; set cpuManagerPolicy to static or remove them",
        )


def _reserved_cpus(config: Config) -> Iterator[Mistake]:
    if config.cpu_manager_policy is not CpuManagerPolicy.STATIC:
        return
    millis = config.reserved_millicpus
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


def _memory_qos(config: Config) -> Iterator[Mistake]:
    """Find a memory reservation whose feature is off; the kubelet rejects it, too."""
    tiered = config.memory_reservation_policy is MemoryReservationPolicy.TIERED
    if tiered and not config.memory_qos:
        yield Mistake(
            "memoryReservationPolicy",
            f"TieredReservation needs the feature gate {MEMORY_QOS}, which is off; switch it on, "
            "or set None",
        )


def _node_allocatable(config: Config) -> Iterator[Mistake]:
    items = config.enforce_node_allocatable
    if NodeAllocatable.NONE in items and len(items) > 1:
        yield Mistake("enforceNodeAllocatable", "none stands alone; remove it, or all others")


def _metrics(config: Config) -> Iterator[Mistake]:
    metrics = config.agent.metrics
    if not metrics.names:
        known = ", ".join(METRIC_NAMES)
        yield Mistake("agent.metrics.names", f"the list is empty; name one or more of {known}")
    if (metrics.tls_certificate is None) != (metrics.tls_key is None):
        missing = "tlsKey" if metrics.tls_key is None else "tlsCertificate"
        yield Mistake("agent.metrics", f"{missing} is missing: TLS needs tlsCertificate and tlsKey")


def _isolation_classes(config: Config) -> Iterator[Mistake]:
    isolation = config.agent.isolation
    resctrl = isolation.resctrl
    for path, name, key, classes in (
        ("power", isolation.power, "powerClasses", isolation.power_classes),
        ("resctrl.defaultClass", resctrl.default_class, "classes", resctrl.classes),
    ):
        if name and name not in classes:
            message = f"{shown(name)} is not among {key}{guess(name, classes)}"
            yield Mistake(f"agent.isolation.{path}", message)
    for name, power in isolation.power_classes.items():
        # Drivers reject any other (Documentation/admin-guide/pm/intel_pstate.rst).
        if power.governor == _PERFORMANCE and power.energy_preference not in ("", _PERFORMANCE):
            message = f"the governor {_PERFORMANCE} takes the preference {_PERFORMANCE} alone"
            yield Mistake(f"agent.isolation.powerClasses.{name}.energyPreference", message)


def _providers(config: Config) -> Iterator[Mistake]:
    """Find each resource with two providers; the one that comes later here has the mistake."""
    agent = config.agent
    registered = agent.kubelet.registered_resource
    providers: tuple[tuple[str, Collection[str]], ...] = (
        ("agent.devices", agent.devices),
        ("agent.ignoredResources", agent.ignored_resources),
        ("agent.hostDevices", dict.fromkeys(one.resource for one in agent.host_devices)),
        ("agent.kubelet.exclusiveResource", (registered,) if registered else ()),
    )
    for number, (key, resources) in enumerate(providers):
        for resource in resources:
            for other, others in providers[:number]:
                if resource in others:
                    yield Mistake(
                        join(key, resource) if key == "agent.hostDevices" else key,
                        f"{resource} is in {other}, too, and a resource has one provider; remove "
                        "it from one of the two",
                    )


def _beside_kubelet(config: Config) -> Iterator[Mistake]:
    """Find what the kubelet does where the agent works beside one."""
    agent, kubelet = config.agent, config.agent.kubelet
    if not config.beside_kubelet:
        return
    beside = "beside a kubelet (agent.kubelet.enabled)"
    if config.static_pod_path is not None:
        yield Mistake(
            "staticPodPath", f'{beside} its own static pods are admitted; set staticPodPath to ""'
        )
    if agent.device_plugins.enabled:
        yield Mistake(
            "agent.devicePlugins.enabled",
            f"{beside} device plugins register with the kubelet; set it to false",
        )
    socket = agent.pod_resources.socket
    if socket == kubelet.directory / "pod-resources" / "kubelet.sock":
        yield Mistake(
            "agent.podResources.socket",
            f"{socket} is the socket of the kubelet beside the agent; name another path, such as "
            "/run/numawarden/pod-resources/kubelet.sock, and have clients use that",
        )


def _extra(config: Config) -> Iterator[Mistake]:
    """Find each key that asks for the extra `grpc` where packages of it are missing."""
    agent = config.agent
    missing = [package for module, package in _GRPC.items() if not _is_importable(module)]
    for key, what, is_asked in (
        ("agent.podResources.socket", "podresources needs", agent.pod_resources.socket is not None),
        ("agent.devicePlugins.enabled", "device plugins need", agent.device_plugins.enabled),
        ("agent.kubelet.enabled", "the kubelet's pods need", agent.kubelet.enabled),
    ):
        if is_asked and missing:
            packages = " and ".join(missing)
            yield Mistake(key, f"{what} {packages}, not installed here; {INSTALL_GRPC}")


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that has the module
        return False


_Check: TypeAlias = "Callable[[Config], Iterable[Mistake]]"
#: Each check with the keys of the file on which it depends.
_CHECKS: Final[tuple[tuple[tuple[str, ...], _Check], ...]] = (
    (("featureGates", "kubernetesVersion"), _gates),
    ((_CPU_OPTIONS, "featureGates", "kubernetesVersion"), _cpu_options),
    ((_CPU_OPTIONS, "topologyManagerPolicy"), _alignment_by_socket),
    ((_TOPOLOGY_OPTIONS,), _topology_options),
    (("cpuManagerPolicy", _CPU_OPTIONS), _options_without_policy),
    (("cpuManagerPolicy", "reservedSystemCPUs", "systemReserved", "kubeReserved"), _reserved_cpus),
    (("memoryReservationPolicy", "featureGates", "kubernetesVersion"), _memory_qos),
    (("enforceNodeAllocatable",), _node_allocatable),
    (("agent",), _metrics),
    (("agent",), _isolation_classes),
    (("agent",), _providers),
    (("agent", "staticPodPath"), _beside_kubelet),
    (("agent",), _extra),
)

"""The configuration file: read to a `Config`, settings on the command line over it, and written.

The same reader serves both: it lays a document over a base. For a file the base is the defaults and
a mapping replaces the base's (as for the kubelet); for single settings the base is the
configuration so far and a mapping is added to the base's.

What contradicts itself whatever the host is found here; what does not fit a host is found by
`agent.config.resolve`.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, TypeAlias

import yaml
from msgspec.structs import replace

from agent.config import keys
from agent.config.kinds import MEMORY_AVAILABLE, KeyReader, nullable
from agent.config.model import (
    ALIGN_BY_SOCKET,
    MAX_NODES,
    MEMORY_QOS,
    METRIC_NAMES,
    Config,
    ConfigError,
    MemoryReservationPolicy,
    NodeAllocatable,
    cpu_option_problems,
    gate_notes,
    gate_problems,
    host_problems,
    topology_option_problems,
)
from agent.files import read_bounded
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.yaml import (
    DEFAULT_MAX_BYTES,
    Field,
    MappingNode,
    Mistake,
    Node,
    Plain,
    ScalarNode,
    UnreadableError,
    guess,
    join,
    places,
    read_document,
    resolve,
    shown,
)
from cgroupfs.settings import KernelController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.config.keys import Section


_OF_KUBELET: Final = (
    "this may be a kubelet's configuration: 'numawarden config import FILE' makes the agent's of it"
)


def load_config(
    text: str | bytes, source: str, settings: Sequence[str] = (), *, max_bytes: int | None = None
) -> Config:
    """Return the configuration of a YAML or JSON text, with single settings laid over it.

    `settings` are `key=value` texts as for `override`; a mistake in the file that a setting
    corrects is not reported.
    Raises `ConfigError` with every mistake.
    """
    try:
        document = read_document(text, max_bytes=max_bytes or DEFAULT_MAX_BYTES)
    except UnreadableError as error:
        raise ConfigError(source, (error.problem,)) from error
    reader = KeyReader()
    config = keys.read(reader, Field("", document), Config())
    version = Field("", document).child("apiVersion")
    if version is not None and str(version.value).startswith("kubelet.config.k8s.io"):
        for number, problem in enumerate(reader.problems):
            if problem.message.startswith("unknown key"):
                hinted = replace(problem, message=f"{problem.message}; {_OF_KUBELET}")
                reader.problems[number] = hinted
                break
    if not settings:
        return _checked(config, reader.problems, source, document)
    if reader.problems:
        raise ConfigError(source, _in_order(reader.problems))
    return _override(config, settings, f"{source} with {', '.join(settings)}")


def config_of_document(document: Node, source: str) -> Config:
    """Return the configuration of a document, or of a part of one that is laid out like it.

    Raises `ConfigError` with every mistake; paths begin at this document.
    """
    reader = KeyReader()
    config = keys.read(reader, Field("", document), Config())
    return _checked(config, reader.problems, source, document)


def load_config_file(path: Path, settings: Sequence[str] = ()) -> Config:
    """Return the configuration of a file. Raises `ConfigError` and `OSError`."""
    return load_config(read_bounded(path, DEFAULT_MAX_BYTES), str(path), settings)


def override(config: Config, settings: Sequence[str]) -> Config:
    """Return the configuration with single settings changed, later ones last.

    A setting is `key=value` or `section.key=value` with the names of the file and a YAML value:
    `cgroupDriver=cgroupfs`, `agent.metrics.port=9465`, `systemReserved.cpu=500m`. Raises
    `ConfigError` with every mistake.
    """
    return _override(config, settings, "settings")


def _override(config: Config, settings: Sequence[str], source: str) -> Config:
    document, problems = _document_of_settings(settings)
    if problems:
        raise ConfigError(source, tuple(problems))
    reader = KeyReader(merge=True)
    changed = keys.read(reader, Field("", document), config)
    # Settings stand on no line; the one within a single value would mislead.
    misread = [replace(problem, line=None) for problem in reader.problems]
    return _checked(changed, misread, source, MappingNode({}))


def _checked(config: Config, misread: Sequence[Mistake], source: str, document: Node) -> Config:
    # The first key of `agent.metrics.port`, of `reservedMemory[0].limits`.
    unread = frozenset(problem.path.replace("[", ".").partition(".")[0] for problem in misread)
    found = tuple(find_problems(config, unread))
    lines = places(document, [problem.path for problem in found])
    contradictions = (replace(problem, line=lines[problem.path]) for problem in found)
    problems = _in_order((*misread, *contradictions))
    if problems:
        raise ConfigError(source, problems)
    return config


def _in_order(problems: Iterable[Mistake]) -> tuple[Mistake, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _document_of_settings(settings: Iterable[str]) -> tuple[MappingNode, list[Mistake]]:
    """Return a document with all settings in it, and what was no setting at all."""
    root: dict[str, Node] = {}
    problems: list[Mistake] = []
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            why = "is not a setting; write key=value, such as cgroupDriver=systemd"
            problems.append(Mistake("", f"{shown(setting)} {why}"))
            continue
        try:
            _put(root, _split(path), read_document(value) if value else ScalarNode(""))
        except UnreadableError as error:
            problems.append(Mistake(path, error.problem.message))
    return MappingNode(root), problems


def _split(path: str) -> list[str]:
    """Split at the dots between known sections; names within a free mapping keep theirs."""
    parts: list[str] = []
    section: type[Section] | None = Config
    while section is not None and "." in path:
        head, _, rest = path.partition(".")
        found = next((key for key in section.keys if key.name == head), None)
        if found is None:
            break
        parts.append(head)
        section, path = found.inner, rest
    return [*parts, path]


def _put(root: dict[str, Node], parts: list[str], value: Node) -> None:
    *sections, last = parts
    entries = root
    for section in sections:
        inner = entries.get(section)
        # A fresh copy: mappings of a document are not shared with the one that is built here.
        nested = dict(inner.entries) if isinstance(inner, MappingNode) else {}
        entries[section] = MappingNode(nested)
        entries = nested
    entries[last] = value


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `agent.yaml` would not read as this text without quotes."""


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes the line breaks of YAML 1.1 (NEL, LS, PS) as they are, unless it escapes them.
    plain = resolve(text) == text and text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text_node)


def config_keys(config: Config) -> dict[str, Plain]:
    """Return every key of a configuration with its value, as plain values of JSON."""
    return keys.written(config)


def differing_keys(
    one: Mapping[str, Plain], other: Mapping[str, Plain], above: str = ""
) -> Iterator[tuple[str, Plain, Plain]]:
    """Yield the path of each key that differs between what `config_keys` returns, and both values.

    The paths begin with `above`.
    """
    for key in dict.fromkeys((*one, *other)):
        first, second = one.get(key), other.get(key)
        if isinstance(first, dict) and isinstance(second, dict):
            yield from differing_keys(first, second, f"{above}{key}.")
        elif first != second:
            yield f"{above}{key}", first, second


def config_yaml(config: Config) -> str:
    """Return a file with every key of a configuration, from which `load_config` makes an equal one.

    The values that are equal to the defaults are in it, too.
    """
    return yaml_text(config_keys(config))


def yaml_text(value: Plain, *, one_line: bool = False) -> str:
    """Return a value as YAML, its mappings in their order; on one line without a line break."""
    width = 1 << 20 if one_line else 100
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=one_line,
        width=width,
    )
    return text.removesuffix("\n").removesuffix("\n...") if one_line else text


def config_schema() -> str:
    """Return a JSON schema (draft 2020-12) of a configuration file.

    Every file that the agent accepts meets the schema. The reverse does not hold: what has to agree
    with another key or with the host is judged by `numawarden config check`.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of numawarden",
        **nullable(keys.schema(Config)),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False)


#: What to do where packages of the extra `grpc` are missing.
INSTALL_GRPC: Final = "install the extra: pip install 'numawarden[grpc]'"
_CPU_OPTIONS: Final = "cpuManagerPolicyOptions"
_TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
#: The packages of the extra `grpc` by the modules that are imported of them.
_GRPC: Final = {"grpc": "grpcio", "google.protobuf": "protobuf"}
_Check: TypeAlias = "Callable[[Config], Iterable[Mistake]]"


def find_problems(config: Config, unread: frozenset[str] = frozenset()) -> list[Mistake]:
    """Return every contradiction within a configuration, with the path of a field to change.

    `unread` are keys whose values could not be read; what depends on one of them is not judged.
    """
    return [
        problem for names, check in _CHECKS if unread.isdisjoint(names) for problem in check(config)
    ]


def _at(section: str, found: Iterable[tuple[str, str]]) -> Iterator[Mistake]:
    return (Mistake(join(section, key), message) for key, message in found)


def _cpu_problems(config: Config) -> Iterator[Mistake]:
    if config.cpu_manager_policy is not CpuManagerPolicy.STATIC:
        if config.cpu_manager_policy_options:
            yield Mistake(
                _CPU_OPTIONS,
                "options need the static policy; set cpuManagerPolicy to static or remove them",
            )
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


def _ignored_problems(config: Config) -> Iterator[Mistake]:
    for resource in config.agent.ignored_resources:
        if resource in config.agent.devices:
            yield Mistake(
                "agent.ignoredResources",
                f"{resource} has devices in agent.devices, so the agent provides it; remove it "
                "from one of the two",
            )


_PERFORMANCE: Final = "performance"


def _isolation_problems(config: Config) -> Iterator[Mistake]:
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
        # Drivers reject another (Documentation/admin-guide/pm/intel_pstate.rst).
        if power.governor == _PERFORMANCE and power.energy_preference not in ("", _PERFORMANCE):
            message = f"the governor {_PERFORMANCE} takes the preference {_PERFORMANCE} alone"
            yield Mistake(f"agent.isolation.powerClasses.{name}.energyPreference", message)


def _kubelet_problems(config: Config) -> Iterator[Mistake]:
    """Yield what the kubelet does where the agent works beside one."""
    if not config.agent.kubelet.enabled:
        return
    agent = config.agent
    for path, given, why in (
        (
            "staticPodPath",
            config.static_pod_path is not None,
            'its own static pods are admitted; set staticPodPath to ""',
        ),
        (
            "agent.devicePlugins.enabled",
            agent.device_plugins.enabled,
            "device plugins register with the kubelet; set it to false",
        ),
    ):
        if given:
            yield Mistake(path, f"beside a kubelet (agent.kubelet.enabled) {why}")


def _host_device_problems(config: Config) -> Iterator[Mistake]:
    """Yield each resource of the host's devices that has another provider as well."""
    agent = config.agent
    for resource in dict.fromkeys(each.resource for each in agent.host_devices):
        for key, others in (
            ("agent.devices", agent.devices),
            ("agent.ignoredResources", agent.ignored_resources),
        ):
            if resource in others:
                yield Mistake(
                    join("agent.hostDevices", resource),
                    f"{resource} is in {key}, too, and a resource has one provider; remove it from "
                    "one of the two",
                )


def _exclusive_resource_problems(config: Config) -> Iterator[Mistake]:
    """Yield each other key that has the resource with which pods opt in."""
    agent = config.agent
    resource = agent.kubelet.exclusive_resource
    if not (agent.kubelet.enabled and resource):
        return
    for key, others in (
        ("agent.devices", agent.devices),
        ("agent.hostDevices", [each.resource for each in agent.host_devices]),
        ("agent.ignoredResources", agent.ignored_resources),
    ):
        if resource in others:
            yield Mistake(
                "agent.kubelet.exclusiveResource",
                f"{resource} is in {key}, too, and pods only opt in with it; remove it from there",
            )


def _metrics_problems(config: Config) -> Iterator[Mistake]:
    metrics = config.agent.metrics
    if not metrics.names:
        known = ", ".join(METRIC_NAMES)
        yield Mistake("agent.metrics.names", f"the list is empty; name one or more of {known}")
    if (metrics.tls_certificate is None) != (metrics.tls_key is None):
        missing = "tlsKey" if metrics.tls_key is None else "tlsCertificate"
        yield Mistake("agent.metrics", f"{missing} is missing: TLS needs tlsCertificate and tlsKey")


def _extra_problems(config: Config) -> Iterator[Mistake]:
    """Yield each key that asks for the extra `grpc` where packages of it are missing."""
    agent = config.agent
    missing = [package for name, package in _GRPC.items() if not _is_importable(name)]
    for key, what, asked in (
        ("agent.podResources.socket", "podresources needs", agent.pod_resources.socket is not None),
        ("agent.devicePlugins.enabled", "device plugins need", agent.device_plugins.enabled),
        ("agent.kubelet.enabled", "the kubelet's pods need", agent.kubelet.enabled),
    ):
        if asked and missing:
            yield Mistake(
                key,
                f"{what} {' and '.join(missing)}, not installed here; {INSTALL_GRPC}",
            )


def _memory_qos_problems(config: Config) -> Iterator[Mistake]:
    """Yield that memory is to be reserved by a feature that is off; the kubelet rejects it, too."""
    tiered = config.memory_reservation_policy is MemoryReservationPolicy.TIERED
    if tiered and not config.memory_qos:
        yield Mistake(
            "memoryReservationPolicy",
            f"TieredReservation needs the feature gate {MEMORY_QOS}, which is off; switch it on, "
            "or set None",
        )


def _allocatable_problems(config: Config) -> Iterator[Mistake]:
    items = config.enforce_node_allocatable
    if NodeAllocatable.NONE in items and len(items) > 1:
        yield Mistake("enforceNodeAllocatable", "none stands alone; remove it, or all others")


def _socket_problems(config: Config) -> Iterator[Mistake]:
    """Yield that the agent would take the place of the kubelet's podresources."""
    own, kubelet = config.agent.pod_resources.socket, config.agent.kubelet
    if kubelet.enabled and own == kubelet.directory / "pod-resources" / "kubelet.sock":
        yield Mistake(
            "agent.podResources.socket",
            f"{own} is the socket of the kubelet beside the agent; name another path, such as "
            "/run/numawarden/pod-resources/kubelet.sock, and have clients use that",
        )


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above
        return False


#: Each check with the keys that it goes by.
_CHECKS: Final[tuple[tuple[tuple[str, ...], _Check], ...]] = (
    (
        ("featureGates", "kubernetesVersion"),
        lambda config: _at("featureGates", gate_problems(config.feature_gates, config.version)),
    ),
    (
        (_CPU_OPTIONS, "featureGates", "kubernetesVersion"),
        lambda config: _at(
            _CPU_OPTIONS, cpu_option_problems(config.cpu_manager_policy_options, config.gates)
        ),
    ),
    (
        (_CPU_OPTIONS, "topologyManagerPolicy"),
        lambda config: _at(
            _CPU_OPTIONS, host_problems(config.cpu_options, config.topology_manager_policy, 0, 0)
        ),
    ),
    (
        (_TOPOLOGY_OPTIONS,),
        lambda config: _at(
            _TOPOLOGY_OPTIONS, topology_option_problems(config.topology_manager_policy_options)
        ),
    ),
    (
        ("cpuManagerPolicy", _CPU_OPTIONS, "reservedSystemCPUs", "systemReserved", "kubeReserved"),
        _cpu_problems,
    ),
    (("memoryReservationPolicy", "featureGates"), _memory_qos_problems),
    (("enforceNodeAllocatable",), _allocatable_problems),
    (("agent",), _metrics_problems),
    (("agent",), _isolation_problems),
    (("agent",), _ignored_problems),
    (("agent",), _host_device_problems),
    (("agent", "staticPodPath"), _kubelet_problems),
    (("agent",), _exclusive_resource_problems),
    (("agent",), _extra_problems),
    (("agent",), _socket_problems),
)


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
    options = config.topology_manager_policy_options
    if MAX_NODES in options:
        yield f"{MAX_NODES} is not needed: the number of NUMA nodes is not limited"
    if options and config.topology_manager_policy is TopologyManagerPolicy.NONE:
        yield "topologyManagerPolicyOptions change nothing with topologyManagerPolicy none"
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

"""A configuration of the agent from the kubelet's own (`KubeletConfiguration`, v1beta1).

The keys that both have mean the same, so their values are taken as they are. Every other key is
listed with why the agent has no use for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.config import keys
from agent.config.document import yaml_text
from agent.config.gates import GATES, LOCKED_ON, OWN_GATES
from agent.config.kinds import KeyReader
from agent.config.load import config_of_document
from agent.config.model import VERSION_KEY, Config, ConfigError
from agent.managers.versions import before
from agent.pods.model import CPU
from agent.yaml import (
    DEFAULT_MAX_BYTES,
    Field,
    MappingNode,
    Mistake,
    Node,
    Number,
    ScalarNode,
    UnreadableError,
    read_document,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.versions import Rule


_KIND: Final = "KubeletConfiguration"
_GATES: Final = "featureGates"
_LIST: Final = "reservedSystemCPUs"
_AMOUNTS: Final = ("systemReserved", "kubeReserved")
#: Keys of the agent's configuration that are not the kubelet's, or say what the document is.
_OWN: Final = frozenset({"apiVersion", "kind", "agent", VERSION_KEY})
#: The keys that both have.
SHARED: Final = tuple(name for name in (key.name for key in Config.keys) if name not in _OWN)
_ZEROS: Final = frozenset({"", "0s"})

_CLUSTER: Final = "the agent registers no node and gives pods no network"
_SERVER: Final = "the agent has no kubelet server; see agent.metrics and agent.socketPath"
_RUNTIME: Final = "the agent starts no containers and pulls no images"
_EVICTION: Final = "the agent evicts no pods; of thresholds only evictionHard counts"
_SYSTEM: Final = "the agent limits pods only, not the cgroups of the system"
_VOLUMES: Final = "the agent mounts no volumes"
_HOST: Final = "the agent sets nothing of the host but cgroups of pods"

#: Why keys of the kubelet are not taken, by reason.
_REASONS: Final[Mapping[str, str]] = {
    _CLUSTER: "authentication authorization clusterDNS clusterDomain rotateCertificates "
    "serverTLSBootstrap nodeStatusUpdateFrequency nodeStatusReportFrequency nodeStatusMaxImages "
    "nodeLeaseDurationSeconds providerID registerNode registerWithTaints kubeAPIQPS kubeAPIBurst "
    "eventRecordQPS eventBurst configMapAndSecretChangeDetectionStrategy podCIDR resolvConf "
    "hairpinMode enableControllerAttachDetach",
    _SERVER: "address port readOnlyPort tlsCertFile tlsPrivateKeyFile tlsCipherSuites "
    "tlsMinVersion tlsCurvePreferences healthzPort healthzBindAddress enableServer "
    "enableDebuggingHandlers enableContentionProfiling enableProfilingHandler "
    "enableDebugFlagsHandler enableSystemLogHandler enableSystemLogQuery "
    "showHiddenMetricsForVersion streamingConnectionIdleTimeout tracing staticPodURL "
    "staticPodURLHeader podLogsDir",
    _RUNTIME: "containerRuntimeEndpoint imageServiceEndpoint imageMinimumGCAge imageMaximumGCAge "
    "imageGCHighThresholdPercent imageGCLowThresholdPercent containerLogMaxSize "
    "containerLogMaxFiles containerLogMaxWorkers containerLogMonitorInterval "
    "serializeImagePulls maxParallelImagePulls registryPullQPS registryBurst "
    "imagePullCredentialsVerificationPolicy preloadedImagesVerificationAllowlist seccompDefault "
    "allowedUnsafeSysctls runtimeRequestTimeout crashLoopBackOff userNamespaces "
    "maxContainerRestartPeriod syncFrequency fileCheckFrequency httpCheckFrequency "
    "shutdownGracePeriod shutdownGracePeriodCriticalPods shutdownGracePeriodByPodPriority",
    _EVICTION: "evictionSoft evictionSoftGracePeriod evictionPressureTransitionPeriod "
    "evictionMaxPodGracePeriod evictionMinimumReclaim mergeDefaultEvictionSettings "
    "localStorageCapacityIsolation",
    _SYSTEM: "systemReservedCgroup kubeReservedCgroup systemCgroups kubeletCgroups qosReserved",
    _VOLUMES: "volumePluginDir volumeStatsAggPeriod",
    _HOST: "protectKernelDefaults makeIPTablesUtilChains iptablesMasqueradeBit iptablesDropBit "
    "oomScoreAdj maxOpenFiles failSwapOn failCgroupV1 registerWindowsService podPidsLimit "
    "singleProcessOOMKill",
    "the agent always makes a cgroup for each QoS class": "cgroupsPerQOS",
    "the agent leaves kubepods/system alone, which stays the kubelet's (KEP-5894)": (
        "systemPartition"
    ),
    "the agent leaves swap as it is": "memorySwap",
    "the agent's log is configured by agent.logging": "logging",
}
_WHY: Final = {name: reason for reason, names in _REASONS.items() for name in names.split()}


class LeftKey(Struct, frozen=True):
    """A key that was not taken, as in the file (`featureGates.X` for an entry), and why."""

    name: str
    why: str


class ImportedConfig(Struct, frozen=True):
    """The configuration, the keys that it has of the kubelet's, and those that it has not."""

    config: Config
    taken: tuple[str, ...]
    left: tuple[LeftKey, ...]

    def yaml(self) -> str:
        """Return a configuration file with the keys that were taken, and a comment on the rest."""
        written = keys.written(self.config)
        values = {name: written[name] for name in self.taken}
        lines = ["# Imported from a kubelet's configuration.", "apiVersion: numawarden/v1"]
        lines += ["kind: NumawardenConfiguration"]
        lines += [yaml_text(values).rstrip()] if values else []
        lines += ["", "# Not taken:"] if self.left else []
        lines += [f"#   {each.name}: {each.why}" for each in self.left]
        return "\n".join((*lines, ""))


def import_kubelet_config(text: bytes, source: str) -> ImportedConfig:
    """Return the agent's configuration of a kubelet's.

    What stands for the kubelet's default ("", 0, null) is left to the agent's, which is the same.
    A list of reserved CPUs counts for the amounts beside it, which are left out.
    Raises `ConfigError` for what is not a kubelet's configuration, and for one that contradicts
    itself (the kubelet would not start with it either).
    """
    try:
        document = read_document(text, max_bytes=DEFAULT_MAX_BYTES)
    except UnreadableError as error:
        raise ConfigError(source, (error.problem,)) from error
    if not isinstance(document, MappingNode):
        raise ConfigError(source, (Mistake("", f"expected a {_KIND}, found no mapping"),))
    kind = document.entries.get("kind")
    found = kind.value if isinstance(kind, ScalarNode) else None
    if found != _KIND:
        named = shown(found) if isinstance(found, str) else "none"
        raise ConfigError(source, (Mistake("kind", f"expected {_KIND}, found {named}"),))
    left: list[LeftKey] = []
    entries: dict[str, Node] = {}
    for name, node in document.entries.items():
        if name in SHARED:
            kept = _readable(name, node, left)
            if kept is not None:
                entries[name] = kept
        elif name not in _OWN:
            why = _WHY.get(name, "not a key of KubeletConfiguration v1beta1 (Kubernetes v1.36)")
            left.append(LeftKey(name, why))
    if _LIST in entries:
        _drop_amounts(entries, left)
    taken = tuple(entries)
    locked = _locked_later(entries.get(_GATES))
    if locked is not None:
        entries[VERSION_KEY] = ScalarNode(before(locked).value)
    return ImportedConfig(config_of_document(MappingNode(entries), source), taken, tuple(left))


def _drop_amounts(entries: dict[str, Node], left: list[LeftKey]) -> None:
    """Leave out amounts of CPUs beside a list (cmd/kubelet/app/server.go, `ReservedSystemCPUs`)."""
    for name in _AMOUNTS:
        node = entries.get(name)
        if isinstance(node, MappingNode) and CPU in node.entries:
            rest = {entry: value for entry, value in node.entries.items() if entry != CPU}
            entries[name] = MappingNode(rest, node.line)
            left.append(LeftKey(f"{name}.{CPU}", f"{_LIST} counts instead, as in the kubelet"))


def _locked_later(gates: Node | None) -> Rule | None:
    """Return the rule that locks a gate which is off: kubelets that have it do not start so."""
    given = gates.entries if isinstance(gates, MappingNode) else {}
    off = {name for name, node in given.items() if isinstance(node, ScalarNode) and not node.value}
    rules = (GATES[name].is_locked for name in sorted(off & GATES.keys()))
    return next((rule for rule in rules if rule is not None), None)


def _readable(name: str, node: Node, left: list[LeftKey]) -> Node | None:
    """Return what of a value the agent reads, None for nothing; adds what is left out."""
    if _is_zero(node):
        left.append(LeftKey(name, "stands for the default, which is the agent's as well"))
        return None
    if isinstance(node, MappingNode):
        return _entries(name, node, left)
    mistakes = _mistakes(name, node)
    if mistakes:
        left.append(LeftKey(name, "; ".join(mistakes)))
        return None
    return node


def _entries(name: str, node: MappingNode, left: list[LeftKey]) -> Node | None:
    """Return a mapping with the entries that the agent reads; None where there were others only."""
    kept: dict[str, Node] = {}
    for entry, value in node.entries.items():
        why = _gate(entry) if name == _GATES else ""
        why = why or "; ".join(_mistakes(name, MappingNode({entry: value})))
        if why:
            left.append(LeftKey(f"{name}.{entry}", why))
        else:
            kept[entry] = value
    return MappingNode(kept, node.line) if kept or not node.entries else None


def _gate(name: str) -> str:
    """Return why a feature gate is left out, "" for one that changes a decision of the agent."""
    if name in LOCKED_ON:
        return "the feature has graduated and is always on"
    return "" if name in OWN_GATES else "no decision of the agent depends on this gate"


def _mistakes(name: str, node: Node) -> tuple[str, ...]:
    reader = KeyReader()
    keys.read(reader, Field("", MappingNode({name: node})), Config())
    return tuple(problem.message for problem in reader.problems)


def _is_zero(node: Node) -> bool:
    """Return whether a value is Go's zero value, in place of which the kubelet uses its default."""
    if not isinstance(node, ScalarNode):
        return False
    value = node.value
    return value is None or value in _ZEROS or (isinstance(value, Number) and value.text == "0")


def left_lines(left: tuple[LeftKey, ...]) -> Iterator[str]:
    """Yield a line for each key that was not taken."""
    for each in left:
        yield f"not taken: {each.name}: {each.why}"

"""The configuration: every key with its type, default, bounds and explanation, declared once.

Keys outside of `agent` have the names, values and defaults of the kubelet (KubeletConfiguration,
kubelet.config.k8s.io/v1beta1), so that settings can be carried over. The reference, the commented
example and the JSON schema follow from the declarations, as does everything that reads a file.
What depends on the host is decided by `agent.config.resolve`. Durations are seconds.

Stages and defaults of feature gates are those of the version of Kubernetes that a configuration
names. Sources of the policy options: KEP-2625 (CPU manager), KEP-3545 (topology manager), KEP-4540
(strict-cpu-reservation), KEP-4800 (uncore cache).
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.config.devices import DEVICE_INVENTORY, HOST_DEVICES, HostDeviceClass
from agent.config.isolation import IsolationConfig
from agent.config.keys import Section, key, section, switch
from agent.config.kinds import (
    CGROUP,
    CPU_LIST,
    EVICTION_THRESHOLDS,
    FRACTION,
    HTTPS_ADDRESS,
    IGNORED_RESOURCES,
    IP_ADDRESS,
    MEMORY_AVAILABLE,
    NODE_NAME,
    OPTIONAL_PATH,
    OPTIONAL_RESOURCE,
    OPTIONAL_SOCKET,
    PATH,
    RESERVED_AMOUNTS,
    RESERVED_MEMORY,
    SERVER_URL,
    SOCKET,
    SOCKET_DIRECTORY,
    USER_GROUP,
    MemoryReservation,
    Threshold,
    any_version_of,
    byte_size,
    gate_switches,
    marker,
    one_of,
    one_of_any_case,
    option_texts,
    period,
    some_of,
    version_of,
    whole_number,
)
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicyOptions,
    FeatureGates,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.managers.versions import (
    NEWEST,
    OLDEST,
    KubernetesVersion,
    before,
    since,
    steps,
)
from agent.pods.model import CPU
from agent.pods.quantity import ZERO, Quantity
from agent.yaml import DocumentError, guesses, shown
from cgroupfs.settings import KernelController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.managers.policy import PluginDevice
    from agent.managers.versions import Rule, VersionRules
    from sysfs.mask import Mask


class GateStage(StrEnum):
    """How mature a feature is; AllAlpha and AllBeta switch whole stages."""

    ALPHA = "alpha"
    BETA = "beta"
    DEPRECATED = "deprecated"


class Gate(Struct, frozen=True):
    """A gate that changes a decision."""

    #: Its field in `FeatureGates`, which has the default.
    field: str
    #: The stage in which it came.
    stage: GateStage
    meaning: str
    #: Whether a version has it; None: all that are known do.
    came: Rule | None = None
    #: Whether it is beta, where it came as alpha.
    is_beta: Rule | None = None
    #: Whether it is on and cannot be switched off.
    is_locked: Rule | None = None

    def is_in(self, version: KubernetesVersion) -> bool:
        """Return whether a version of Kubernetes has the gate."""
        return self.came is None or bool(self.came(version.rules))

    def stage_in(self, version: KubernetesVersion) -> GateStage:
        """Return how mature the feature is in a version of Kubernetes."""
        grown = self.is_beta is not None and self.is_beta(version.rules)
        return GateStage.BETA if grown else self.stage

    def is_on(self, gates: FeatureGates) -> bool:
        """Return whether the gate is on."""
        return getattr(gates, self.field) is True


#: The key that says whose rules hold, and the subject of conditions about it.
VERSION_KEY: Final = "kubernetesVersion"
POD_LEVEL_RESOURCES: Final = "PodLevelResources"
POD_LEVEL_RESOURCE_MANAGERS: Final = "PodLevelResourceManagers"
FIX_DEFAULTING: Final = "PodLevelResourcesFixDefaulting"
#: Here an empty `spec.resources` is as none, whatever the gate.
FIX_QOS_CLASS: Final = "PodLevelResourcesFixKubeletQOSClass"
ALPHA_OPTIONS: Final = "CPUManagerPolicyAlphaOptions"
BETA_OPTIONS: Final = "CPUManagerPolicyBetaOptions"

GATES: Final[Mapping[str, Gate]] = {
    POD_LEVEL_RESOURCES: Gate("pod_level_resources", GateStage.BETA, "spec.resources of pods"),
    POD_LEVEL_RESOURCE_MANAGERS: Gate(
        "pod_level_resource_managers",
        GateStage.ALPHA,
        "exclusive parts of them (KEP-5526)",
        is_beta=lambda rules: rules.pod_level_managers_are_beta,
    ),
    FIX_DEFAULTING: Gate(
        "pod_level_resources_fix_defaulting",
        GateStage.BETA,
        "limits of spec.resources follow from those of all containers",
        came=lambda rules: rules.pod_limits_follow_containers,
    ),
    "DisableCPUQuotaWithExclusiveCPUs": Gate(
        "disable_cpu_quota_with_exclusive_cpus",
        GateStage.DEPRECATED,
        "no CPU quota on exclusive CPUs; cannot be switched off from "
        f"{since(lambda rules: rules.exclusive_cpus_never_have_quotas)} on",
        is_locked=lambda rules: rules.exclusive_cpus_never_have_quotas,
    ),
    ALPHA_OPTIONS: Gate(
        "cpu_manager_policy_alpha_options", GateStage.ALPHA, "see cpuManagerPolicyOptions"
    ),
    BETA_OPTIONS: Gate(
        "cpu_manager_policy_beta_options", GateStage.BETA, "see cpuManagerPolicyOptions"
    ),
}

_WHOLE_STAGES: Final = {"AllAlpha": GateStage.ALPHA, "AllBeta": GateStage.BETA}

#: Features that graduated: they are on and stay on.
LOCKED_ON: Final = frozenset(
    {
        "CPUManager",
        "CPUManagerPolicyOptions",
        "DevicePluginCDIDevices",
        "MemoryManager",
        "SidecarContainers",
        "TopologyManager",
        "TopologyManagerPolicyOptions",
    }
)


def _memory_qos_is_beta(rules: VersionRules) -> bool:
    return rules.memory_qos_is_beta


def _slows_none(rules: VersionRules) -> bool:
    return rules.memory_throttling_factor is None


#: A gate that changes no decision, but what is written into cgroups.
MEMORY_QOS: Final = "MemoryQoS"

#: Every gate that changes anything here.
OWN_GATES: Final = (*GATES, MEMORY_QOS, *_WHOLE_STAGES)
#: How alike a name has to be to be taken for a mistyped one of these: a letter too much or too few
#: leaves 0.93 of the shortest, and TopologyManagerPolicyAlphaOptions, not ours, is 0.85 like one.
_MISTYPED: Final = 0.9


def gate_meanings() -> dict[str, str]:
    """Return what each gate that changes a decision does, with its default."""
    default = FeatureGates()
    came = {
        name: "" if gate.came is None else f" (from {since(gate.came)} on)"
        for name, gate in GATES.items()
    }
    return {
        name: f"{gate.meaning}{came[name]}; default: {str(gate.is_on(default)).lower()}"
        for name, gate in GATES.items()
    } | {
        MEMORY_QOS: "memoryReservationPolicy and memoryThrottlingFactor; default: true, and false "
        f"with kubernetesVersion {before(_memory_qos_is_beta)}",
        **{
            whole: f"switches the gates of stage {stage} that are not named"
            for whole, stage in _WHOLE_STAGES.items()
        },
    }


def gates_of(gates: Mapping[str, bool], version: KubernetesVersion = NEWEST) -> FeatureGates:
    """Return the gates that change a decision; one that is named wins over its whole stage.

    A gate that came with a later version is off.
    """
    values: dict[str, bool] = {}
    for name, gate in GATES.items():
        if not gate.is_in(version):
            values[gate.field] = False
            continue
        for whole, stage in _WHOLE_STAGES.items():
            if gate.stage_in(version) is stage and whole in gates:
                values[gate.field] = gates[whole]
        if name in gates:
            values[gate.field] = gates[name]
    return FeatureGates(**values)


def gate_problems(
    gates: Mapping[str, bool], version: KubernetesVersion = NEWEST
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the gates that were set, as (gate, message).

    Any other gate than ours is accepted: `gate_notes` says that it changes nothing.
    """
    for name, enabled in gates.items():
        gate = GATES.get(name)
        if gate is not None and gate.came is not None and not gate.is_in(version):
            came = f"it came with Kubernetes {since(gate.came)}"
            yield name, f"{came}, and kubernetesVersion is {version}; remove one of the two"
            continue
        locked = None if gate is None else gate.is_locked
        if locked is not None and locked(version.rules) and not enabled:
            why = f"it cannot be switched off from Kubernetes {since(locked)} on; remove it"
            yield name, f"{why}, or write kubernetesVersion: {before(locked)}"
        if name in LOCKED_ON and not enabled:
            yield name, "this feature has graduated and cannot be switched off; remove it"
    resolved = gates_of(gates, version)
    if resolved.pod_level_resources:
        return
    # The defaults of the others change nothing then: they need not be switched off as well.
    for name, on in (
        (POD_LEVEL_RESOURCE_MANAGERS, resolved.pod_level_resource_managers),
        (FIX_DEFAULTING, gates.get(FIX_DEFAULTING, False)),
        (FIX_QOS_CLASS, gates.get(FIX_QOS_CLASS, False)),
    ):
        if on:
            needs = f"it needs {POD_LEVEL_RESOURCES}, which is off"
            yield name, f"{needs}; switch both on, or this one off"


def gate_notes(gates: Mapping[str, bool]) -> Iterator[str]:
    """Yield a line for each gate that changes nothing here, with the one of ours that it is like.

    Which gates Kubernetes has is not known here: it differs by version.
    """
    guess = guesses(_MISTYPED)
    for name in gates:
        if name not in OWN_GATES:
            near = "" if name in LOCKED_ON else guess(name, OWN_GATES)
            yield f"featureGates.{name} changes nothing here{near}"


FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
DISTRIBUTE_ACROSS_CORES: Final = "distribute-cpus-across-cores"
ALIGN_BY_SOCKET: Final = "align-by-socket"
STRICT_RESERVATION: Final = "strict-cpu-reservation"
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
    """An option of the policy of the CPU manager or of the topology manager."""

    meaning: str
    #: The feature gate that it needs.
    gate: str = ""
    #: Other options that cannot be on beside this one.
    excludes: tuple[str, ...] = ()
    #: Say what is wrong with a value; None where nothing is.
    fault: Callable[[str], str | None] = _boolean_fault


CPU_OPTIONS: Final[Mapping[str, PolicyOption]] = {
    FULL_PCPUS_ONLY: PolicyOption(
        "only whole physical cores; reject what would split one",
        excludes=(DISTRIBUTE_ACROSS_CORES,),
    ),
    DISTRIBUTE_ACROSS_NUMA: PolicyOption(
        "spread evenly when more than one NUMA node is needed",
        gate=BETA_OPTIONS,
        excludes=(DISTRIBUTE_ACROSS_CORES,),
    ),
    STRICT_RESERVATION: PolicyOption("keep shared containers off the reserved CPUs as well"),
    ALIGN_BY_UNCORE: PolicyOption(
        "keep a container within one last level cache where possible",
        excludes=(DISTRIBUTE_ACROSS_CORES, DISTRIBUTE_ACROSS_NUMA),
    ),
    ALIGN_BY_SOCKET: PolicyOption(
        "align to sockets, and keep to one where one has room; without a topologyManagerPolicy "
        f"CPUs only (gate {ALPHA_OPTIONS})",
        gate=ALPHA_OPTIONS,
    ),
    DISTRIBUTE_ACROSS_CORES: PolicyOption(
        f"spread over cores (gate {ALPHA_OPTIONS})", gate=ALPHA_OPTIONS
    ),
}
TOPOLOGY_OPTIONS: Final[Mapping[str, PolicyOption]] = {
    PREFER_CLOSEST: PolicyOption("among equals choose nodes that are near each other"),
    MAX_NODES: PolicyOption(
        f"accepted ({MIN_MAX_NODES} or more) and not needed; the number of nodes has no limit",
        fault=_max_nodes_fault,
    ),
}


def cpu_option_problems(
    options: Mapping[str, str], gates: FeatureGates
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with `cpuManagerPolicyOptions`, as (option, message)."""
    return _option_problems("CPU", CPU_OPTIONS, options, gates)


def topology_option_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with `topologyManagerPolicyOptions`, as (option, message)."""
    return _option_problems("topology", TOPOLOGY_OPTIONS, options, FeatureGates())


def _option_problems(
    manager: str,
    known: Mapping[str, PolicyOption],
    options: Mapping[str, str],
    gates: FeatureGates,
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


def cpu_options(options: Mapping[str, str]) -> CpuPolicyOptions:
    """Return valid options as values."""
    return CpuPolicyOptions(**{_field(name): _is_on(options, name) for name in CPU_OPTIONS})


def option_is_on(options: CpuPolicyOptions, name: str) -> bool:
    """Return whether an option of the CPU manager is on."""
    return getattr(options, _field(name)) is True


def _field(name: str) -> str:
    return name.replace("-", "_")


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


DEFAULT_MAX_PODS: Final = 110
_MAX_INT32: Final = (1 << 31) - 1
_MIB: Final = 1 << 20


class CgroupDriver(StrEnum):
    """`cgroupDriver`: who makes the cgroups of pods."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class LogFormat(StrEnum):
    """`agent.logging.format`."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """`agent.logging.level`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


#: The kubelets whose names metrics can have that were renamed.
METRIC_NAMES: Final = steps(lambda rules: rules.manager_metrics_name_kubelet)
#: The kubelets whose answers those of podresources can be.
POD_RESOURCES: Final = steps(lambda rules: rules.budgets_are_listed_at_pods)


class MemoryReservationPolicy(StrEnum):
    """`memoryReservationPolicy`."""

    NONE = "None"
    TIERED = "TieredReservation"


class NodeAllocatable(StrEnum):
    """An item of `enforceNodeAllocatable`."""

    PODS = "pods"
    NONE = "none"
    SYSTEM_RESERVED = "system-reserved"
    KUBE_RESERVED = "kube-reserved"
    SYSTEM_RESERVED_COMPRESSIBLE = "system-reserved-compressible"
    KUBE_RESERVED_COMPRESSIBLE = "kube-reserved-compressible"


class OnReject(StrEnum):
    """What becomes of a pod that the kubelet admitted and the agent rejects."""

    FAIL = "fail"
    SHARE = "share"


class MetricsConfig(Section, frozen=True):
    """`agent.metrics`; with both files set the listener speaks TLS."""

    address: str = key(
        "127.0.0.1",
        IP_ADDRESS,
        "An IP address of this host; 0.0.0.0 or :: for all of them. numawarden.service lets only "
        "this host in, and whom IPAddressAllow= of the unit names.",
    )
    port: int = key(9464, whole_number(0, 65535), "The TCP port of the metrics listener.")
    tls_certificate: Path | None = key(
        None, OPTIONAL_PATH, "A file in PEM form. With this and tlsKey the listener speaks TLS."
    )
    tls_key: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file in PEM form, not encrypted, of root (or the agent's user), and not readable by "
        "all users.",
    )
    containers: int = key(
        0,
        whole_number(0, 10_000),
        "How many containers have metrics of their own at most, with the names of pods; two "
        "series or more for each.",
    )
    names: frozenset[KubernetesVersion] = key(
        frozenset(METRIC_NAMES),
        some_of(METRIC_NAMES),
        f"The kubelets whose names the metrics of KEP-5526 have, which {METRIC_NAMES[-1]} renamed; "
        "with both they are exported twice.",
        values={
            version: "kubelet_resource_manager_allocations_total and the like"
            if version.rules.manager_metrics_name_kubelet
            else "resource_manager_allocations_total and the like"
            for version in METRIC_NAMES
        },
    )


class LoggingConfig(Section, frozen=True):
    """`agent.logging`."""

    format: LogFormat = key(
        LogFormat.JSON,
        one_of(LogFormat),
        "How a line of the log is written.",
        values={
            LogFormat.JSON: "an object for each line",
            LogFormat.CONSOLE: "text for a person",
        },
    )
    level: LogLevel = key(
        LogLevel.INFO, one_of(LogLevel), "What is less important than this is not logged."
    )


class PodResourcesConfig(Section, frozen=True):
    """`agent.podResources`; without a socket it is not served."""

    socket: Path | None = key(
        None,
        OPTIONAL_SOCKET,
        "The socket, such as /run/numawarden/pod-resources/kubelet.sock. It needs the extra "
        "grpc. See docs/devices.md.",
    )
    version: KubernetesVersion = key(
        OLDEST,
        version_of(POD_RESOURCES),
        "As which kubelet's the answers are.",
        values={
            version: "the pod lists the budget, the container only what is its own"
            if version.rules.budgets_are_listed_at_pods
            else "each container lists what it shares of its pod's budget"
            for version in POD_RESOURCES
        },
    )


class HistoryConfig(Section, frozen=True):
    """`agent.history`."""

    max_bytes: int = key(
        16 * _MIB,
        byte_size(0, 1 << 30),
        "The most bytes of the history in stateDirectory; 0 keeps none.",
    )
    max_age: float = key(
        720 * 3600.0,
        period(60.0, 10 * 365 * 86400.0),
        "How old an entry may be that is shown.",
    )


class LimitsConfig(Section, frozen=True):
    """`agent.limits`, in bytes."""

    manifest_bytes: int = key(_MIB, byte_size(1024, 1 << 30), "The largest manifest.")
    message_bytes: int = key(
        4 * _MIB, byte_size(1024, 1 << 30), "The largest message on the socket."
    )


#: Below the minute that all deliveries to one pod may take together.
_LONGEST_CALL: Final = 30.0


class DevicePluginsConfig(Section, frozen=True):
    """`agent.devicePlugins`."""

    enabled: bool = switch(
        "Whether device plugins can register, as with a kubelet. It needs the extra grpc. See "
        "docs/devices.md."
    )
    directory: Path = key(
        Path("/var/lib/kubelet/device-plugins"),
        SOCKET_DIRECTORY,
        "The directory of plugins' sockets, in most plugins fixed. It is not served while a "
        "kubelet serves it.",
    )
    registry_directory: Path | None = key(
        None,
        OPTIONAL_PATH,
        "The directory of the kubelet's plugin watcher (pluginregistration/v1); empty: "
        "plugins_registry beside the directory above. It need not exist.",
    )
    call_timeout: float = key(
        10.0,
        period(0.1, _LONGEST_CALL),
        "How long a plugin may take to answer: docs/devices.md.",
    )


class BesideKubeletConfig(Section, frozen=True):
    """`agent.kubelet`: how the agent works beside a kubelet."""

    enabled: bool = switch(
        "Whether the pods of this host's kubelet, whose own managers are off, are admitted. It "
        "needs the extra grpc. See docs/kubernetes.md."
    )
    ignored: bool = switch(
        "Whether the agent starts although a kubelet runs here that is not enabled. Reserve the "
        "kubelet's CPUs here, and use another cgroupRoot: it removes pods' cgroups that it "
        "does not know."
    )
    directory: Path = key(Path("/var/lib/kubelet"), PATH, "The kubelet's directory (--root-dir).")
    config_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'The kubelet\'s configuration (--config), to check that its managers are off. "" is the '
        "file that the flags of the running kubelet name, else config.yaml in its directory.",
    )
    nri_socket: Path | None = key(
        Path("/var/run/nri/nri.sock"),
        OPTIONAL_SOCKET,
        "The socket of the container runtime's NRI, over which containers get what is theirs "
        'before they start; with "" right after.',
    )
    on_reject: OnReject = key(
        OnReject.FAIL,
        one_of(OnReject),
        "What becomes of a pod that the kubelet admitted and that there are no exclusive "
        "resources for.",
        values={
            OnReject.FAIL: "its containers are not created, so that it waits until there are",
            OnReject.SHARE: "it runs in the shared pool until it ends, over restarts of the "
            "agent, too",
        },
    )
    pods_endpoint: str = key(
        "",
        HTTPS_ADDRESS,
        "The kubelet's endpoint that lists its pods, such as https://127.0.0.1:10250/pods, "
        'asked where the kubelet\'s Pods API (feature gate PodsAPI) does not answer; with "" it '
        "is not used.",
    )
    token_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file with the token for podsEndpoint, read at each request, of a service account "
        "that may get nodes/pods.",
    )
    ca_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file in PEM form with the authorities of the certificate of podsEndpoint, or that "
        'certificate itself; "" for those of the system. The certificate has to name the host.',
    )
    verify_certificate: bool = switch(
        "Whether the certificate of podsEndpoint is checked; false sends the token to whichever "
        "process listens there.",
        default=True,
    )
    exclusive_resource: str = key(
        "numawarden.dev/exclusive",
        OPTIONAL_RESOURCE,
        'The resource with which a pod opts in to be rejected by the kubelet itself; "" is '
        "none. Where the agent starts after the kubelet, as in a DaemonSet, all such pods are "
        "rejected at every boot.",
    )

    @property
    def plugin_directory(self) -> Path:
        """The directory in which the kubelet and its device plugins have their sockets."""
        return self.directory / "device-plugins"


class KubernetesConfig(Section, frozen=True):
    """`agent.kubernetes`; `agent.cluster.api_server` says what stands for what is left out."""

    publish_topology: bool = switch(
        "Whether a NodeResourceTopology is published, for the topology-aware scheduler."
    )
    events: bool = switch("Whether a pod of the kubelet that the agent rejects gets an Event.")
    read_version: bool = switch(
        "Whether the Node object is asked for the kubelet's version where the kubelet's program "
        "does not say it, as in a pod."
    )
    node_name: str = key(
        "",
        NODE_NAME,
        'The name of this host as a node of the cluster; "" is $NODE_NAME, else the name of the '
        "host.",
    )
    server: str = key(
        "",
        SERVER_URL,
        'The URL of the API server; "" is that of $KUBERNETES_SERVICE_HOST and '
        "$KUBERNETES_SERVICE_PORT in a pod.",
    )
    token_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'A file with the token of the agent\'s service account, read at each request; "" is the '
        "credential kubernetes-token of the unit, else the token of the pod.",
    )
    ca_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'A file in PEM form with the certificate of the cluster\'s authority; "" is the '
        "credential kubernetes-ca of the unit, else the certificate of the pod.",
    )

    @property
    def enabled(self) -> bool:
        """Whether anything is written to the API server."""
        return self.publish_topology or self.events


class AgentConfig(Section, frozen=True):
    """The agent's own settings (`agent:`), beside those it shares with the kubelet."""

    state_directory: Path = key(Path("/var/lib/numawarden"), PATH, "Where the checkpoint is kept.")
    socket_path: Path = key(
        Path("/run/numawarden/agent.sock"), SOCKET, "The socket of the admission API."
    )
    socket_group: str | None = key(
        None, USER_GROUP, 'The group whose members may use the socket, too; "" is root alone.'
    )
    sysfs_root: Path = key(
        Path("/"),
        PATH,
        "The directory below which the host's sys and proc stand, for an agent in a container.",
    )
    cgroup_mount: Path = key(
        Path("/sys/fs/cgroup"), PATH, "Where the cgroup v2 file system is mounted."
    )
    enforce: frozenset[KernelController] = key(
        frozenset(KernelController),
        some_of(KernelController),
        "What the agent sets in the cgroups of pods, by the kernel's controllers. What is left "
        "out is neither written nor compared.",
        values={each: each.sets for each in KernelController},
    )
    shared_cgroup: bool = switch(
        "Whether Guaranteed pods without CPUs of their own stand in kubepods/shared, which carries "
        "the shared pool for all of them. Without effect beside a kubelet, which makes the "
        "cgroups. See docs/containers.md.",
        default=True,
    )
    isolation: IsolationConfig = section(
        IsolationConfig(),
        "What else keeps off exclusive CPUs. docs/isolation.md says what each item needs.",
    )
    metrics: MetricsConfig = section(
        MetricsConfig(), "Where /metrics, /healthz and /readyz are served."
    )
    pod_resources: PodResourcesConfig = section(
        PodResourcesConfig(), "The kubelet's podresources API; off without a socket."
    )
    logging: LoggingConfig = section(LoggingConfig(), "How the log is written.")
    history: HistoryConfig = section(
        HistoryConfig(), "What 'numawarden history' shows. See docs/history.md."
    )
    limits: LimitsConfig = section(LimitsConfig(), "What is rejected for its size in bytes.")
    devices: Mapping[str, tuple[PluginDevice, ...]] = key(
        MappingProxyType({}),
        DEVICE_INVENTORY,
        "The devices that pods can ask for, by resource name. Without numaNodes no NUMA node of "
        "the device is known.",
        example="example.com/gpu:\n  - id: gpu-0\n    numaNodes: [0]\n    healthy: true\n",
    )
    host_devices: tuple[HostDeviceClass, ...] = key(
        (),
        HOST_DEVICES,
        "Classes of the host's own devices that pods can ask for, by resource name. See "
        "docs/devices.md.",
        example="example.com/vf:\n"
        "  - virtualFunctionsOf: ens1f0\n    driver: vfio-pci\n"
        'example.com/nvme:\n  - pciClass: "0108"\n',
    )
    device_plugins: DevicePluginsConfig = section(
        DevicePluginsConfig(), "Devices that other programs offer, as to a kubelet."
    )
    kubelet: BesideKubeletConfig = section(
        BesideKubeletConfig(), "The pods of a cluster, beside this host's kubelet."
    )
    kubernetes: KubernetesConfig = section(
        KubernetesConfig(),
        "What the agent writes to the API server of a cluster; off without publishTopology and "
        "events. See docs/node-topology.md.",
    )
    ignored_resources: tuple[str, ...] = key(
        (),
        IGNORED_RESOURCES,
        "The extended resources that something else provides: how much of them pods request is "
        "not looked at. Beside a kubelet all that the agent does not have are so. memory may be "
        "listed where the host does not show it (docs/discovery.md).",
        example="- example.com/licence\n",
    )
    cdi_directory: Path | None = key(
        Path("/var/run/cdi"),
        OPTIONAL_PATH,
        'Where container runtimes look for files of the Container Device Interface; "" writes '
        "none.",
    )
    assigned_files: Path | None = key(
        None,
        OPTIONAL_PATH,
        "The directory of the files in which containers find their own CPUs and memory nodes, "
        'such as /run/numawarden-pods; "" writes none. See docs/assigned.md.',
    )

    @property
    def own_sockets(self) -> frozenset[Path]:
        """The sockets that the agent serves itself as a kubelet would."""
        plugins = self.device_plugins
        of_plugins = {plugins.directory / "kubelet.sock"} if plugins.enabled else set()
        return frozenset(filter(None, (*of_plugins, self.pod_resources.socket)))


_KUBELET_EVICTION: Final[Mapping[str, Threshold]] = MappingProxyType(
    {
        MEMORY_AVAILABLE: Threshold(Quantity.parse("100Mi")),
        "nodefs.available": Threshold(percent="10"),
        "nodefs.inodesFree": Threshold(percent="5"),
        "imagefs.available": Threshold(percent="15"),
        "imagefs.inodesFree": Threshold(percent="5"),
    }
)


class Config(Section, frozen=True):
    """Everything that can be configured, complete and consistent in itself."""

    api_version: str = key(
        "numawarden/v1",
        marker("kubelet.config.k8s.io/v1beta1", "numawarden/v1"),
        "May be left out. A kubelet's own is accepted too.",
        title="The document",
    )
    kind: str = key(
        "NumawardenConfiguration",
        marker("KubeletConfiguration", "NumawardenConfiguration"),
        "May be left out. A kubelet's own is accepted too.",
    )
    cpu_manager_policy: CpuManagerPolicy = key(
        CpuManagerPolicy.NONE,
        one_of(CpuManagerPolicy),
        "Whether containers get CPUs of their own.",
        title="CPUs",
        values={
            CpuManagerPolicy.NONE: "all containers share all CPUs",
            CpuManagerPolicy.STATIC: "containers of Guaranteed pods that ask for whole CPUs get "
            "CPUs of their own",
        },
    )
    cpu_manager_policy_options: Mapping[str, str] = key(
        MappingProxyType({}),
        option_texts(CPU_OPTIONS),
        'How the static policy chooses CPUs. Values are "true" or "false". '
        f"{DISTRIBUTE_ACROSS_CORES} excludes {FULL_PCPUS_ONLY}, {DISTRIBUTE_ACROSS_NUMA} and "
        f"{ALIGN_BY_UNCORE}; the latter two exclude each other; {ALIGN_BY_SOCKET} excludes "
        "topologyManagerPolicy single-numa-node. The policy none takes no options.",
        values={name: option.meaning for name, option in CPU_OPTIONS.items()},
    )
    cpu_manager_reconcile_period: float = key(
        10.0,
        period(0.1, 86400.0),
        "How often the kernel's settings are compared with what was decided, and repaired.",
    )
    reserved_system_cpus: Mask | None = key(
        None,
        CPU_LIST,
        "The CPUs kept for the system, never given exclusively. Without a list as many are kept "
        "as systemReserved and kubeReserved ask for, rounded up and chosen as for a container. "
        "The static policy needs one or the other; where both are given they have to agree.",
        name="reservedSystemCPUs",
    )
    cpu_cfs_quota: bool = switch(
        "Whether limits of CPUs are enforced by quotas (cpu.max). Beside a kubelet this and "
        "cpuCFSQuotaPeriod are the kubelet's.",
        default=True,
        name="cpuCFSQuota",
    )
    cpu_cfs_quota_period: float = key(
        0.1,
        period(0.001, 1.0),
        "In which time a quota may be used. A quota is 1 ms at least, so that a short period "
        "gives small limits more than they say.",
        name="cpuCFSQuotaPeriod",
    )
    memory_manager_policy: MemoryManagerPolicy = key(
        MemoryManagerPolicy.NONE,
        one_of_any_case(MemoryManagerPolicy, {"besteffort": "BestEffort is for Windows"}),
        "Whether containers get memory of certain NUMA nodes.",
        title="Memory",
        values={
            MemoryManagerPolicy.NONE: "memory is not pinned",
            MemoryManagerPolicy.STATIC: "containers of Guaranteed pods get memory and huge pages "
            "on aligned NUMA nodes",
        },
    )
    reserved_memory: tuple[MemoryReservation, ...] = key(
        (),
        RESERVED_MEMORY,
        "What is kept for the system, by NUMA node and memory type (memory, hugepages-2Mi, "
        "...), together exactly systemReserved + kubeReserved + evictionHard memory.available. "
        "Left empty, the nodes that have CPUs share the amount by the memory they have.",
        example="- numaNode: 0\n  limits: {memory: 1Gi}\n",
    )
    memory_reservation_policy: MemoryReservationPolicy = key(
        MemoryReservationPolicy.NONE,
        one_of(MemoryReservationPolicy),
        "Whether the kernel keeps the memory that pods request (KEP-2570). Beside a kubelet this "
        "and memoryThrottlingFactor are the kubelet's.",
        values={
            MemoryReservationPolicy.NONE: "it does not",
            MemoryReservationPolicy.TIERED: "memory.min of Guaranteed pods and their containers, "
            "memory.low of Burstable ones, is what they request",
        },
    )
    memory_throttling_factor: float | None = key(
        None,
        FRACTION,
        "From which part of what it may use beyond its request on (without a limit: what is "
        "allocatable) a container that is not Guaranteed is slowed down (memory.high), such as "
        f'0.9. "" slows none down, as kubelets from {since(_slows_none)} on; with '
        f"kubernetesVersion {before(_slows_none)} it is "
        f"{before(_slows_none).rules.memory_throttling_factor} where the feature gate MemoryQoS is "
        "on.",
    )
    topology_manager_policy: TopologyManagerPolicy = key(
        TopologyManagerPolicy.NONE,
        one_of(TopologyManagerPolicy),
        "What holds for the NUMA nodes of CPUs, memory and devices together.",
        title="Topology",
        values={
            TopologyManagerPolicy.NONE: "the managers choose for themselves",
            TopologyManagerPolicy.BEST_EFFORT: "align CPUs, memory and devices where possible",
            TopologyManagerPolicy.RESTRICTED: "reject what cannot be aligned on the fewest "
            "possible NUMA nodes",
            TopologyManagerPolicy.SINGLE_NUMA_NODE: "reject what does not fit one NUMA node",
        },
    )
    topology_manager_scope: TopologyManagerScope = key(
        TopologyManagerScope.CONTAINER,
        one_of(TopologyManagerScope),
        "What is aligned together: docs/scopes.md.",
        values={
            TopologyManagerScope.CONTAINER: "every container is aligned for itself",
            TopologyManagerScope.POD: "all containers of a pod are aligned together; with "
            "pod-level resources the pod "
            "gets one budget (KEP-5526)",
        },
    )
    topology_manager_policy_options: Mapping[str, str] = key(
        MappingProxyType({}),
        option_texts(TOPOLOGY_OPTIONS),
        "How a topologyManagerPolicy other than none chooses nodes.",
        values={name: option.meaning for name, option in TOPOLOGY_OPTIONS.items()},
    )
    system_reserved: Mapping[str, Quantity] = key(
        MappingProxyType({}),
        RESERVED_AMOUNTS,
        "What the system and the node's own services need: cpu, memory, hugepages-* and pid. "
        "ephemeral-storage changes nothing.",
        title="Reservations",
        example='cpu: "1"\nmemory: 1Gi\n',
    )
    kube_reserved: Mapping[str, Quantity] = key(
        MappingProxyType({}),
        RESERVED_AMOUNTS,
        "The same for the container runtime and other daemons of Kubernetes; added to "
        "systemReserved.",
    )
    enforce_node_allocatable: frozenset[NodeAllocatable] = key(
        frozenset({NodeAllocatable.PODS}),
        some_of(NodeAllocatable),
        "What is limited to its share of the host. Beside a kubelet this is the kubelet's.",
        values={
            NodeAllocatable.PODS: "kubepods, the cgroup of all pods: memory.max, cpu.weight, "
            "pids.max and hugetlb.*.max, .rsvd.max are the capacity less the reservations, memory "
            "also less huge pages unless these count as memory (memory_hugetlb_accounting)",
            NodeAllocatable.NONE: "nothing: kubepods has the whole capacity",
            **dict.fromkeys(list(NodeAllocatable)[2:], "changes nothing"),
        },
    )
    eviction_hard: Mapping[str, Threshold] = key(
        _KUBELET_EVICTION,
        EVICTION_THRESHOLDS,
        "Only memory.available matters, an amount or a share of the host's memory such as 5%: "
        "it is kept free beside the reservations. Nothing is evicted here.",
    )
    max_pods: int = key(
        DEFAULT_MAX_PODS,
        whole_number(0, _MAX_INT32, zero_means=DEFAULT_MAX_PODS),
        "How many pods the host has at most. Nor do their requests together exceed what is "
        'allocatable, as "numawarden config check" shows.',
        remark="0 stands for the default",
    )
    pods_per_core: int = key(
        0,
        whole_number(0, _MAX_INT32),
        "How many pods the host has at most for each of its CPUs; 0 sets no limit beside maxPods.",
    )
    feature_gates: Mapping[str, bool] = key(
        MappingProxyType({}),
        gate_switches(OWN_GATES),
        "Feature gates by the names of Kubernetes, with the defaults of kubernetesVersion. "
        "Any other gate is accepted and changes nothing, as a note of `config check` and of the "
        "agent's start says.",
        title="Features",
        values=gate_meanings(),
    )
    kubernetes_version: KubernetesVersion | None = key(
        None,
        any_version_of(KubernetesVersion),
        "The version of Kubernetes whose rules hold where those of versions differ "
        f'(docs/differences.md). With "" it is {NEWEST}, and beside a kubelet the kubelet\'s own '
        "(`kubelet --version`), also after an upgrade; until the kubelet says one, that of the "
        "last decision; of a version that is not known the nearest one, which is a condition. "
        "`numawarden status` says whose rules hold and why. "
        "Pods keep what they have when this changes. The kubelet has no such key.",
        values={version: version.meaning for version in KubernetesVersion},
    )
    cgroup_driver: CgroupDriver = key(
        CgroupDriver.CGROUPFS,
        one_of(CgroupDriver),
        "Who makes the cgroups of pods. The container runtime has to use the same driver.",
        title="Cgroups and pods",
        values={
            CgroupDriver.SYSTEMD: "slices over D-Bus",
            CgroupDriver.CGROUPFS: "directories",
        },
    )
    cgroup_root: str = key(
        "/",
        CGROUP,
        "The cgroup below which the cgroups of pods stand.",
    )
    static_pod_path: Path | None = key(
        None,
        OPTIONAL_PATH,
        'The directory of pod manifests ("The manifest directory" of docs/api.md); "" is none.',
    )
    agent: AgentConfig = section(
        AgentConfig(), "What a kubelet has no key for.", title="The agent's own"
    )

    @property
    def version(self) -> KubernetesVersion:
        """The version of Kubernetes whose rules hold, as far as the configuration says."""
        return self.kubernetes_version or NEWEST

    @property
    def gates(self) -> FeatureGates:
        """The feature gates that change a decision.

        Beside a kubelet the API server has defaulted the pods, whatever version that has.
        """
        gates = gates_of(self.feature_gates, self.version)
        if self.agent.kubelet.enabled:
            return replace(gates, pod_level_resources_fix_defaulting=False)
        return gates

    @property
    def memory_qos(self) -> bool:
        """Whether the feature gate of Memory QoS is on, which it is by default as beta."""
        beta = self.version.rules.memory_qos_is_beta
        stage = self.feature_gates.get("AllBeta" if beta else "AllAlpha", beta)
        return self.feature_gates.get(MEMORY_QOS, stage)

    @property
    def throttling_factor(self) -> float | None:
        """`memoryThrottlingFactor`, or its default; None where memory.high is not set."""
        default = self.version.rules.memory_throttling_factor
        return (self.memory_throttling_factor or default) if self.memory_qos else None

    @property
    def cpu_options(self) -> CpuPolicyOptions:
        """The options of the CPU manager as values."""
        return cpu_options(self.cpu_manager_policy_options)

    @property
    def reserved_millicpus(self) -> int:
        """The thousandths of CPUs that `systemReserved` and `kubeReserved` keep."""
        amounts = (self.system_reserved.get(CPU, ZERO), self.kube_reserved.get(CPU, ZERO))
        return (amounts[0] + amounts[1]).milli_value


class ConfigError(DocumentError):
    """A configuration was rejected; `problems` holds every mistake in it with path and line."""

    what = "configuration"

"""The configuration: every key with its type, default, bounds and explanation, declared once.

Keys outside of `agent` have the names, values and defaults of the kubelet (KubeletConfiguration,
kubelet.config.k8s.io/v1beta1), so that settings can be carried over. The reference, the commented
example and the JSON schema follow from the declarations, as does everything that reads a file.
What depends on the host is decided by `agent.config.resolve`. Durations are seconds.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.config.devices import DEVICE_INVENTORY, HOST_DEVICES, HostDeviceClass
from agent.config.keys import Section, key, section, switch
from agent.config.kinds import (
    CGROUP,
    CPU_LIST,
    EVICTION_THRESHOLDS,
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
    byte_size,
    gate_switches,
    marker,
    one_of,
    one_of_any_case,
    option_texts,
    period,
    some_of,
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
from agent.pods.model import CPU
from agent.pods.quantity import ZERO, Quantity
from agent.yaml import DocumentError, guess, shown
from cgroupfs.settings import KernelController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.managers.policy import PluginDevice
    from sysfs.mask import Mask


# --- features -------------------------------------------------------------------------------------
# Policy options and feature gates: which there are, what they exclude, which change nothing here.
#
# Stages and defaults are those of Kubernetes v1.36. Sources of the options: KEP-2625 (CPU manager
# policy options), KEP-3545 (topology manager policy options), KEP-4540 (strict-cpu-reservation),
# KEP-4800 (uncore cache).


class GateStage(StrEnum):
    """How mature a feature is; AllAlpha and AllBeta switch whole stages."""

    ALPHA = "alpha"
    BETA = "beta"
    DEPRECATED = "deprecated"


class Gate(Struct, frozen=True):
    """A gate that changes a decision."""

    #: Its field in `FeatureGates`, which has the default.
    field: str
    stage: GateStage
    meaning: str

    def is_on(self, gates: FeatureGates) -> bool:
        """Return whether the gate is on."""
        return getattr(gates, self.field) is True


POD_LEVEL_RESOURCES: Final = "PodLevelResources"
POD_LEVEL_RESOURCE_MANAGERS: Final = "PodLevelResourceManagers"
ALPHA_OPTIONS: Final = "CPUManagerPolicyAlphaOptions"
BETA_OPTIONS: Final = "CPUManagerPolicyBetaOptions"

GATES: Final[Mapping[str, Gate]] = {
    POD_LEVEL_RESOURCES: Gate("pod_level_resources", GateStage.BETA, "spec.resources of pods"),
    POD_LEVEL_RESOURCE_MANAGERS: Gate(
        "pod_level_resource_managers", GateStage.ALPHA, "exclusive parts of them (KEP-5526)"
    ),
    "DisableCPUQuotaWithExclusiveCPUs": Gate(
        "disable_cpu_quota_with_exclusive_cpus",
        GateStage.DEPRECATED,
        "no CPU quota on exclusive CPUs",
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

#: Gates of Kubernetes on which no decision here depends.
IGNORED: Final = frozenset(
    {
        "AllowDNSOnlyNodeCSR",
        "AllowInsecureKubeletCertificateSigningRequests",
        "AllowOverwriteTerminationGracePeriodSeconds",
        "AllowServiceExternalIPs",
        "AnyVolumeDataSource",
        "AppArmor",
        "AppArmorFields",
        "AuthorizeNodeWithSelectors",
        "AuthorizePodWebsocketUpgradeCreatePermission",
        "CRIListStreaming",
        "CSIMigrationPortworx",
        "CSIServiceAccountTokenSecrets",
        "CSIVolumeHealth",
        "ChangeContainerStatusOnKubeletRestart",
        "ClearingNominatedNodeNameAfterBinding",
        "ClusterTrustBundle",
        "ClusterTrustBundleProjection",
        "ContainerCheckpoint",
        "ContainerRestartRules",
        "ContainerStopSignals",
        "CoordinatedLeaderElection",
        "CrossNamespaceVolumeDataSource",
        "CustomCPUCFSQuotaPeriod",
        "DRAAdminAccess",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaintRules",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAListTypeAttributes",
        "DRANodeAllocatableResources",
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRAResourceClaimGranularStatusAuthorization",
        "DRAResourcePoolStatus",
        "DRASchedulerFilterTimeout",
        "DRAWorkloadResourceClaims",
        "DeploymentReplicaSetTerminatingReplicas",
        "DisableAllocatorDualWrite",
        "DisableCloudProviders",
        "DisableKubeletCloudCredentialProviders",
        "DisableNodeKubeProxyVersion",
        "DynamicResourceAllocation",
        "EnvFiles",
        "EventedPLEG",
        "ExecProbeTimeout",
        "ExtendWebSocketsToKubelet",
        "ExternalServiceAccountTokenSigner",
        "GangScheduling",
        "GenericWorkload",
        "GitRepoVolumeDriver",
        "GracefulNodeShutdown",
        "GracefulNodeShutdownBasedOnPodPriority",
        "HPAConfigurableTolerance",
        "HPAScaleToZero",
        "HostnameOverride",
        "HugePageStorageMediumSize",
        "ImageMaximumGCAge",
        "ImageVolume",
        "ImageVolumeWithDigest",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScaling",
        "InPlacePodVerticalScalingAllocatedStatus",
        "InPlacePodVerticalScalingExclusiveCPUs",
        "InPlacePodVerticalScalingExclusiveMemory",
        "InPlacePodVerticalScalingInitContainers",
        "InTreePluginPortworxUnregister",
        "JobBackoffLimitPerIndex",
        "JobManagedBy",
        "JobPodReplacementPolicy",
        "JobSuccessPolicy",
        "KubeletCgroupDriverFromCRI",
        "KubeletCrashLoopBackOffMax",
        "KubeletEnsureSecretPulledImages",
        "KubeletFineGrainedAuthz",
        "KubeletInUserNamespace",
        "KubeletPSI",
        "KubeletPodResourcesDynamicResources",
        "KubeletPodResourcesGet",
        "KubeletPodResourcesListUseActivePods",
        "KubeletRegistrationGetOnExistsOnly",
        "KubeletSeparateDiskGC",
        "KubeletServiceAccountTokenForCredentialProviders",
        "KubeletTracing",
        "LocalStorageCapacityIsolation",
        "LocalStorageCapacityIsolationFSQuotaMonitoring",
        "LogarithmicScaleDown",
        "MatchLabelKeysInPodAffinity",
        "MatchLabelKeysInPodTopologySpread",
        "MatchLabelKeysInPodTopologySpreadSelectorMerge",
        "MaxUnavailableStatefulSet",
        "MemoryQoS",
        "MultiCIDRServiceAllocator",
        "MutableCSINodeAllocatableCount",
        "MutablePVNodeAffinity",
        "MutablePodResourcesForSuspendedJobs",
        "MutableSchedulingDirectivesForSuspendedJobs",
        "NFTablesProxyMode",
        "NodeDeclaredFeatures",
        "NodeInclusionPolicyInPodTopologySpread",
        "NodeLogQuery",
        "NodeSwap",
        "NominatedNodeNameForExpectation",
        "OpportunisticBatching",
        "OrderedNamespaceDeletion",
        "PLEGOnDemandRelist",
        "PersistentVolumeClaimUnusedSinceTime",
        "PodAndContainerStatsFromCRI",
        "PodCertificateRequest",
        "PodDeletionCost",
        "PodHostIPs",
        "PodLifecycleSleepAction",
        "PodLifecycleSleepActionAllowZero",
        "PodLogsQuerySplitStreams",
        "PodObservedGenerationTracking",
        "PodReadyToStartContainersCondition",
        "PodSchedulingReadiness",
        "PodTopologyLabelsAdmission",
        "PodsAPI",
        "PortForwardWebsockets",
        "PreferSameTrafficDistribution",
        "PreventStaticPodAPIReferences",
        "ProcMountType",
        "QOSReserved",
        "RecoverVolumeExpansionFailure",
        "RecursiveReadOnlyMounts",
        "ReduceDefaultCrashLoopBackOffDecay",
        "RelaxedDNSSearchValidation",
        "RelaxedEnvironmentVariableValidation",
        "RelaxedServiceNameValidation",
        "ReloadKubeletClientCAFile",
        "ReloadKubeletServerCertificateFile",
        "ResourceHealthStatus",
        "ResourceHealthStatusMessage",
        "RestartAllContainersOnContainerExits",
        "RotateKubeletServerCertificate",
        "RuntimeClassInImageCriApi",
        "SELinuxChangePolicy",
        "SELinuxMount",
        "SELinuxMountReadWriteOncePod",
        "SchedulerAsyncAPICalls",
        "SchedulerAsyncPreemption",
        "SchedulerPopFromBackoffQ",
        "SchedulerQueueingHints",
        "SeparateTaintEvictionController",
        "ServiceAccountNodeAudienceRestriction",
        "ServiceAccountTokenJTI",
        "ServiceAccountTokenNodeBinding",
        "ServiceAccountTokenNodeBindingValidation",
        "ServiceAccountTokenPodNodeInfo",
        "ServiceCIDRStatusFieldWiping",
        "SizeMemoryBackedVolumes",
        "StaleControllerConsistencyDaemonSet",
        "StaleControllerConsistencyJob",
        "StaleControllerConsistencyReplicaSet",
        "StaleControllerConsistencyStatefulSet",
        "StatefulSetSemanticRevisionComparison",
        "StorageCapacityScoring",
        "StorageNamespaceIndex",
        "StorageVersionMigrator",
        "StreamingCollectionEncodingToJSON",
        "StreamingCollectionEncodingToProtobuf",
        "StrictIPCIDRValidation",
        "SupplementalGroupsPolicy",
        "SystemdWatchdog",
        "TaintTolerationComparisonOperators",
        "TopologyAwareWorkloadScheduling",
        "TopologyManagerPolicyAlphaOptions",
        "TopologyManagerPolicyBetaOptions",
        "TranslateStreamCloseWebsocketRequests",
        "UserNamespacesHostNetworkSupport",
        "UserNamespacesPodSecurityStandards",
        "UserNamespacesSupport",
        "VolumeAttributesClass",
        "VolumeLimitScaling",
        "WinDSR",
        "WinOverlay",
        "WindowsCPUAndMemoryAffinity",
        "WindowsGracefulNodeShutdown",
        "WindowsHostNetwork",
        "WorkloadAwarePreemption",
        "WorkloadWithJob",
    }
)

#: Every gate that a configuration may name, those first that change a decision.
KNOWN_GATES: Final = (*GATES, *_WHOLE_STAGES, *sorted(LOCKED_ON), *sorted(IGNORED))


def gate_meanings() -> dict[str, str]:
    """Return what each gate that changes a decision does, with its default."""
    default = FeatureGates()
    return {
        name: f"{gate.meaning}; default: {str(gate.is_on(default)).lower()}"
        for name, gate in GATES.items()
    } | {
        whole: f"switches the gates of stage {stage} that are not named"
        for whole, stage in _WHOLE_STAGES.items()
    }


def gates_of(gates: Mapping[str, bool]) -> FeatureGates:
    """Return the gates that change a decision; one that is named wins over its whole stage."""
    values: dict[str, bool] = {}
    for name, gate in GATES.items():
        for whole, stage in _WHOLE_STAGES.items():
            if gate.stage is stage and whole in gates:
                values[gate.field] = gates[whole]
        if name in gates:
            values[gate.field] = gates[name]
    return FeatureGates(**values)


def gate_problems(gates: Mapping[str, bool]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the gates that were set, as (gate, message)."""
    for name, enabled in gates.items():
        if name in LOCKED_ON:
            if not enabled:
                yield name, "this feature has graduated and cannot be switched off; remove it"
        elif name not in KNOWN_GATES:
            yield name, f"unknown feature gate{guess(name, KNOWN_GATES)}"
    resolved = gates_of(gates)
    if resolved.pod_level_resource_managers and not resolved.pod_level_resources:
        yield (
            POD_LEVEL_RESOURCE_MANAGERS,
            f"it needs {POD_LEVEL_RESOURCES}, which is off; switch both on, or this one off",
        )


def ignored_gates(gates: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the gates that were set and change nothing here, in the order they were given."""
    return tuple(name for name in gates if name in IGNORED or name in LOCKED_ON)


# --- Policy options ------------------------------------------------------------------------------

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
        "only whole physical cores; reject what would split one. Of a pod-level budget exclusive "
        "containers share no core either where its cores suffice",
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


# --- model ----------------------------------------------------------------------------------------

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


class PodResourcesVersion(StrEnum):
    """The kubelet whose answers those of podresources are."""

    #: Each container that shares its pod's budget lists what it shares.
    V1_36 = "v1.36"
    #: A pod lists its budget, a container only what is its own (KEP-5526).
    V1_37 = "v1.37"


class OnReject(StrEnum):
    """What becomes of a pod that the kubelet admitted and the agent rejects."""

    FAIL = "fail"
    SHARE = "share"


class MetricsConfig(Section, frozen=True):
    """`agent.metrics`; with both files set the listener speaks TLS."""

    address: str = key(
        "127.0.0.1", IP_ADDRESS, "An IP address of this host; 0.0.0.0 or :: for all of them."
    )
    port: int = key(9464, whole_number(0, 65535), "The TCP port of the metrics listener.")
    tls_certificate: Path | None = key(
        None, OPTIONAL_PATH, "A file in PEM form. With this and tlsKey the listener speaks TLS."
    )
    tls_key: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file in PEM form. The key is not encrypted, belongs to root (or the agent's user), and "
        "is not readable by all users.",
    )
    containers: int = key(
        0,
        whole_number(0, 10_000),
        "How many containers have metrics of their own at most, in the order of admission: "
        "numawarden_container_info and numawarden_container_exclusive_cpus, with the names of "
        "pods. 0 exports none; each costs Prometheus two series or more.",
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
        "The socket of the kubelet's podresources API (gRPC, v1), for monitoring: "
        "/run/numawarden/pod-resources/kubelet.sock, or the kubelet's own "
        "/var/lib/kubelet/pod-resources/kubelet.sock on a host without a kubelet. It needs the "
        "extra grpc. See docs/devices.md.",
    )
    version: PodResourcesVersion = key(
        PodResourcesVersion.V1_36,
        one_of(PodResourcesVersion),
        "The kubelet as whose the answers are. Today's clients read containers only.",
        values={
            "v1.36": "each container lists what it shares of its pod's budget",
            "v1.37": "the pod lists the budget, the container only what is its own",
        },
    )


class HistoryConfig(Section, frozen=True):
    """`agent.history`."""

    max_bytes: int = key(
        16 * _MIB,
        byte_size(0, 1 << 30),
        "The most bytes of the history in stateDirectory; the oldest entries go first. 0 keeps no "
        "history.",
    )
    max_age: float = key(
        720 * 3600.0,
        period(60.0, 10 * 365 * 86400.0),
        "How old an entry may be. Older ones are not shown, and their file is removed when "
        "something else happens.",
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
        "Whether device plugins can register, as with a kubelet (device plugin API v1beta1). It "
        "needs the extra grpc: pip install 'numawarden[grpc]'. See docs/devices.md."
    )
    directory: Path = key(
        Path("/var/lib/kubelet/device-plugins"),
        SOCKET_DIRECTORY,
        "The directory of plugins' sockets; in most plugins it is fixed, so it is the kubelet's. "
        "It is not served while a kubelet serves it.",
    )
    registry_directory: Path | None = key(
        None,
        OPTIONAL_PATH,
        "The directory of the kubelet's plugin watcher, in which plugins serve "
        "pluginregistration/v1 instead of registering themselves; empty: plugins_registry beside "
        "the directory above. It need not exist.",
    )
    call_timeout: float = key(
        10.0,
        period(0.1, _LONGEST_CALL),
        "How long a plugin may take to answer GetDevicePluginOptions, or Allocate, while all "
        "admissions wait; half of it for GetPreferredAllocation. PreStartContainer has 30s, as "
        "with the kubelet.",
    )


class BesideKubeletConfig(Section, frozen=True):
    """`agent.kubelet`: how the agent works beside a kubelet."""

    enabled: bool = switch(
        "Whether the pods of this host's kubelet are admitted. The kubelet makes and removes "
        "their cgroups, and its own managers are off. It needs the extra grpc: pip install "
        "'numawarden[grpc]'. See docs/kubernetes.md."
    )
    ignored: bool = switch(
        "Whether the agent starts although a kubelet runs here that is not enabled. Unless the "
        "kubelet has its CPUs reserved here, both give the same ones to different pods, and the "
        "kubelet removes pods' cgroups that it does not know, but for another cgroupRoot."
    )
    directory: Path = key(Path("/var/lib/kubelet"), PATH, "The kubelet's directory (--root-dir).")
    config_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'The kubelet\'s configuration (--config), to check that its managers are off. "" takes the '
        "file that the flags of the running kubelet name, else config.yaml in its directory.",
    )
    nri_socket: Path | None = key(
        Path("/var/run/nri/nri.sock"),
        OPTIONAL_SOCKET,
        "The socket of the container runtime's NRI, over which containers get their CPUs, memory "
        'nodes and quota before they start. With "" they get them right after.',
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
        "The kubelet's endpoint that lists its pods, such as https://127.0.0.1:10250/pods. It is "
        'asked where the kubelet\'s Pods API (feature gate PodsAPI) does not answer; with "" it is '
        "not used.",
    )
    token_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file with the token for podsEndpoint, read at each request: that of a service account "
        "that may get nodes/pods, or a credential of the unit.",
    )
    ca_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        "A file in PEM form with the authorities that the certificate of podsEndpoint is checked "
        'with, or that certificate itself; "" for those of the system. The certificate has to '
        "name the host of podsEndpoint.",
    )
    verify_certificate: bool = switch(
        "Whether the certificate of podsEndpoint is checked. Kubelets sign their own unless the "
        "cluster does: false sends the token to whichever process listens there.",
        default=True,
    )
    exclusive_resource: str = key(
        "numawarden.dev/exclusive",
        OPTIONAL_RESOURCE,
        "The resource with which a pod opts in to be rejected by the kubelet itself where the "
        "agent rejects the pod: a container asks for one of it in its limits. The agent offers it "
        'to the kubelet as a device plugin. With "" it does not. An agent that starts after the '
        "kubelet, as in a DaemonSet, has it reject all such pods at every boot.",
    )

    @property
    def plugin_directory(self) -> Path:
        """The directory in which the kubelet and its device plugins have their sockets."""
        return self.directory / "device-plugins"


class KubernetesConfig(Section, frozen=True):
    """`agent.kubernetes`; `agent.cluster.api_server` says what stands for what is left out."""

    publish_topology: bool = switch(
        "Whether the CPUs, memory and devices of each NUMA node are published as a "
        "NodeResourceTopology, for the topology-aware scheduler. See docs/node-topology.md."
    )
    events: bool = switch(
        "Whether a pod of the kubelet that the agent rejects gets an Event, which kubectl "
        "describe shows."
    )
    node_name: str = key(
        "",
        NODE_NAME,
        'The name of this host as a node of the cluster; "" takes it from $NODE_NAME, and else is '
        "the name of the host.",
    )
    server: str = key(
        "",
        SERVER_URL,
        'The URL of the API server; "" is the one that $KUBERNETES_SERVICE_HOST and '
        "$KUBERNETES_SERVICE_PORT name in a pod.",
    )
    token_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'A file with the token of the agent\'s service account, which is read at each request; "" '
        "is the credential kubernetes-token of the unit (LoadCredential), and else the token of "
        "the pod.",
    )
    ca_file: Path | None = key(
        None,
        OPTIONAL_PATH,
        'A file with the certificate of the cluster\'s certificate authority in PEM form; "" is '
        "the credential kubernetes-ca of the unit, and else the certificate of the pod.",
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
        "out belongs to other programs and is neither written nor compared. A limit below what is "
        "in use is never written.",
        values={each: each.sets for each in KernelController},
    )
    shared_cgroup: bool = switch(
        "Whether Guaranteed pods without CPUs of their own stand in kubepods/shared "
        "(kubepods-shared.slice), where a kubelet would put them into kubepods itself. That "
        "cgroup carries the shared pool for all of them, so that an exclusive pod comes and goes "
        "in as few writes beside thousands of them as beside ten. A pod's cgroup that exists "
        "stays where it is. See docs/containers.md."
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
        "the device is known; healthy is true where it is left out. A pod that asks for a "
        "resource that is neither listed here nor in hostDevices is rejected, but see "
        "ignoredResources.",
        example="example.com/gpu:\n  - id: gpu-0\n    numaNodes: [0]\n    healthy: true\n",
    )
    host_devices: tuple[HostDeviceClass, ...] = key(
        (),
        HOST_DEVICES,
        "Classes of the host's own devices that pods can ask for, by resource name; the agent "
        "finds the devices, their NUMA nodes and whether they are healthy. A device is of a class "
        "if it meets all criteria that the class has: pciClass (2, 4 or 6 digits), vendor and "
        "device (4 digits each) in hexadecimal, driver, and, with the wildcards *, ? and [], "
        "address (PCI address), interface (network interface) and virtualFunctionsOf (interface "
        "of the physical function). A device of several classes counts for the first. Nothing is "
        "left out because the host itself uses it.",
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
        "The extended resources that something else provides, such as example.com/licence: how "
        "much of them pods request is not looked at, and nothing of them is given. Beside a "
        "kubelet (agent.kubelet) all that the agent does not have are so, listed or not. memory "
        "may be listed, too, where the host does not show how much memory a node has: then pods "
        "are admitted whatever they request.",
        example="- example.com/licence\n",
    )
    cdi_directory: Path | None = key(
        Path("/var/run/cdi"),
        OPTIONAL_PATH,
        "Where container runtimes look for files of the Container Device Interface. The file of a "
        "pod has what its containers get with their devices: environment, mounts and device "
        'nodes; it is written if there is any of it, and removed with the pod. "" writes none.',
    )


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
        "The CPUs kept for the system, such as 0-1,32-33: they are never given exclusively. "
        'Without a list ("" is none) as many CPUs are kept as systemReserved and kubeReserved ask '
        "for, rounded up and chosen as for a container. The static policy needs one or the other; "
        "where both are given they have to agree.",
        name="reservedSystemCPUs",
    )
    memory_manager_policy: MemoryManagerPolicy = key(
        MemoryManagerPolicy.NONE,
        one_of_any_case(MemoryManagerPolicy, {"besteffort": "BestEffort is for Windows"}),
        "Whether containers get memory of certain NUMA nodes. Any letter case is accepted.",
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
        "What is kept for the system, by NUMA node and memory type (memory, hugepages-2Mi, ...). "
        "For each type the nodes together have to reserve exactly systemReserved + kubeReserved + "
        "evictionHard memory.available. Left empty, this is derived: the nodes that have CPUs "
        'share the amount by the memory they have; "numawarden config check" shows the result.',
        example="- numaNode: 0\n  limits: {memory: 1Gi}\n",
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
        "What is aligned together. Which scope to use, and the same pods under both: "
        "docs/scopes.md. Switching hosts with pods: docs/rollout.md.",
        values={
            TopologyManagerScope.CONTAINER: "every container is aligned for itself",
            TopologyManagerScope.POD: "all containers of a pod are aligned together; with "
            "pod-level resources the pod gets one budget, of which its "
            "containers get exclusive parts or share the rest "
            "(KEP-5526)",
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
        "What the system and the node's own services need. cpu and memory (and hugepages-*) "
        "matter here; ephemeral-storage and pid are accepted for the kubelet's sake.",
        title="Reservations",
        example='cpu: "1"\nmemory: 1Gi\n',
    )
    kube_reserved: Mapping[str, Quantity] = key(
        MappingProxyType({}),
        RESERVED_AMOUNTS,
        "The same for the container runtime and other Kubernetes daemons; the amounts are added "
        "to those of systemReserved.",
    )
    eviction_hard: Mapping[str, Threshold] = key(
        _KUBELET_EVICTION,
        EVICTION_THRESHOLDS,
        "Of the eviction thresholds only memory.available matters: an amount, or a share of the "
        "host's memory such as 5%. This memory is kept free beside the reservations. Nothing is "
        "evicted here; other signals are accepted for the kubelet's sake.",
    )
    max_pods: int = key(
        DEFAULT_MAX_PODS,
        whole_number(0, _MAX_INT32, zero_means=DEFAULT_MAX_PODS),
        "How many pods the host has at most. The requests of all pods together never exceed what "
        "is allocatable either: the CPUs and the memory of the host less the reservations (a list "
        "of reservedSystemCPUs wins over amounts of cpu), its huge pages and the healthy devices; "
        '"numawarden config check" shows what is allocatable.',
        remark="0 stands for the default",
    )
    pods_per_core: int = key(
        0,
        whole_number(0, _MAX_INT32),
        "How many pods the host has at most for each of its CPUs; 0 sets no limit beside maxPods.",
    )
    feature_gates: Mapping[str, bool] = key(
        MappingProxyType({}),
        gate_switches(KNOWN_GATES),
        "Feature gates by the names of Kubernetes v1.36, with its defaults for those that are not "
        "named. Other gates of a kubelet than these are accepted and change nothing.",
        title="Features",
        values=gate_meanings(),
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
        "The cgroup below which the cgroups of pods stand, as a path within the cgroup file "
        "system.",
    )
    static_pod_path: Path | None = key(
        None,
        OPTIONAL_PATH,
        "The directory of pod manifests: each file in it is one pod that is to run. The "
        "directory, its files and the directories above it have to belong to root and be writable "
        'by no other user. "" is none: pods come over the socket alone.',
    )
    agent: AgentConfig = section(
        AgentConfig(), "What a kubelet has no key for.", title="The agent's own"
    )

    @property
    def gates(self) -> FeatureGates:
        """The feature gates that change a decision."""
        return gates_of(self.feature_gates)

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

"""Policy options and feature gates: which there are, what they exclude, which change nothing here.

Stages and defaults are those of Kubernetes v1.36. Sources of the options: KEP-2625 (CPU manager
policy options), KEP-3545 (topology manager policy options), KEP-4540 (strict-cpu-reservation),
KEP-4800 (uncore cache).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.policy import CpuPolicyOptions, FeatureGates, TopologyManagerPolicy
from agent.yaml import guess, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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
    """Return valid options as values; the field of an option has `_` for `-`."""
    return CpuPolicyOptions(
        **{name.replace("-", "_"): _is_on(options, name) for name in CPU_OPTIONS}
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

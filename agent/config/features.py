"""Feature gates: which change a decision here, which are locked, which are only known by name.

Stages and defaults are those of Kubernetes v1.36.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.managers.policy import FeatureGates
from agent.yaml import guess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class GateStage(StrEnum):
    """How mature a feature is; AllAlpha and AllBeta switch whole stages."""

    ALPHA = "alpha"
    BETA = "beta"
    DEPRECATED = "deprecated"


class Gate(NamedTuple):
    """A gate that changes a decision: its field in `FeatureGates`, and its stage."""

    field: str
    stage: GateStage


POD_LEVEL_RESOURCES: Final = "PodLevelResources"

POD_LEVEL_RESOURCE_MANAGERS: Final = "PodLevelResourceManagers"

GATES: Final[Mapping[str, Gate]] = {
    POD_LEVEL_RESOURCES: Gate("pod_level_resources", GateStage.BETA),
    POD_LEVEL_RESOURCE_MANAGERS: Gate("pod_level_resource_managers", GateStage.ALPHA),
    "DisableCPUQuotaWithExclusiveCPUs": Gate(
        "disable_cpu_quota_with_exclusive_cpus", GateStage.DEPRECATED
    ),
    "CPUManagerPolicyAlphaOptions": Gate("cpu_manager_policy_alpha_options", GateStage.ALPHA),
    "CPUManagerPolicyBetaOptions": Gate("cpu_manager_policy_beta_options", GateStage.BETA),
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

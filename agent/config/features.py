"""Feature gates: which change a decision here, which are locked, which are only known by name.

Stages and defaults are those of Kubernetes v1.36.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.managers.policy import FeatureGates
from agent.parsing.document import guess

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
        "AllowOverwriteTerminationGracePeriodSeconds",
        "AppArmor",
        "AppArmorFields",
        "CSIMigrationPortworx",
        "CSIServiceAccountTokenSecrets",
        "CSIVolumeHealth",
        "ClusterTrustBundle",
        "ClusterTrustBundleProjection",
        "ContainerCheckpoint",
        "ContainerRestartRules",
        "ContainerStopSignals",
        "CrossNamespaceVolumeDataSource",
        "CustomCPUCFSQuotaPeriod",
        "DRAAdminAccess",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaintRules",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRANodeAllocatableResources",
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRASchedulerFilterTimeout",
        "DisableCloudProviders",
        "DisableKubeletCloudCredentialProviders",
        "DisableNodeKubeProxyVersion",
        "DynamicResourceAllocation",
        "EnvFiles",
        "EventedPLEG",
        "ExecProbeTimeout",
        "GangScheduling",
        "GenericWorkload",
        "GracefulNodeShutdown",
        "GracefulNodeShutdownBasedOnPodPriority",
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
        "MemoryQoS",
        "MutableCSINodeAllocatableCount",
        "NodeDeclaredFeatures",
        "NodeLogQuery",
        "NodeSwap",
        "PodAndContainerStatsFromCRI",
        "PodCertificateRequest",
        "PodHostIPs",
        "PodLifecycleSleepAction",
        "PodLifecycleSleepActionAllowZero",
        "PodObservedGenerationTracking",
        "PodReadyToStartContainersCondition",
        "PodSchedulingReadiness",
        "PortForwardWebsockets",
        "PreferSameTrafficDistribution",
        "ProcMountType",
        "QOSReserved",
        "RecoverVolumeExpansionFailure",
        "RecursiveReadOnlyMounts",
        "ReduceDefaultCrashLoopBackOffDecay",
        "RelaxedDNSSearchValidation",
        "RelaxedEnvironmentVariableValidation",
        "ReloadKubeletClientCAFile",
        "ReloadKubeletServerCertificateFile",
        "ResourceHealthStatus",
        "RestartAllContainersOnContainerExits",
        "RotateKubeletServerCertificate",
        "RuntimeClassInImageCriApi",
        "SELinuxChangePolicy",
        "SELinuxMount",
        "SELinuxMountReadWriteOncePod",
        "ServiceAccountNodeAudienceRestriction",
        "SizeMemoryBackedVolumes",
        "SupplementalGroupsPolicy",
        "SystemdWatchdog",
        "TopologyManagerPolicyAlphaOptions",
        "TopologyManagerPolicyBetaOptions",
        "TranslateStreamCloseWebsocketRequests",
        "UserNamespacesHostNetworkSupport",
        "UserNamespacesPodSecurityStandards",
        "UserNamespacesSupport",
        "VolumeAttributesClass",
        "WinDSR",
        "WinOverlay",
        "WindowsCPUAndMemoryAffinity",
        "WindowsGracefulNodeShutdown",
        "WindowsHostNetwork",
    }
)

#: Every gate that a configuration may name, those first that change a decision.
KNOWN_GATES: Final = (*GATES, *_WHOLE_STAGES, *sorted(LOCKED_ON), *sorted(IGNORED))

"""The configuration: every key of the kubelet that the agent has, and the section `agent`.

The keys here have the names, values and defaults of the kubelet (KubeletConfiguration,
kubelet.config.k8s.io/v1beta1), so that settings can be carried over. A configuration is read,
written and explained by these declarations. `agent.config.load` makes a `Config` of a
file, `agent.config.resolve` makes the policy on a host of a `Config`. Durations are seconds.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.config.agent import AgentConfig
from agent.config.amounts import (
    EVICTION_THRESHOLDS,
    MEMORY_AVAILABLE,
    RESERVED_AMOUNTS,
    RESERVED_MEMORY,
    MemoryReservation,
    Threshold,
)
from agent.config.durations import period
from agent.config.gates import MEMORY_QOS, gate_meanings, gates_of, memory_qos_is_on
from agent.config.keys import Section, key, section, switch
from agent.config.kinds import (
    gate_switches,
    marker,
    one_of,
    one_of_any_case,
    option_texts,
    or_empty,
    some_of,
    whole_number,
)
from agent.config.policy_options import CPU_OPTIONS, TOPOLOGY_OPTIONS, cpu_options, prefers_closest
from agent.config.text_kinds import CGROUP, CPU_LIST, FRACTION, OPTIONAL_PATH, version_of
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicyOptions,
    FeatureGates,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyPolicy,
)
from agent.managers.versions import NEWEST, KubernetesVersion, before, since
from agent.pods.model import CPU
from agent.pods.quantity import ZERO, Quantity
from agent.values import KeyChoice
from agent.yaml import DocumentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.managers.versions import VersionRules
    from sysfs.mask import Mask

#: The key that says whose rules hold, and the subject of conditions about it.
VERSION_KEY: Final = "kubernetesVersion"
_DEFAULT_MAX_PODS: Final = 110
_MAX_INT32: Final = (1 << 31) - 1
_ANY_VERSION: Final = or_empty(version_of(KubernetesVersion), None)


def _throttles_no_memory(rules: VersionRules) -> bool:
    return rules.memory_throttling_factor is None


_LAST_THROTTLING: Final = before(_throttles_no_memory)


class CgroupDriver(KeyChoice):
    """`cgroupDriver`."""

    SYSTEMD = "systemd", "slices over D-Bus"
    CGROUPFS = "cgroupfs", "directories"


class MemoryReservationPolicy(KeyChoice):
    """`memoryReservationPolicy`."""

    NONE = "None", "the kernel keeps none"
    TIERED = (
        "TieredReservation",
        "what pods and containers request is memory.min (Guaranteed) or memory.low (Burstable)",
    )


class NodeAllocatable(KeyChoice):
    """An item of `enforceNodeAllocatable`."""

    PODS = (
        "pods",
        (
            "kubepods, the cgroup of all pods: memory.max, cpu.weight, pids.max and hugetlb.*.max, "
            ".rsvd.max are the capacity less the reservations, memory also less huge pages unless "
            "these count as memory (memory_hugetlb_accounting)"
        ),
    )
    NONE = "none", "nothing: kubepods has the whole capacity"
    SYSTEM_RESERVED = "system-reserved", "changes nothing"
    KUBE_RESERVED = "kube-reserved", "changes nothing"
    SYSTEM_RESERVED_COMPRESSIBLE = "system-reserved-compressible", "changes nothing"
    KUBE_RESERVED_COMPRESSIBLE = "kube-reserved-compressible", "changes nothing"


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
    """Everything that can be configured."""

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
    )
    cpu_manager_policy_options: Mapping[str, str] = key(
        MappingProxyType({}),
        option_texts({name: option.meaning for name, option in CPU_OPTIONS.items()}),
        'How the policy static chooses CPUs; no other takes options. Values are "true" or "false".',
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
        "Whether quotas (cpu.max) enforce limits. Beside a kubelet the kubelet sets quotas.",
        default=True,
        name="cpuCFSQuota",
    )
    cpu_cfs_quota_period: float = key(
        0.1,
        period(0.001, 1.0),
        "The period of a quota. A quota is 1 ms at least, so that a short period gives small "
        "limits more CPU time than they say.",
        name="cpuCFSQuotaPeriod",
    )
    memory_manager_policy: MemoryManagerPolicy = key(
        MemoryManagerPolicy.NONE,
        one_of_any_case(MemoryManagerPolicy, {"besteffort": "BestEffort is for Windows"}),
        "Whether containers get memory of certain NUMA nodes.",
        title="Memory",
    )
    reserved_memory: tuple[MemoryReservation, ...] = key(
        (),
        RESERVED_MEMORY,
        "What is kept for the system, by NUMA node and memory type (memory, hugepages-2Mi, "
        "...), together exactly systemReserved + kubeReserved + evictionHard memory.available. "
        "Left empty, the nodes that have CPUs share the amount by the memory they have; beside "
        "memory-only nodes, up to half of it.",
        example="- numaNode: 0\n  limits: {memory: 1Gi}\n",
    )
    memory_reservation_policy: MemoryReservationPolicy = key(
        MemoryReservationPolicy.NONE,
        one_of(MemoryReservationPolicy),
        "Whether the kernel keeps the memory that pods request (KEP-2570). Beside a kubelet this "
        "and memoryThrottlingFactor are the kubelet's.",
    )
    memory_throttling_factor: float | None = key(
        None,
        FRACTION,
        "The factor, such as 0.9, of memory.high = request + factor x (limit - request), above "
        "which a container that is not Guaranteed is slowed down; what is allocatable stands for "
        'a limit that is missing. "" slows none down, as kubelets from '
        f"{since(_throttles_no_memory)} on; with kubernetesVersion {_LAST_THROTTLING} it is "
        f"{_LAST_THROTTLING.rules.memory_throttling_factor} where the feature gate {MEMORY_QOS} "
        "is on.",
    )
    topology_manager_policy: TopologyManagerPolicy = key(
        TopologyManagerPolicy.NONE,
        one_of(TopologyManagerPolicy),
        "How CPUs, memory and devices are aligned to NUMA nodes together.",
        title="Topology",
    )
    topology_manager_scope: TopologyManagerScope = key(
        TopologyManagerScope.CONTAINER,
        one_of(TopologyManagerScope),
        "What is aligned together: docs/scopes.md.",
    )
    topology_manager_policy_options: Mapping[str, str] = key(
        MappingProxyType({}),
        option_texts({name: option.meaning for name, option in TOPOLOGY_OPTIONS.items()}),
        "How a topologyManagerPolicy other than none chooses nodes.",
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
        "As systemReserved, and added to it: the needs of the container runtime and the like.",
    )
    enforce_node_allocatable: frozenset[NodeAllocatable] = key(
        frozenset({NodeAllocatable.PODS}),
        some_of(NodeAllocatable),
        "What is limited to its share of the host. Beside a kubelet this is the kubelet's.",
    )
    eviction_hard: Mapping[str, Threshold] = key(
        _KUBELET_EVICTION,
        EVICTION_THRESHOLDS,
        "Only memory.available matters, an amount or a share of the host's memory such as 5%: "
        "it is kept free beside the reservations. Nothing is evicted here.",
    )
    max_pods: int = key(
        _DEFAULT_MAX_PODS,
        whole_number(0, _MAX_INT32, zero_means=_DEFAULT_MAX_PODS),
        "The most pods of the host; 0 stands for the default. Their requests together do not "
        'exceed what is allocatable either, as "numawarden config check" shows.',
    )
    pods_per_core: int = key(
        0,
        whole_number(0, _MAX_INT32),
        "The most pods for each CPU of the host; 0 sets no limit beside maxPods.",
    )
    feature_gates: Mapping[str, bool] = key(
        MappingProxyType({}),
        gate_switches(gate_meanings()),
        "Feature gates by the names of Kubernetes, with the defaults of kubernetesVersion. Any "
        "other gate changes nothing, as a note of `config check` and of the agent's start says.",
        title="Features",
    )
    kubernetes_version: KubernetesVersion | None = key(
        None,
        _ANY_VERSION,
        "The version of Kubernetes whose rules hold where versions differ (docs/differences.md). "
        f'With "" it is {NEWEST}, and beside a kubelet the kubelet\'s own (`kubelet --version`), '
        "also after an upgrade. Until the kubelet says its version, that of the last decision "
        "holds; for a version that is not known the nearest one does, which is a condition. "
        "`numawarden status` says whose rules hold and why. Pods keep what they have when the "
        "version changes. The kubelet has no such key.",
    )
    cgroup_driver: CgroupDriver = key(
        CgroupDriver.CGROUPFS,
        one_of(CgroupDriver),
        "Who makes the cgroups of pods. The container runtime has to use the same driver.",
        title="Cgroups and pods",
    )
    cgroup_root: str = key("/", CGROUP, "The cgroup below which the cgroups of pods stand.")
    static_pod_path: Path | None = key(
        None,
        OPTIONAL_PATH,
        'The directory of pod manifests ("The manifest directory" of docs/api.md); "" is none.',
    )
    agent: AgentConfig = section(AgentConfig(), title="The agent's own")

    @property
    def version(self) -> KubernetesVersion:
        """The version of Kubernetes whose rules hold, as far as the configuration says."""
        return self.kubernetes_version or NEWEST

    @property
    def gates(self) -> FeatureGates:
        """The feature gates that change a decision.

        Beside a kubelet the API server has filled in the pods' defaults, by its own version.
        """
        gates = gates_of(self.feature_gates, self.version)
        if self.beside_kubelet:
            return replace(gates, pod_level_resources_fix_defaulting=False)
        return gates

    @property
    def beside_kubelet(self) -> bool:
        """Whether pods, with their cgroups, come from this host's kubelet."""
        return self.agent.kubelet.enabled

    @property
    def memory_qos(self) -> bool:
        """Whether the feature gate of Memory QoS is on."""
        return memory_qos_is_on(self.feature_gates, self.version)

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
    def topology_policy(self) -> TopologyPolicy:
        """The settings of the topology manager as values."""
        return TopologyPolicy(
            self.topology_manager_policy,
            self.topology_manager_scope,
            prefers_closest(self.topology_manager_policy_options),
            self.agent.prefer_one_node,
            self.agent.placement,
        )

    @property
    def reserved_millicpus(self) -> int:
        """The thousandths of CPUs that `systemReserved` and `kubeReserved` keep."""
        amounts = (self.system_reserved.get(CPU, ZERO), self.kube_reserved.get(CPU, ZERO))
        return (amounts[0] + amounts[1]).milli_value


class ConfigError(DocumentError):
    """A configuration was rejected; `problems` holds every mistake in it with path and line."""

    what = "configuration"

"""The keys that a kubelet has too (KubeletConfiguration, kubelet.config.k8s.io/v1beta1).

Names, values and defaults are the kubelet's, so that settings can be carried over.
"""

from __future__ import annotations

from typing import Final

from agent.config.features import (
    ALIGN_BY_SOCKET,
    ALIGN_BY_UNCORE,
    CPU_OPTIONS,
    DISTRIBUTE_ACROSS_CORES,
    DISTRIBUTE_ACROSS_NUMA,
    FULL_PCPUS_ONLY,
    MAX_NODES,
    PREFER_CLOSEST,
    STRICT_RESERVATION,
    TOPOLOGY_OPTIONS,
)
from agent.config.keys.amounts import EvictionThresholds, NodeReservations, ReservedAmounts
from agent.config.keys.key import Key, KeyGroup
from agent.config.keys.names import GateSwitches, OptionTexts
from agent.config.keys.scalars import (
    CgroupPath,
    CpuList,
    OneOf,
    OneOfAnyCase,
    OptionalPath,
    Period,
    WholeNumber,
)
from agent.config.model import DEFAULT_MAX_PODS, CgroupDriver
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)

_MAX_INT32: Final = (1 << 31) - 1
_SHORTEST_PERIOD: Final = 0.1
_LONGEST_PERIOD: Final = 86400.0

_CPUS: Final = KeyGroup(
    "CPUs",
    (
        Key(
            "cpuManagerPolicy",
            OneOf(CpuManagerPolicy),
            since="0.1.0",
            help="Whether containers get CPUs of their own.",
            values={
                CpuManagerPolicy.NONE: "all containers share all CPUs",
                CpuManagerPolicy.STATIC: "containers of Guaranteed pods that ask for whole CPUs "
                "get CPUs of their own",
            },
        ),
        Key(
            "cpuManagerPolicyOptions",
            OptionTexts(CPU_OPTIONS),
            since="0.1.0",
            help='How the static policy chooses CPUs. Values are "true" or "false". '
            f"{DISTRIBUTE_ACROSS_CORES} excludes {FULL_PCPUS_ONLY}, {DISTRIBUTE_ACROSS_NUMA} and "
            f"{ALIGN_BY_UNCORE}; the latter two exclude each other; {ALIGN_BY_SOCKET} excludes "
            "topologyManagerPolicy single-numa-node. The policy none takes no options.",
            values={
                FULL_PCPUS_ONLY: "only whole physical cores; reject what would split one. Of a "
                "pod-level budget exclusive containers share no core either where its cores "
                "suffice",
                DISTRIBUTE_ACROSS_NUMA: "spread evenly when more than one NUMA node is needed",
                STRICT_RESERVATION: "keep shared containers off the reserved CPUs as well",
                ALIGN_BY_UNCORE: "keep a container within one last level cache where possible",
                ALIGN_BY_SOCKET: "align to sockets, and keep to one where one has room; without a "
                "topologyManagerPolicy CPUs only (gate CPUManagerPolicyAlphaOptions)",
                DISTRIBUTE_ACROSS_CORES: "spread over cores (gate CPUManagerPolicyAlphaOptions)",
            },
        ),
        Key(
            "cpuManagerReconcilePeriod",
            Period(_SHORTEST_PERIOD, _LONGEST_PERIOD),
            since="0.1.0",
            help="How often the kernel's settings are compared with what was decided, and "
            "repaired.",
        ),
        Key(
            "reservedSystemCPUs",
            CpuList(),
            since="0.1.0",
            help="The CPUs kept for the system, such as 0-1,32-33: they are never given "
            'exclusively. Without a list ("" is none) as many CPUs are kept as systemReserved and '
            "kubeReserved ask for, rounded up and chosen as for a container. The static policy "
            "needs one or the other; where both are given they have to agree.",
        ),
    ),
)

_MEMORY: Final = KeyGroup(
    "Memory",
    (
        Key(
            "memoryManagerPolicy",
            OneOfAnyCase(MemoryManagerPolicy, (("besteffort", "BestEffort is for Windows"),)),
            since="0.1.0",
            help="Whether containers get memory of certain NUMA nodes. Any letter case is "
            "accepted.",
            values={
                MemoryManagerPolicy.NONE: "memory is not pinned",
                MemoryManagerPolicy.STATIC: "containers of Guaranteed pods get memory and huge "
                "pages on aligned NUMA nodes",
            },
        ),
        Key(
            "reservedMemory",
            NodeReservations(),
            since="0.1.0",
            help="What is kept for the system, by NUMA node and memory type (memory, "
            "hugepages-2Mi, ...). For each type the nodes together have to reserve exactly "
            "systemReserved + kubeReserved + evictionHard memory.available. Left empty, this is "
            "derived: the nodes that have CPUs share the amount by the memory they have; "
            '"numawarden config check" shows the result.',
            example="- numaNode: 0\n  limits: {memory: 1Gi}\n",
        ),
    ),
)

_TOPOLOGY: Final = KeyGroup(
    "Topology",
    (
        Key(
            "topologyManagerPolicy",
            OneOf(TopologyManagerPolicy),
            since="0.1.0",
            help="What holds for the NUMA nodes of CPUs, memory and devices together.",
            values={
                TopologyManagerPolicy.NONE: "the managers choose for themselves",
                TopologyManagerPolicy.BEST_EFFORT: "align CPUs, memory and devices where possible",
                TopologyManagerPolicy.RESTRICTED: "reject what cannot be aligned on the fewest "
                "possible NUMA nodes",
                TopologyManagerPolicy.SINGLE_NUMA_NODE: "reject what does not fit one NUMA node",
            },
        ),
        Key(
            "topologyManagerScope",
            OneOf(TopologyManagerScope),
            since="0.1.0",
            help="What is aligned together. Which scope to use, and the same pods under both: "
            "docs/scopes.md. Switching hosts with pods: docs/rollout.md.",
            values={
                TopologyManagerScope.CONTAINER: "every container is aligned for itself",
                TopologyManagerScope.POD: "all containers of a pod are aligned together; with "
                "pod-level resources the pod gets one budget, of which its containers get "
                "exclusive parts or share the rest (KEP-5526)",
            },
        ),
        Key(
            "topologyManagerPolicyOptions",
            OptionTexts(TOPOLOGY_OPTIONS),
            since="0.1.0",
            help="How a topologyManagerPolicy other than none chooses nodes.",
            values={
                PREFER_CLOSEST: "among equals choose nodes that are near each other",
                MAX_NODES: "accepted (8 or more) and not needed; the number of nodes has no limit",
            },
        ),
    ),
)

_RESERVATIONS: Final = KeyGroup(
    "Reservations",
    (
        Key(
            "systemReserved",
            ReservedAmounts(),
            since="0.1.0",
            help="What the system and the node's own services need. cpu and memory (and "
            "hugepages-*) matter here; ephemeral-storage and pid are accepted for the kubelet's "
            "sake.",
            example='cpu: "1"\nmemory: 1Gi\n',
        ),
        Key(
            "kubeReserved",
            ReservedAmounts(),
            since="0.1.0",
            help="The same for the container runtime and other Kubernetes daemons; the amounts "
            "are added to those of systemReserved.",
        ),
        Key(
            "evictionHard",
            EvictionThresholds(),
            since="0.1.0",
            help="Of the eviction thresholds only memory.available matters: an amount, or a share "
            "of the host's memory such as 5%. This memory is kept free beside the reservations. "
            "Nothing is evicted here; other signals are accepted for the kubelet's sake.",
        ),
        Key(
            "maxPods",
            WholeNumber(0, _MAX_INT32, zero_means=DEFAULT_MAX_PODS),
            since="0.1.0",
            help="How many pods the host has at most. The requests of all pods together never "
            "exceed what is allocatable either: the CPUs and the memory of the host less the "
            "reservations (a list of reservedSystemCPUs wins over amounts of cpu), its huge pages "
            'and the healthy devices; "numawarden config check" shows what is allocatable.',
            remark="0 stands for the default",
        ),
        Key(
            "podsPerCore",
            WholeNumber(0, _MAX_INT32),
            since="0.1.0",
            help="How many pods the host has at most for each of its CPUs; 0 sets no limit beside "
            "maxPods.",
        ),
    ),
)

_FEATURES: Final = KeyGroup(
    "Features",
    (
        Key(
            "featureGates",
            GateSwitches(),
            since="0.1.0",
            help="Feature gates by the names of Kubernetes v1.36, with its defaults for those that "
            "are not named. Other gates of a kubelet than these are accepted and change nothing.",
            values={
                "PodLevelResources": "spec.resources of pods; default: true",
                "PodLevelResourceManagers": "exclusive parts of them (KEP-5526); default: false",
                "DisableCPUQuotaWithExclusiveCPUs": "no CPU quota on exclusive CPUs; default: true",
                "CPUManagerPolicyAlphaOptions": "see cpuManagerPolicyOptions; default: false",
                "CPUManagerPolicyBetaOptions": "see cpuManagerPolicyOptions; default: true",
                "AllAlpha": "switches the gates of stage alpha that are not named",
                "AllBeta": "switches the gates of stage beta that are not named",
            },
        ),
    ),
)

_CGROUPS_AND_PODS: Final = KeyGroup(
    "Cgroups and pods",
    (
        Key(
            "cgroupDriver",
            OneOf(CgroupDriver),
            since="0.1.0",
            help="Who makes the cgroups of pods. The container runtime has to use the same driver.",
            values={
                CgroupDriver.SYSTEMD: "slices over D-Bus",
                CgroupDriver.CGROUPFS: "directories",
            },
        ),
        Key(
            "cgroupRoot",
            CgroupPath(),
            since="0.1.0",
            help="The cgroup below which the cgroups of pods stand, as a path within the cgroup "
            "file system.",
        ),
        Key(
            "staticPodPath",
            OptionalPath(),
            since="0.1.0",
            help="The directory of pod manifests: each file in it is one pod that is to run. The "
            "directory, its files and the directories above it have to belong to root and be "
            'writable by no other user. "" is none: pods come over the socket alone.',
        ),
    ),
)

KUBELET_GROUPS: Final = (_CPUS, _MEMORY, _TOPOLOGY, _RESERVATIONS, _FEATURES, _CGROUPS_AND_PODS)

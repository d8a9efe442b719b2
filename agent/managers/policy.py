"""The configured policy: the kubelet's policies, options, scopes, reservations and gates."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.versions import NEWEST, KubernetesVersion
from agent.pods.model import ANY_MEMORY, MEMORY_CLASSES, Placement, QosClass, allows_memory
from agent.values import KeyChoice, Saved
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping


class CpuManagerPolicy(KeyChoice):
    """`cpuManagerPolicy`."""

    NONE = "none", "all containers share all CPUs"
    STATIC = "static", "Guaranteed pods' containers that ask for whole CPUs get their own"


class MemoryManagerPolicy(KeyChoice):
    """`memoryManagerPolicy`."""

    NONE = "None", "memory is not pinned"
    STATIC = "Static", "Guaranteed pods' containers get memory and huge pages on aligned nodes"


class TopologyManagerPolicy(KeyChoice):
    """`topologyManagerPolicy`."""

    NONE = "none", "the managers choose for themselves"
    BEST_EFFORT = "best-effort", "align CPUs, memory and devices where possible"
    RESTRICTED = "restricted", "reject what cannot be aligned on the fewest possible NUMA nodes"
    SINGLE_NUMA_NODE = "single-numa-node", "reject what does not fit one NUMA node"


class TopologyManagerScope(KeyChoice):
    """`topologyManagerScope`: what one alignment decision is made for."""

    CONTAINER = "container", "every container is aligned for itself"
    POD = (
        "pod",
        "a pod's containers are aligned together; pod-level resources are one budget (KEP-5526)",
    )


class IsolationMode(KeyChoice):
    """Which pods with exclusive CPUs have an item of isolation."""

    NEVER = "never"
    ASKED = "asked"
    ALWAYS = "always"


class IsolcpusUse(KeyChoice):
    """`agent.isolatedCPUs`: what CPUs of `isolcpus=` of the kernel's command line are for."""

    IGNORED = "ignored", "as any others, as in the kubelet"
    EXCLUSIVE = "exclusive", "exclusive CPUs come from them first, shared ones never"


class PoolMemory(KeyChoice):
    """Where the memory of pods in a pool is; pinned memory stays as it is."""

    FREE = "free", "as for pods in no pool"
    PREFERRED = (
        "preferred",
        "on the nodes of the pool's CPUs while some is free there (see docs/containers.md)",
    )
    BOUND = "bound", "on the nodes of the pool's CPUs, however little is free"


class FeatureGates(Struct, frozen=True):
    """The kubelet feature gates that change a decision, with the defaults of `NEWEST`."""

    pod_level_resources: bool = True
    pod_level_resource_managers: bool = False
    pod_level_resources_fix_defaulting: bool = True
    disable_cpu_quota_with_exclusive_cpus: bool = True
    cpu_manager_policy_alpha_options: bool = False
    cpu_manager_policy_beta_options: bool = True


class CpuPolicyOptions(Struct, frozen=True):
    """`cpuManagerPolicyOptions` of the static policy."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False

    @property
    def asks_for_places(self) -> bool:
        """Whether an option says how CPUs lie on cores, caches and nodes."""
        return (
            self.full_pcpus_only
            or self.distribute_cpus_across_numa
            or self.distribute_cpus_across_cores
            or self.prefer_align_cpus_by_uncorecache
        )


class CpuPolicy(Struct, frozen=True):
    """The CPU manager's settings; `reserved` CPUs are never allocated exclusively.

    `idle_siblings` says for which pods the sibling threads of exclusive CPUs stay idle.
    """

    policy: CpuManagerPolicy = CpuManagerPolicy.NONE
    options: CpuPolicyOptions = CpuPolicyOptions()
    reserved: Mask = EMPTY
    idle_siblings: IsolationMode = IsolationMode.NEVER
    #: The CPUs of `isolcpus=`, on which the kernel spreads no threads.
    isolated: Mask = EMPTY
    isolated_for: IsolcpusUse = IsolcpusUse.IGNORED
    #: The CPUs on which a decision is tried (`EffectivePolicy.on`); None: all.
    only: Mask | None = None

    @property
    def unshared(self) -> Mask:
        """The CPUs that are kept out of the node's shared pool, unless it would be empty."""
        return self.isolated if self.isolated_for is IsolcpusUse.EXCLUSIVE else EMPTY


class MemoryPolicy(Struct, frozen=True):
    """The memory manager's settings; `reserved` is bytes by type by node (`reservedMemory`).

    `classes` are those of all nodes with memory, "" where unknown. `usual_classes` is
    `agent.isolation.memory`: `never`, `asked`, or the classes for pods that ask for none.
    """

    policy: MemoryManagerPolicy = MemoryManagerPolicy.NONE
    reserved: Mapping[int, Mapping[str, int]] = MappingProxyType({})
    classes: Mapping[int, str] = MappingProxyType({})
    usual_classes: str = IsolationMode.NEVER

    def classes_for(self, isolation: Mapping[str, str]) -> str:
        """Return the classes of memory that a pod may use, "" for any; `isolation` is by item."""
        if self.usual_classes == IsolationMode.NEVER:
            return ""
        usual = "" if self.usual_classes == IsolationMode.ASKED else self.usual_classes
        classes = isolation.get(MEMORY_CLASSES, usual)
        return "" if classes == ANY_MEMORY else classes

    def nodes_of(self, classes: str) -> Mask:
        """Return the nodes with memory of these classes."""
        found = self.classes.items()
        return Mask.from_ids(node for node, name in found if allows_memory(classes, name))


class TopologyPolicy(Struct, frozen=True):
    """The topology manager's settings."""

    policy: TopologyManagerPolicy = TopologyManagerPolicy.NONE
    scope: TopologyManagerScope = TopologyManagerScope.CONTAINER
    prefer_closest_numa_nodes: bool = False
    #: Under best-effort: CPUs and memory on the fewest nodes, rather than some of them near devices
    #: (`agent.preferOneNode`).
    prefer_one_node: bool = False
    placement: Placement = Placement.PACKED

    @property
    def is_pod_scope(self) -> bool:
        """Whether pods are aligned as a whole; policy none has no scope, whatever is configured."""
        aligns = self.policy is not TopologyManagerPolicy.NONE
        return aligns and self.scope is TopologyManagerScope.POD


class PluginDevice(Struct, frozen=True, gc=False):
    """One device of the inventory; an empty `nodes` means no NUMA locality is known.

    `away`: it is not healthy because its provider is gone for a while, as a plugin that restarts;
    nothing is known against the device.
    """

    id: str
    nodes: Mask = EMPTY
    healthy: bool = True
    away: bool = False


class Pool(Struct, frozen=True):
    """One pool of shared CPUs (`agent.pools`)."""

    name: str
    #: The host may lack some of them.
    cpus: Mask
    #: The pods that are in it without naming it: of these namespaces, then of these classes.
    namespaces: tuple[str, ...] = ()
    qos_classes: frozenset[QosClass] = frozenset()
    memory: PoolMemory = PoolMemory.FREE


class NodeFit(Struct, frozen=True):
    """What all pods together may request (the kubelet's node allocatable and `maxPods`).

    `reserved` is reserved on the whole node: `cpu` in millicores, memory types in bytes.
    `pods_per_core` 0 means no limit. `ignored` are extended resources that other programs provide,
    or `memory` (`agent.ignoredResources`). `beside_kubelet`: so are all extended resources that the
    agent does not have, since the kubelet of this host checks them (`agent.kubelet`).
    """

    reserved: Mapping[str, int] = MappingProxyType({})
    max_pods: int = 110
    pods_per_core: int = 0
    ignored: frozenset[str] = frozenset()
    beside_kubelet: bool = False


class Cordon(Saved, frozen=True):
    """From what nothing new is allocated, while pods keep what they have.

    `cpus` are CPUs, `nodes` NUMA nodes with all of their CPUs, their memory, and the devices that
    are on no other node. The agent's operator sets it at run time, for maintenance.
    """

    cpus: Mask = EMPTY
    nodes: Mask = EMPTY

    def __bool__(self) -> bool:
        """Return whether anything is cordoned."""
        return bool(self.cpus or self.nodes)

    def __or__(self, other: Cordon) -> Cordon:
        """Return the cordon of what either has."""
        return Cordon(self.cpus | other.cpus, self.nodes | other.nodes)

    def __str__(self) -> str:
        """Return what is cordoned, in a few words."""
        nodes = f"node{'s' if len(self.nodes) > 1 else ''} {self.nodes}" if self.nodes else ""
        cpus = f"CPU{'s' if len(self.cpus) > 1 else ''} {self.cpus}" if self.cpus else ""
        return " and ".join(filter(None, (nodes, cpus))) or "nothing"


NO_CORDON: Final = Cordon()


class Policy(Struct, frozen=True):
    """What a decision depends on, besides machine and ledger: the configuration and the cordon.

    `fit` None: requests are not compared with the node's allocatable. `preferring` are the
    resources of whose devices a device plugin is asked which ones it prefers.
    """

    cpu: CpuPolicy = CpuPolicy()
    memory: MemoryPolicy = MemoryPolicy()
    topology: TopologyPolicy = TopologyPolicy()
    gates: FeatureGates = FeatureGates()
    devices: Mapping[str, tuple[PluginDevice, ...]] = MappingProxyType({})
    preferring: frozenset[str] = frozenset()
    fit: NodeFit | None = None
    cordon: Cordon = NO_CORDON
    version: KubernetesVersion = NEWEST
    pools: tuple[Pool, ...] = ()

    @property
    def pod_level_managers(self) -> bool:
        """Whether pod-level resources are managed (KEP-5526: both gates are needed)."""
        return self.gates.pod_level_resources and self.gates.pod_level_resource_managers

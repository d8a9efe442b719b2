"""The documents of the map (`GET /v1/map`): every CPU, node and device of a host with who has it.

`agent.api.map` makes them; the text and the page draw them.
"""

from __future__ import annotations

from enum import StrEnum

from agent.api.documents.document import Document
from agent.api.documents.status import PolicyDocument  # noqa: TC001  # msgspec reads annotations


class CpuUse(StrEnum):
    """What a CPU is used for: the first of these that applies.

    `offline`; `withheld` (online, but no pod can have it: `sysfs.host.WithheldCpus`); `online` (the
    map was made without an agent); `exclusive` (a container has it alone); `pod` (in a pod's shared
    pool, unused budget or idle siblings); `cordoned`; `reserved`; `free` (of isolcpus, for
    exclusive use alone); `shared` (in the node's pool).
    """

    OFFLINE = "offline"
    WITHHELD = "withheld"
    ONLINE = "online"
    EXCLUSIVE = "exclusive"
    POD = "pod"
    CORDONED = "cordoned"
    RESERVED = "reserved"
    FREE = "free"
    SHARED = "shared"


class MapOwnerDocument(Document, frozen=True):
    """The owner of a CPU or device."""

    #: The pod's.
    uid: str
    #: Null where the containers of the pod share the CPU.
    container: str | None = None
    #: The pod keeps the CPU idle: it is a sibling of a CPU of the pod.
    idle: bool = False


class MapCpuDocument(Document, frozen=True):
    """One CPU; group ids as in `TopologyView`."""

    id: int
    use: CpuUse
    isolated: bool = False
    core: int | None = None
    die: int | None = None
    package: int | None = None
    node: int | None = None
    uncore: int | None = None
    kind: str = "standard"
    #: More than one where an import or a damaged checkpoint allocates the CPU twice. An offline or
    #: withheld CPU keeps its owners.
    owners: tuple[MapOwnerDocument, ...] = ()
    #: Nothing new is allocated from the CPU. Its owners keep it.
    cordoned: bool = False


class MapMemoryDocument(Document, frozen=True):
    """One memory type of one node, in bytes."""

    #: `memory`, or `hugepages-2Mi` and so on.
    type: str
    #: Null where the host does not report it. That of `memory` includes huge pages.
    total: int | None
    #: What no pod can have: reservations, and of `memory` huge pages.
    reserved: int = 0
    #: Null where no memory manager allocates by node.
    allocated: int | None = None

    @property
    def free(self) -> int | None:
        """The bytes that are neither reserved nor allocated; None if they are not known."""
        if self.total is None or self.allocated is None:
            return None
        return max(self.total - self.reserved - self.allocated, 0)


class MapNodeDocument(Document, frozen=True):
    """One NUMA node."""

    id: int
    #: The online CPUs.
    cpus: str
    memory: tuple[MapMemoryDocument, ...]
    #: By node id as text.
    distances: dict[str, int]
    #: The memory tier, a smaller number is faster; null on a host without tiers.
    tier: int | None = None
    #: `dram`, `hbm`, `cxl`, `pmem`, `gpu` or a class of the configuration; "": not known.
    memory_class: str = ""
    #: Nothing new is allocated from the node.
    cordoned: bool = False


class MapDeviceDocument(Document, frozen=True):
    """One device of the host, or one that pods may ask for."""

    #: `pci` or `net` for a device of the host, `resource` for one that pods may ask for.
    kind: str
    #: That of the host's device, or the id of the resource's.
    name: str
    #: Empty where no node is known.
    nodes: str = ""
    #: The PCI address of a device of the host.
    address: str = ""
    #: The PCI class of a device of the host.
    device_class: str = ""
    #: The name of the extended resource.
    resource: str = ""
    healthy: bool = True
    owner: MapOwnerDocument | None = None
    #: A plugin of the kubelet beside the agent offers the device.
    kubelet: bool = False
    #: The `namespace/name` of a pod that got the device of the kubelet without the agent.
    pod: str = ""


class MapContainerDocument(Document, frozen=True):
    """One container of a pod."""

    name: str
    kind: str
    isolation: str
    #: Null for the node's shared pool.
    cpus: str | None
    mems: str


class MapPodDocument(Document, frozen=True):
    """One pod."""

    uid: str
    name: str
    namespace: str
    #: The CPUs that are not in the node's shared pool; "" for none.
    cpus: str
    containers: tuple[MapContainerDocument, ...]
    #: The containers that are to run and were not found in a cgroup for longer than a start takes.
    not_found: tuple[str, ...] = ()
    #: Why they were not found (`PodDocument.absence`).
    absence: str = ""
    #: Those of `cpus` that no container uses: siblings of the others.
    idle_cpus: str = ""
    #: Those of `cpus` that cgroups outside of the pod may use now.
    not_exclusive: str = ""
    #: The pool of shared CPUs (`agent.pools`) in which the pod runs, "" for none.
    pool: str = ""


class MapWarningDocument(Document, frozen=True):
    """Something in the map that needs attention."""

    #: `NotExclusive`, `SharedCore`, `RemoteMemory`, `AllocationInvalid`, or the reason of the
    #: condition `ContainersFound`.
    reason: str
    message: str
    #: The pods concerned.
    uids: tuple[str, ...] = ()
    cpus: str = ""


class MapDocument(Document, frozen=True):
    """The map of a host: every present CPU once, every node once, in ascending order."""

    cpus: tuple[MapCpuDocument, ...]
    nodes: tuple[MapNodeDocument, ...]
    #: The size of each uncore cache whose size is known, by its id as text.
    uncore_bytes: dict[str, int]
    devices: tuple[MapDeviceDocument, ...] = ()
    pods: tuple[MapPodDocument, ...] = ()
    #: Null in a map without an agent.
    policy: PolicyDocument | None = None
    #: The CPUs whose tick stops while one task runs (`nohz_full=`).
    nohz_full: str = ""
    #: The first of each reason.
    warnings: tuple[MapWarningDocument, ...] = ()
    #: How many other warnings there are.
    more_warnings: int = 0
    #: "" in a map without an agent.
    hostname: str = ""
    #: Unix time.
    time: float = 0.0

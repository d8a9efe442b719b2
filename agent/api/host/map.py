"""The map: every CPU, memory node and device of a host with who uses it (`GET /v1/map`).

A map without an agent (`numawarden topology`) has the host alone: no policy, no pods.
"""

from __future__ import annotations

from enum import StrEnum

from agent.api.documents import Document
from agent.api.status import PolicyDocument  # noqa: TC001  # msgspec reads the annotation


class CpuUse(StrEnum):
    """What a CPU is used for.

    `OFFLINE` goes before all others, then `EXCLUSIVE` (one container has it), `POD` (it belongs to
    a pod: its shared pool, or budget that no container may use now), `CORDONED`, `RESERVED` and
    `SHARED` (the node's shared pool). `ONLINE`: nothing is known of pods.
    """

    OFFLINE = "offline"
    EXCLUSIVE = "exclusive"
    POD = "pod"
    CORDONED = "cordoned"
    RESERVED = "reserved"
    SHARED = "shared"
    ONLINE = "online"


class MapOwnerDocument(Document, frozen=True):
    """The user of a CPU: a pod by its uid, and one container of it or (null) the pod's pool."""

    uid: str
    container: str | None = None


class MapCpuDocument(Document, frozen=True):
    """One CPU; group ids as in `TopologyView`.

    `owners` has one owner, or several if an import or a damaged checkpoint allocates a CPU twice.
    An offline CPU keeps its owners. `cordoned`: nothing new is allocated from the CPU, which may
    have owners still.
    """

    id: int
    use: CpuUse
    isolated: bool = False
    core: int | None = None
    die: int | None = None
    package: int | None = None
    node: int | None = None
    uncore: int | None = None
    kind: str = "standard"
    owners: tuple[MapOwnerDocument, ...] = ()
    cordoned: bool = False


class MapMemoryDocument(Document, frozen=True):
    """One memory type of one node, in bytes.

    `total` of type `memory` includes huge pages. `reserved` cannot be allocated: reservations and,
    of `memory`, huge pages. `allocated` is null where no memory manager allocates by node, `total`
    where the host does not report it. What is left is free.
    """

    type: str
    total: int | None
    reserved: int = 0
    allocated: int | None = None

    @property
    def free(self) -> int | None:
        """The bytes that are left, never negative; None if they are not known."""
        if self.total is None or self.allocated is None:
            return None
        return max(self.total - self.reserved - self.allocated, 0)


class MapNodeDocument(Document, frozen=True):
    """One NUMA node: its online CPUs as a list, its memory, its distances by node id as text.

    `tier` is the number of its memory tier, a smaller one is faster; null without tiers.
    `cordoned`: nothing new is allocated from the node.
    """

    id: int
    cpus: str
    memory: tuple[MapMemoryDocument, ...]
    distances: dict[str, int]
    tier: int | None = None
    cordoned: bool = False


class MapDeviceDocument(Document, frozen=True):
    """One device.

    Of the host: `kind` (`pci`, `net`), `name`, PCI `address` and class (`deviceClass`). Offered to
    pods: `kind` is `resource`, `resource` the name of the extended resource, `name` the id. `nodes`
    is empty where no node is known. `kubelet`: a plugin of the kubelet beside the agent offers it;
    `pod` is then the `namespace/name` of a pod that has it without an allocation of the agent.
    """

    kind: str
    name: str
    nodes: str = ""
    address: str = ""
    device_class: str = ""
    resource: str = ""
    healthy: bool = True
    owner: MapOwnerDocument | None = None
    kubelet: bool = False
    pod: str = ""


class MapContainerDocument(Document, frozen=True):
    """One container of a pod; `cpus` null: it runs in the node's shared pool."""

    name: str
    kind: str
    isolation: str
    cpus: str | None
    mems: str


class MapPodDocument(Document, frozen=True):
    """One pod; `cpus` are those that are in no shared pool of the node, "" if it has none.

    `not_found` are the containers that are to run and that were not found in a cgroup for longer
    than a start takes (`PodDocument.not_found`).
    """

    uid: str
    name: str
    namespace: str
    cpus: str
    containers: tuple[MapContainerDocument, ...]
    not_found: tuple[str, ...] = ()


class MapWarningDocument(Document, frozen=True):
    """One thing to look at.

    `reason` is `SharedCore`, `RemoteMemory`, `ContainerNotFound` or `AllocationInvalid`. `uids` are
    the pods concerned.
    """

    reason: str
    message: str
    uids: tuple[str, ...] = ()
    cpus: str = ""


class MapDocument(Document, frozen=True):
    """The map of a host: every present CPU once, every node once, in ascending order.

    `policy` is null in a map without an agent. `uncore_bytes` has the size of each uncore cache
    that is known, by its id as text. `warnings` has the first of each reason, `more_warnings`
    counts the others. `hostname` is the host's, "" in a map without an agent; `time` is the Unix
    time of the map.
    """

    cpus: tuple[MapCpuDocument, ...]
    nodes: tuple[MapNodeDocument, ...]
    uncore_bytes: dict[str, int]
    devices: tuple[MapDeviceDocument, ...] = ()
    pods: tuple[MapPodDocument, ...] = ()
    policy: PolicyDocument | None = None
    nohz_full: str = ""
    warnings: tuple[MapWarningDocument, ...] = ()
    more_warnings: int = 0
    hostname: str = ""
    time: float = 0.0

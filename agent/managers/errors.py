"""Why a manager cannot serve a request: errors with the facts as data and the kubelet's words.

A manager turns an error into a pod's rejection; at the start of the agent an error ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.amounts import size_text
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping


class ManagerError(Exception):
    """A manager cannot serve a request; `remedy` is "" where nothing is certain to help.

    Whether another request would be admitted, only a new decision shows.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class NodeDistancesError(ManagerError):
    """`prefer-closest-numa-nodes` needs distances that the host does not report."""

    def __init__(self, nodes: tuple[int, ...]) -> None:
        self.nodes = nodes
        super().__init__(
            "topology manager policy option prefer-closest-numa-nodes: no distances are known for"
            f" NUMA nodes {', '.join(map(str, nodes))}",
            "remove the option, or make sure that the host's firmware has a SLIT table"
            " (/sys/devices/system/node/node*/distance)",
        )


class MemoryDemand(Struct, frozen=True):
    """What was requested of the memory manager, and what was free, in bytes."""

    #: By memory type.
    requests: Mapping[str, int]
    #: By memory type and node.
    free: Mapping[str, Mapping[int, int]]

    @property
    def scarcest(self) -> str:
        """The type of which the node with the most free has the least, measured by the request."""

        def ratio(name: str) -> float:
            return max(self.free[name].values(), default=0) / max(self.requests[name], 1)

        return min(self.requests, key=ratio)

    def __str__(self) -> str:
        parts = (
            f"{size_text(size)} of {name} asked, free: "
            + ", ".join(f"node {n} {size_text(free)}" for n, free in self.free[name].items())
            for name, size in self.requests.items()
        )
        return "; ".join(parts)


class UnknownMemoryTypeError(ManagerError):
    """The request names a memory type (a huge page size) that no NUMA node has."""

    def __init__(self, memory_type: str, asked: int, known: tuple[str, ...]) -> None:
        self.memory_type = memory_type
        self.known = known
        super().__init__(
            f"[memorymanager] {size_text(asked)} of {memory_type} asked, but no NUMA node has that"
            f" type; the machine has {', '.join(known)}"
        )


class MemoryAssignmentError(ManagerError):
    """Memory cannot be allocated on `nodes` (bits; None: on any).

    `in_use` says which nodes cannot be joined to others.
    """

    #: The kubelet's message, and what the agent adds to it.
    kubelet_text = ""
    explanation = ""

    def __init__(self, demand: MemoryDemand, nodes: int | None = None, in_use: str = "") -> None:
        self.demand = demand
        self.nodes = nodes
        tried = "" if nodes is None else f" on NUMA nodes {Mask(nodes)}"
        why = f"{self.explanation}{in_use and f': {in_use}'}"
        super().__init__(f"[memorymanager] {self.kubelet_text}{tried}{why} ({demand})")


class NoDefaultHintError(MemoryAssignmentError):
    """No set of nodes that is compatible with the NUMA groups in use has enough free memory."""

    kubelet_text = (
        "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )


class NotPreferredDefaultHintError(MemoryAssignmentError):
    """The topology manager's alignment is preferred, but memory alone would need more nodes."""

    kubelet_text = "failed to find the default preferred hint"


class CannotExtendHintError(MemoryAssignmentError):
    """The aligned nodes have too little free memory, and no larger compatible set contains them."""

    kubelet_text = "failed to find NUMA nodes to extend the current topology hint"


class NotPreferredExtensionError(MemoryAssignmentError):
    """The aligned nodes have too little free memory, and no larger set is preferred."""

    kubelet_text = "failed to find the extended preferred hint"


class HintViolatesGroupsError(MemoryAssignmentError):
    """A node of the hint is already used alone or in another NUMA group."""

    kubelet_text = "preferred hint violates NUMA node allocation"
    explanation = ": a NUMA node cannot be used alone and in a NUMA group at the same time"


class DeviceAllocationError(ManagerError):
    """Devices cannot be allocated; `requested` and `available` are numbers of devices."""

    def __init__(self, resource: str, requested: int, available: int) -> None:
        self.resource = resource
        self.requested = requested
        self.available = available
        super().__init__(self._text())

    def _text(self) -> str:
        return (
            f"requested number of devices unavailable for {self.resource}."
            f" Requested: {self.requested}, Available: {self.available}"
        )


class NoHealthyDevicesError(DeviceAllocationError):
    """Every device of a resource is unhealthy."""

    def _text(self) -> str:
        return f"no healthy devices present; cannot allocate unhealthy devices {self.resource}"

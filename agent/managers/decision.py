"""The outcome of one admission: a new ledger or a rejection, with its explanation.

Beside it stand the values that explain or follow one: what an existing allocation violates
(`Violation`), advice, what is left for other pods, and the errors of the managers, each of which
has its facts as data.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from msgspec import Struct

from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.pods.model import full_name
from agent.pods.validation import find_warnings
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.metrics import CounterKey
    from agent.managers.topology.many_nodes import ProviderHints
    from agent.pods.model import Pod


#: The remedy where only another decision helps.
ADMIT_AGAIN: Final = "remove the pod and admit it again"


class Rule(StrEnum):
    """What an allocation violates: a key of the configuration, or a fact of the host."""

    CPU_ALLOCATED_TWICE = "CPU allocated twice"
    CPU_MISSING = "CPU missing"
    CPU_OFFLINE = "CPU offline"
    CPU_WITHHELD = "CPU withheld"
    CPU_POLICY = "cpuManagerPolicy"
    RESERVED_CPUS = "reservedSystemCPUs"
    FULL_PCPUS_ONLY = "full-pcpus-only"
    IDLE_SIBLINGS = "isolation.smt"
    SHARED_POOL = "shared pool"
    MEMORY_POLICY = "memoryManagerPolicy"
    MEMORY_NODE = "memory node missing"
    MEMORY_TYPE = "memory type missing"
    MEMORY_CLASS = "isolation.memory"
    MEMORY_CAPACITY = "memory capacity"
    DEVICE_ALLOCATED_TWICE = "device allocated twice"
    DEVICE_MISSING = "device missing"
    DEVICE_UNHEALTHY = "device unhealthy"
    POD_BUDGET = "pod-level budget"
    TOPOLOGY_POLICY = "topologyManagerPolicy"


class Violation(Struct, frozen=True):
    """An allocation that the current policy would not make.

    `rule` is a key of the configuration or a fact of the host, `pod` is namespace/name.
    """

    uid: str
    pod: str
    #: None for the pod as a whole.
    container: str | None
    #: A `Rule`, or one of the rules of a resource manager.
    rule: str
    #: One line, as is `remedy`.
    message: str
    remedy: str

    @classmethod
    def of(
        cls,
        allocation: PodAllocation,
        rule: str,
        message: str,
        remedy: str = ADMIT_AGAIN,
        container: str | None = None,
    ) -> Self:
        """Return a violation by an allocation."""
        return cls(allocation.uid, full_name(allocation), container, rule, message, remedy)

    def __str__(self) -> str:
        where = "" if self.container is None else f", container {self.container}"
        return f"pod {self.pod}{where}: {self.message} ({self.rule}); {self.remedy}"


class Reason(StrEnum):
    """Why a pod was rejected; the kubelet's reasons keep their names.

    `out_of` adds a reason for every resource of which the node has too little.
    """

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    UNEXPECTED = "UnexpectedAdmissionError"
    OTHER_SYSTEM = "PodOSNotSupported"
    INVALID = "InvalidPod"
    CONFLICT = "PodConflict"
    REQUIREMENT = "RequirementNotMet"


def out_of(resource: str) -> str:
    """Return the kubelet's reason for too little of a resource: `OutOfcpu`, `OutOfpods`."""
    return f"OutOf{resource}"


class Shortage(Struct, frozen=True):
    """A resource of which the node has too little left for a pod.

    `requested` is what other pods request, `allocatable` what all may request (None: the node does
    not offer the resource). What is no longer allocatable and pods still have (CPUs that are
    offline, devices that are gone) is in neither. The unit is millicores for `cpu`, else bytes,
    pods or devices.
    """

    resource: str
    asked: int
    allocatable: int | None
    requested: int


class Rejection(Struct, frozen=True):
    """Why a pod was rejected, for a program and a person.

    `reason` is a `Reason` or `out_of` a resource; `shortages` has every resource of which the node
    has too little, `resource` names the first. Otherwise `asked` is CPUs for `cpu`, bytes for
    memory types and a number of devices; `free` is the same unit by NUMA node. `container` is None
    when the pod as a whole was rejected.
    """

    reason: str
    message: str
    remedy: str = ""
    resource: str | None = None
    container: str | None = None
    asked: int | None = None
    free: Mapping[int, int] = MappingProxyType({})
    shortages: tuple[Shortage, ...] = ()

    def explain(self) -> Rejection:
        """Return this rejection, which is complete."""
        return self


class RejectionCause(Protocol):
    """Why a pod was rejected: a `Rejection`, or the facts to build a `Rejection` when needed."""

    def explain(self) -> Rejection:
        """Return the rejection; the same facts give the same."""
        ...


class Rejected(Exception):  # noqa: N818  (not an error of the program: the pod's rejection)
    """The pod cannot be admitted; `cause` says why."""

    def __init__(self, cause: RejectionCause) -> None:
        super().__init__()
        self.cause = cause

    def __str__(self) -> str:
        return self.cause.explain().message


def reject_if(cause: RejectionCause | None) -> None:
    """Raise `Rejected` if there is a cause."""
    if cause is not None:
        raise Rejected(cause)


class Unanswered(Exception):  # noqa: N818  (not an error: the decision is made with the answers)
    """The decision depends on what device plugins prefer; `questions` say on what."""

    def __init__(self, questions: tuple[Question, ...]) -> None:
        super().__init__()
        self.questions = questions


class UnadmittedMerge(Protocol):
    """Hints of which no alignment was admitted."""

    def best(self) -> Hint:
        """Return the alignment that is not admitted; the same hints give the same."""
        ...


#: The hints of each manager, by its name.
Offers: TypeAlias = "tuple[tuple[str, ProviderHints], ...]"


class UnaskedHints(Protocol):
    """Managers whose hints were not all needed."""

    @property
    def offers(self) -> Offers:
        """The hints of each manager."""
        ...


class HintTrace(Struct, frozen=True):
    """The hints of each provider for one container (None: the pod), and the merged hint.

    `alignment` is the hint or, where none was admitted, the hints to merge when it is read; `asked`
    are the hints or, where those of one provider ruled out every alignment, what asks for them.
    """

    container: str | None
    asked: Offers | UnaskedHints
    alignment: Hint | UnadmittedMerge = NO_AFFINITY
    admitted: bool = True

    @property
    def providers(self) -> Offers:
        """The hints of each provider, in the order in which they allocate."""
        return self.asked if isinstance(self.asked, tuple) else self.asked.offers

    @property
    def merged(self) -> Hint:
        """The merged hint, admitted or not."""
        return self.alignment if isinstance(self.alignment, Hint) else self.alignment.best()


class Eligibility(Struct, frozen=True):
    """Which managers may give one container resources of its own, and the reasons.

    `exclusive` is what it asks of the managers that may, in the managers' own types; `why` has the
    reason of every manager.
    """

    container: str
    exclusive: Mapping[str, Any]
    why: Mapping[str, str]


class Asked(Protocol):
    """What was asked for, under the policy of the decision."""

    def eligibility(self) -> tuple[Eligibility, ...]:
        """Return which containers may have exclusive resources, and why."""
        ...

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return a warning for each field of the pod that the feature gates leave out."""
        ...


class Question(Struct, frozen=True):
    """Which `size` of the `available` devices of a resource its device plugin prefers.

    The `required` ones are among them (device plugin API, GetPreferredAllocation).
    """

    resource: str
    available: frozenset[str]
    required: frozenset[str]
    size: int


#: The preferred ids by question; empty without a preference.
Answers: TypeAlias = "Mapping[Question, tuple[str, ...]]"
NO_ANSWERS: Final[Answers] = MappingProxyType({})


class Suspended(Protocol):
    """A decision that waits for answers."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """What has to be answered before the decision can be made."""
        ...

    def resume(self, answers: Answers) -> Decision:
        """Go on with the answers; the decision may be suspended again, with further questions."""
        ...


class Decision(Struct, frozen=True, dict=True):
    """Admitted (`allocation` set, `cause` and `rejection` None) or rejected (the reverse).

    Neither while it is `suspended`: it is made once its questions are answered. Nothing is reserved
    meanwhile.

    `ledger` is the ledger after the decision; a rejection returns the one it was given.
    `counters` are the increments of the kubelet's metrics by this admission. `pod` is what was
    decided on, where resource managers were to be asked.
    """

    uid: str
    ledger: Ledger
    allocation: PodAllocation | None = None
    cause: RejectionCause | None = None
    hints: tuple[HintTrace, ...] = ()
    asked: Asked | None = None
    counters: Mapping[CounterKey, int] = MappingProxyType({})
    already_admitted: bool = False
    pod: Pod | None = None
    suspended: Suspended | None = None

    @cached_property
    def eligibility(self) -> tuple[Eligibility, ...]:
        """Which containers may have exclusive resources, and why; worked out when first read."""
        return () if self.asked is None else self.asked.eligibility()

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """The fields of the pod that probably do not mean what their author intended."""
        dropped = () if self.asked is None else self.asked.dropped
        return dropped if self.pod is None else (*dropped, *find_warnings(self.pod))

    @cached_property
    def rejection(self) -> Rejection | None:
        """Why the pod was rejected, built on first access; None when it was admitted."""
        return None if self.cause is None else self.cause.explain()

    @property
    def admitted(self) -> bool:
        """Whether the pod was admitted."""
        return self.allocation is not None


class AdviceKind(StrEnum):
    """What is changed: nothing, the cordon, the pod itself, other pods, or the policy."""

    #: Nothing: the pod would be admitted as it is.
    AGAIN = "again"
    UNCORDON = "uncordon"
    #: A larger pod-level budget, so that the containers that share it have something.
    BUDGET = "budget"
    #: Limits that equal requests, so that containers may have CPUs of their own.
    GUARANTEED = "guaranteed"
    #: Without an annotation that demands more.
    ANNOTATION = "annotation"
    REQUEST = "request"
    END = "end"
    POLICY = "policy"


class Advice(Struct, frozen=True):
    """One change with which the pod would be admitted: it was tried.

    `kind` is `again` (the pod would be admitted as it is), `request` (`amount` of `resource` in
    `container`, null: of the pod-level resources; CPUs in millicores), `end` (the pods of `uids`
    end), `annotation` (`key` is left out) or `policy` (`key` of the configuration is `value`). With
    the last two, `loss` is what the pod would not get.
    """

    #: An `AdviceKind`, or that of a later release.
    kind: str
    text: str
    container: str | None = None
    resource: str = ""
    #: CPUs in millicores, memory in bytes; of a budget that of the first resource.
    amount: int = 0
    uids: tuple[str, ...] = ()
    key: str = ""
    #: Of an uncordon, what is cordoned.
    value: str = ""
    loss: str = ""


class FreeCpus(Struct, frozen=True, rename="camel"):
    """The CPUs that may still be allocated exclusively.

    `wholeCores` are those in physical cores of which every CPU is free, `onOneNode` the most that
    one NUMA node has. `fragmentation` (0 to 1) is the share that one request on one node cannot get
    of what would fit one node: 1 - onOneNode / min(free, the most that a node has without pods).
    """

    free: int
    whole_cores: int
    on_one_node: int
    #: 0 on an empty host, and where nothing is free.
    fragmentation: float


_UNIT: Final = 1024


class ManagerError(Exception):
    """A manager cannot serve a request; `remedy` is "" where no remedy is certain.

    Whether a change of a pod would help is not known before the pod is decided again.
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
    """The request to the memory manager and the free memory: bytes by type, and by node."""

    requests: Mapping[str, int]
    free: Mapping[str, Mapping[int, int]]

    @property
    def scarcest(self) -> str:
        """The memory type with the smallest ratio of free (on its best node) to requested bytes."""
        return min(self.requests, key=lambda name: self._roomiest(name) / self._asked(name))

    def __str__(self) -> str:
        parts = (
            f"{size_text(size)} of {name} asked, free: "
            + ", ".join(f"node {n} {size_text(free)}" for n, free in self.free[name].items())
            for name, size in self.requests.items()
        )
        return "; ".join(parts)

    def _roomiest(self, name: str) -> int:
        return max(self.free[name].values(), default=0)

    def _asked(self, name: str) -> int:
        return max(self.requests[name], 1)


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
    """Memory cannot be allocated; `kubelet_text` is the kubelet's message.

    `demand` has the requested and free amounts; `nodes` is the mask (bits) that was tried, None
    without a mask. `in_use` says which nodes cannot be joined to others.
    """

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


def cpus_text(count: int) -> str:
    """Return a number of CPUs for people: `1 CPU`, `2 CPUs`."""
    return f"{count} CPU" if count == 1 else f"{count} CPUs"


def nodes_text(nodes: Mask) -> str:
    """Return NUMA nodes for people: `node 0`, `nodes 0-1`."""
    return f"node {nodes}" if len(nodes) == 1 else f"nodes {nodes}"


def size_text(size: int) -> str:
    """Return a number of bytes for people, exact where it is a whole number of units."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < _UNIT:
            break
        amount, unit = amount / _UNIT, larger
    return f"{amount:.2f}".rstrip("0").rstrip(".") + f" {unit}"

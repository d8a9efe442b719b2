"""The outcome of one admission: a new ledger or a rejection, with its explanation."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agent.managers.topology.hints import NO_AFFINITY, Hint
from agent.pods.validation import find_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.answers import Shortage
    from agent.managers.topology.implicit_hints import ProviderHints
    from agent.pods.model import Pod

#: One sample of a counter: its full name and its label values, in the order of the metric.
CounterKey: TypeAlias = tuple[str, tuple[str, ...]]


class Reason(StrEnum):
    """Why a pod was rejected; the kubelet's reasons keep their names.

    `out_of` adds a reason for every resource of which the node has too little.
    """

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    UNEXPECTED = "UnexpectedAdmissionError"
    INVALID = "InvalidPod"
    CONFLICT = "PodConflict"
    REQUIREMENT = "RequirementNotMet"


def out_of(resource: str) -> str:
    """Return the kubelet's reason for too little of a resource: `OutOfcpu`, `OutOfpods`."""
    return f"OutOf{resource}"


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


class HintTrace(Struct, frozen=True, dict=True):
    """The hints of each provider for one container (None: the pod), and the merged hint.

    `alignment` is the hint or, where none was admitted, the hints to merge when it is read.
    """

    container: str | None
    providers: tuple[tuple[str, ProviderHints], ...]
    alignment: Hint | UnadmittedMerge = NO_AFFINITY
    admitted: bool = True

    @cached_property
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


class MetricType(StrEnum):
    """The metric types of the Prometheus exposition format that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(Struct, frozen=True):
    """One metric family.

    `name` is the full name in the exposition. `domain` holds, label by label, the values that are
    exported as 0 from the start (empty: unknown beforehand), so that a rate shows the first
    increment. `buckets` are the upper bounds of a histogram, in the metric's unit.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    domain: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[float, ...] = ()

    def initial(self) -> Iterator[tuple[str, ...]]:
        """Yield the label values that exist from the start (one empty tuple without labels)."""
        if len(self.domain) == len(self.labels):
            yield from product(*self.domain)


class Sample(NamedTuple):
    """One value of a gauge with its label values, in the order of the metric's labels."""

    metric: MetricSpec
    labels: tuple[str, ...]
    value: float


def gauge(name: str, text: str, *labels: str) -> MetricSpec:
    """Return a gauge whose label values are not known beforehand."""
    return MetricSpec(name, MetricType.GAUGE, text, labels)


SCOPES: Final = ("container", "pod")
BOUNDARIES: Final = ("numa_node", "physical_cpu", "uncore_cache")
RESOURCES: Final = ("cpu", "memory")
SOURCES: Final = ("node", "pod")
ASSIGNMENT_TYPES: Final = ("node_exclusive", "pod_exclusive", "pod_shared")


def _counter(name: str, text: str, **labels: tuple[str, ...]) -> MetricSpec:
    return MetricSpec(name, MetricType.COUNTER, text, tuple(labels), tuple(labels.values()))


# --- the kubelet's counters: incremented by decisions -------------------------------------------

CPU_PINNING_REQUESTS: Final = _counter(
    "kubelet_cpu_manager_pinning_requests_total",
    "Containers and pods that the CPU manager was asked to pin.",
)
CPU_PINNING_ERRORS: Final = _counter(
    "kubelet_cpu_manager_pinning_errors_total",
    "Requests for pinned CPUs that the CPU manager could not serve.",
)
MEMORY_PINNING_REQUESTS: Final = _counter(
    "kubelet_memory_manager_pinning_requests_total",
    "Containers and pods that the memory manager was asked to pin.",
)
MEMORY_PINNING_ERRORS: Final = _counter(
    "kubelet_memory_manager_pinning_errors_total",
    "Requests for pinned memory that the memory manager could not serve.",
)
TOPOLOGY_ADMISSION_REQUESTS: Final = _counter(
    "kubelet_topology_manager_admission_requests_total",
    "Admissions that the topology manager was asked to align.",
)
TOPOLOGY_ADMISSION_ERRORS: Final = _counter(
    "kubelet_topology_manager_admission_errors_total",
    "Admissions that the topology manager rejected.",
)
ALIGNED_COUNT: Final = _counter(
    "kubelet_container_aligned_compute_resources_count",
    "Allocations that ended up aligned to a boundary of the hardware.",
    scope=SCOPES,
    boundary=BOUNDARIES,
)
ALIGNED_FAILURE_COUNT: Final = _counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    "Allocations that should have been aligned to a boundary of the hardware and were not.",
    scope=SCOPES,
    boundary=BOUNDARIES,
)
ALLOCATIONS: Final = _counter(
    "resource_manager_allocations_total",
    "Exclusive allocations, by whether they came from the node's pool or from a pod's budget.",
    resource_name=RESOURCES,
    source=SOURCES,
)
ALLOCATION_ERRORS: Final = _counter(
    "resource_manager_allocation_errors_total",
    "Exclusive allocations that failed, by the pool they were meant to come from.",
    resource_name=RESOURCES,
    source=SOURCES,
)
CONTAINER_ASSIGNMENTS: Final = _counter(
    "resource_manager_container_assignments",
    "Containers given something exclusive, or their pod's pool, since the start (cumulative).",
    resource_name=RESOURCES,
    assignment_type=ASSIGNMENT_TYPES,
)
BOUNDED_CHOICES: Final = _counter(
    "numawarden_bounded_choices_total",
    "Choices among sets of NUMA nodes that ended at their budget of work: valid, maybe not best.",
)


#: The assignment type of containers without resources of their own or of their pod.
SHARED: Final = "shared"
ASSIGNED_CONTAINERS: Final = gauge(
    "numawarden_container_assignments",
    "Containers in the ledger by assignment: exclusive from the node or from the pod's budget, the "
    "pod shared pool, or the node's shared pool.",
    "resource_name",
    "assignment_type",
)


def assignment_samples(
    resource: str,
    ledger: Ledger,
    assignment: Callable[[PodAllocation, ContainerAllocation], str],
) -> Iterator[Sample]:
    """Yield how many containers have each assignment type of a resource."""
    counted = Counter(
        assignment(allocation, container)
        for allocation in ledger.allocations.values()
        for container in allocation.containers
    )
    for kind in (*ASSIGNMENT_TYPES, SHARED):
        yield Sample(ASSIGNED_CONTAINERS, (resource, kind), counted[kind])


#: The counters that decisions increment.
DECISION_COUNTERS: Final = (
    CPU_PINNING_REQUESTS,
    CPU_PINNING_ERRORS,
    MEMORY_PINNING_REQUESTS,
    MEMORY_PINNING_ERRORS,
    TOPOLOGY_ADMISSION_REQUESTS,
    TOPOLOGY_ADMISSION_ERRORS,
    ALIGNED_COUNT,
    ALIGNED_FAILURE_COUNT,
    ALLOCATIONS,
    ALLOCATION_ERRORS,
    CONTAINER_ASSIGNMENTS,
    BOUNDED_CHOICES,
)

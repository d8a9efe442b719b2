"""What comes out of an admission: a new ledger, a rejection, or questions for device plugins.

`admission.admit` returns a `Decision`. It has one of three outcomes:

- admitted: `allocation` is what the pod gets, and `ledger` has it;
- rejected: `cause` says why, and `ledger` is the one from before;
- suspended: the allocation depends on which devices a plugin prefers. `suspended` has the
  questions, and its `resume` goes on with the answers. Nothing is reserved meanwhile.

What explains a decision (its hints, eligibility, rejection, warnings) is worked out when it is
read, since most of it never is. When that is makes no difference: what an explanation rests on does
not change after the decision.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Struct

from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.pods.validation import find_warnings
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.demand import Eligibility, PodDemand
    from agent.managers.ledger import Ledger
    from agent.managers.metrics import CounterKey
    from agent.managers.topology.many_nodes import ProviderHints
    from agent.pods.model import Pod


class Decision(Struct, frozen=True, dict=True):
    """The outcome for one pod; `allocation`, `cause` or `suspended` is set."""

    uid: str
    #: The ledger afterwards; unless the pod was admitted, the ledger from before.
    ledger: Ledger
    allocation: PodAllocation | None = None
    cause: RejectionCause | None = None
    #: The trace of each alignment, in the order in which they were made.
    hints: tuple[Trace, ...] = ()
    #: None where the decision rests on no demand, as for a pod of another operating system.
    demand: PodDemand | None = None
    #: What this admission adds to the kubelet's metrics.
    counters: Mapping[CounterKey, int] = MappingProxyType({})
    #: The pod was in the ledger before, and keeps what it has.
    already_admitted: bool = False
    #: The pod was in the ledger before, and has other amounts now.
    resized: bool = False
    #: The pod to check for warnings; None: `warnings` has only those of the demand.
    pod: Pod | None = None
    suspended: Suspended | None = None

    @cached_property
    def eligibility(self) -> tuple[Eligibility, ...]:
        """Which containers may have exclusive resources, and why."""
        return () if self.demand is None else self.demand.eligibility()

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """The fields of the pod that probably do not mean what their author intended."""
        dropped = () if self.demand is None else (*self.demand.dropped, *self._unbalanced())
        return dropped if self.pod is None else (*dropped, *find_warnings(self.pod))

    def _unbalanced(self) -> Iterator[str]:
        """Yield the containers whose threads the kernel leaves on the CPU where they start."""
        if self.demand is None or self.allocation is None:
            return
        for container in self.allocation.containers:
            cpus = (container.cpus or EMPTY) & self.demand.policy.cpu.isolated
            if len(cpus) > 1:
                yield (
                    f"container {container.name} has CPUs {cpus} of isolcpus, over which the "
                    "kernel spreads no threads: the program has to pin its own"
                )

    @cached_property
    def rejection(self) -> Rejection | None:
        """Why the pod was rejected; None where it was admitted or the decision is suspended."""
        return None if self.cause is None else self.cause.explain()

    @property
    def admitted(self) -> bool:
        """Whether the pod was admitted; a suspended decision has not admitted it yet."""
        return self.allocation is not None


#: The hints of each manager, by its name.
Offers: TypeAlias = "tuple[tuple[str, ProviderHints], ...]"


class Trace(Protocol):
    """How one container (None: the pod as a whole) was aligned.

    A `HintTrace`; or an `admission.UnadmittedTrace`, of which the rest is worked out when read.
    """

    @property
    def container(self) -> str | None:
        """The name of the container, None for the pod as a whole."""
        ...

    @property
    def providers(self) -> Offers:
        """The hints of each manager, in the order in which the managers allocate."""
        ...

    @property
    def merged(self) -> Hint:
        """What the hints merge to."""
        ...

    @property
    def admitted(self) -> bool:
        """Whether the policy admits the merged hint."""
        ...


class HintTrace(Struct, frozen=True):
    """A `Trace` of which everything is known."""

    container: str | None
    providers: Offers
    merged: Hint = NO_AFFINITY
    admitted: bool = True


class Question(Struct, frozen=True):
    """Which devices of a resource its device plugin prefers (GetPreferredAllocation)."""

    resource: str
    #: The devices among which the plugin chooses, and those of them that its choice must have.
    available: frozenset[str]
    required: frozenset[str]
    #: How many devices the plugin chooses, the required ones included.
    size: int


#: The preferred ids by question; empty without a preference.
Answers: TypeAlias = "Mapping[Question, tuple[str, ...]]"
NO_ANSWERS: Final[Answers] = MappingProxyType({})


class Suspended(Protocol):
    """A decision that waits for answers: an `admission.SuspendedDecision`."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """What device plugins have to answer before the decision can go on."""
        ...

    def resume(self, answers: Answers) -> Decision:
        """Go on with the answers; the decision may be suspended again, with further questions."""
        ...


class Unanswered(Exception):  # noqa: N818  (not an error: the decision is suspended)
    """Raised by a manager whose allocation depends on a question without an answer."""

    def __init__(self, questions: tuple[Question, ...]) -> None:
        super().__init__()
        self.questions = questions


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
    #: A resize that no removal of other pods makes possible (KEP-1287).
    INFEASIBLE = "Infeasible"
    #: A resize that the host has no room for now (KEP-1287).
    DEFERRED = "Deferred"


def out_of(resource: str) -> str:
    """Return the kubelet's reason for too little of a resource: `OutOfcpu`, `OutOfpods`."""
    return f"OutOf{resource}"


class Shortage(Struct, frozen=True):
    """A resource of which the node has too little left for a pod.

    The unit is millicores for `cpu`, else bytes, pods or devices. CPUs that are offline and devices
    that are gone count neither as allocatable nor as requested, although pods may still have them.
    """

    resource: str
    #: How much the pod requests.
    asked: int
    #: How much all pods together may request; None: the node does not offer the resource.
    allocatable: int | None
    #: How much the other pods request.
    requested: int


class Rejection(Struct, frozen=True):
    """Why a pod was rejected, for a program and for a person."""

    #: A `Reason`, or `out_of` a resource.
    reason: str
    message: str
    #: What to do next, "" where nothing is certain to help.
    remedy: str = ""
    #: Which resource the pod cannot have, where it is one; else the first of `shortages`.
    resource: str | None = None
    #: None where the pod as a whole was rejected.
    container: str | None = None
    #: How much of `resource` was requested: CPUs for `cpu`, bytes for memory types, devices. None
    #: where `shortages` say it.
    asked: int | None = None
    #: How much of `resource` is free, by NUMA node.
    free: Mapping[int, int] = MappingProxyType({})
    #: Every resource of which the node has too little.
    shortages: tuple[Shortage, ...] = ()

    def explain(self) -> Rejection:
        """Return this rejection, which is complete."""
        return self


class RejectionCause(Protocol):
    """Why a pod was rejected: a `Rejection`, or the facts from which one is built when read."""

    def explain(self) -> Rejection:
        """Return the rejection; the same facts give the same."""
        ...


class Rejected(Exception):  # noqa: N818  (not an error of the program: the pod's rejection)
    """Raised where the pod cannot be admitted."""

    def __init__(self, cause: RejectionCause) -> None:
        super().__init__()
        self.cause = cause

    def __str__(self) -> str:
        return self.cause.explain().message


def reject_if(cause: RejectionCause | None) -> None:
    """Raise `Rejected` if there is a cause."""
    if cause is not None:
        raise Rejected(cause)

"""The outcome of one admission: a new ledger or a rejection, with what explains it.

A decision that depends on what device plugins prefer is suspended: it has questions, and is resumed
with their answers. What explains a decision (hints, eligibility, the rejection, warnings) is worked
out when it is read, since most of it never is.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec import Struct

from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.pods.validation import find_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.metrics import CounterKey
    from agent.managers.topology.many_nodes import ProviderHints
    from agent.pods.model import Pod


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
        """Why the pod was rejected, built on first access; None when it was not rejected."""
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

"""The outcome of one admission: a new ledger or a refusal, with its explanation."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from agent.managers.hints import NO_AFFINITY, Hint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.ledger import Ledger, PodGrant
    from agent.managers.hints import ProviderHints

#: One sample of a counter: its full name and its label values, in the order of the metric.
CounterKey: TypeAlias = tuple[str, tuple[str, ...]]


class Reason(StrEnum):
    """Why a pod was refused; the kubelet's reasons keep their names.

    Beside these there is one for every resource of which the node has too little (`out_of`).
    """

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    UNEXPECTED = "UnexpectedAdmissionError"
    INVALID = "InvalidPod"
    CONFLICT = "PodConflict"


def out_of(resource: str) -> str:
    """Return the kubelet's reason for too little of a resource: `OutOfcpu`, `OutOfpods`."""
    return f"OutOf{resource}"


class Shortage(Struct, frozen=True):
    """A resource of which the node as a whole has less left than a pod requests.

    `requested` is what all other pods request together, `allocatable` what pods may request
    altogether, None when the node does not offer the resource. The unit is millicores for `cpu`,
    bytes for memory types, pods for `pods`, a number of devices otherwise.
    """

    resource: str
    asked: int
    allocatable: int | None
    requested: int


class Refusal(Struct, frozen=True):
    """Why a pod was refused, for a program and a person.

    `reason` is a `Reason` or `out_of` a resource; `shortages` holds every resource of which the
    node has too little, `resource` names the first. Otherwise `asked` is CPUs for `cpu`, bytes for
    memory types and a number of devices; `free` is the same unit by NUMA node. `container` is None
    when the pod as a whole was refused.
    """

    reason: str
    message: str
    remedy: str = ""
    resource: str | None = None
    container: str | None = None
    asked: int | None = None
    free: Mapping[int, int] = MappingProxyType({})
    shortages: tuple[Shortage, ...] = ()

    def explain(self) -> Refusal:
        """Return the refusal itself: it is made."""
        return self


class RejectionCause(Protocol):
    """Why a pod was refused, as a `Refusal` or as the facts to make one of when it is asked for."""

    def explain(self) -> Refusal:
        """Return the refusal; the same facts give the same."""
        ...


class HintTrace(Struct, frozen=True):
    """What each provider offered for one container (None: the pod) and what came of the merge."""

    container: str | None
    providers: tuple[tuple[str, ProviderHints], ...]
    merged: Hint = NO_AFFINITY
    admitted: bool = True


class Eligibility(Struct, frozen=True):
    """Whether one container may hold exclusive resources, and the reason."""

    container: str
    exclusive_cpus: int
    exclusive_memory: bool
    why: str


class Decision(Struct, frozen=True, dict=True):
    """Admitted (`grant` set, `cause` and `refusal` None) or refused (the reverse).

    `ledger` is the ledger after the decision; a refusal returns the one it was given.
    `counters` are the increments of the kubelet's metrics that this admission causes. `warnings`
    say what in the pod is read otherwise than it was probably meant.
    """

    uid: str
    ledger: Ledger
    grant: PodGrant | None = None
    cause: RejectionCause | None = None
    hints: tuple[HintTrace, ...] = ()
    eligibility: tuple[Eligibility, ...] = ()
    counters: Mapping[CounterKey, int] = MappingProxyType({})
    already_admitted: bool = False
    warnings: tuple[str, ...] = ()

    @cached_property
    def refusal(self) -> Refusal | None:
        """Why the pod was refused, said when it is first asked for; None when it was admitted."""
        return None if self.cause is None else self.cause.explain()

    @property
    def admitted(self) -> bool:
        """Whether the pod was admitted."""
        return self.grant is not None

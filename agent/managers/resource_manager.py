"""What each resource manager does, from the request of a pod to the release of what it had.

The managers work on the `Draft` of one admission. The methods of `ResourceManager` stand in the
order of a pod's life: the request, the decision, the ledger, and what the service shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, final

from msgspec import Struct, field

from agent.managers.decision import NO_ANSWERS, Unanswered
from agent.managers.topology.hint import NO_AFFINITY, SearchBudget
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation, PodSets
    from agent.managers.decision import Answers, Question, Reason, Rejection, Trace
    from agent.managers.demand import (
        ContainerDemand,
        PodDemand,
        PodPart,
        PodRequest,
        ResourceDemand,
    )
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.metrics import CounterKey, MetricSpec, Sample
    from agent.managers.topology.hint import Hint, Tiebreak
    from agent.managers.topology.many_nodes import ProviderHints
    from agent.managers.violations import Violation


class Held(Struct, frozen=True):
    """What a running pod has when a resize is decided."""

    allocation: PodAllocation
    #: CPUs that stay with their container, beside those that it was admitted with.
    keep: Mask = EMPTY

    def hint(self, container: ContainerDemand | None) -> Hint:
        """Return the alignment that a container (None: the pod) has."""
        pod = self.allocation
        one = pod.containers[0] if container is None else pod.container(container.name)
        return NO_AFFINITY if one is None else one.hint


class Draft(Struct):
    """The one mutable value of the decisions: what has been allocated to a pod so far.

    A draft lives inside a single call of `admit`, starts from an immutable ledger and ends as an
    allocation and a new ledger, or is dropped, so that a rejected pod changes nothing. `parts` are
    what each manager has allocated, by its name. `answers` are what device plugins prefer, and
    `aligned` the alignments that are left of those that were worked out before the answers were
    asked for: all that they depend on is the same. `tied` says that hints must have the nodes of
    CPUs that ended init containers left. `held` is what the pod of a resize has; None for a pod
    that is to be admitted. `only` are the sets of which alone a pod that moves may get something;
    None for any.
    """

    rules: HostPolicy
    managers: Managers
    ledger: Ledger
    demand: PodDemand
    parts: dict[str, Any]
    hints: dict[str, Hint] = field(default_factory=dict)
    counters: dict[CounterKey, int] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)
    works: list[SearchBudget] = field(default_factory=list)
    answers: Answers = NO_ANSWERS
    aligned: list[Trace] = field(default_factory=list)
    tied: bool = True
    held: Held | None = None
    only: PodSets | None = None

    def answer(self, question: Question) -> tuple[str, ...]:
        """Return what a device plugin prefers; raises `Unanswered` if it was not asked yet."""
        answer = self.answers.get(question)
        if answer is None:
            raise Unanswered((question,))
        return answer

    def work(self) -> SearchBudget:
        """Return the work budget of one choice among sets of nodes."""
        self.works.append(SearchBudget())
        return self.works[-1]

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter of this admission."""
        key = (name, labels)
        self.counters[key] = self.counters.get(key, 0) + by


#: The managers that decide, in the order in which they give hints and allocate.
Managers: TypeAlias = "Sequence[ResourceManager]"


class ResourceManager(ABC):
    """One resource manager, from the request of a pod to the release of what it had.

    A manager keeps a part of the ledger (all that is allocated), a part of each draft (what the pod
    under admission has so far) and parts of allocations (what a container has, and the budget of a
    pod). The types of these parts are the manager's own; no other code looks into them. The parts
    of allocations are plain values as JSON has them, which the checkpoint and the API carry as they
    are; those of the kubelet's managers have fields of their own, since enforcement reads them.
    """

    #: The name of the manager's parts, shown in explanations.
    name: str
    #: Of managers whose hints may settle a rejection, those with cheaper ones are asked first.
    cost: int = 1
    #: Whether the resources are those of NUMA nodes themselves, as CPUs and memory are, instead of
    #: something near them.
    of_nodes: bool = False

    @abstractmethod
    def demand(self, request: PodRequest) -> ResourceDemand:
        """Return what a pod demands of this manager, who may have it, and why or why not.

        This is the only place that decides who may have it.
        """

    def resources(self, demanded: Any) -> tuple[str, ...]:
        """Return the resources of a demand of this manager, of a container or a pod."""
        if isinstance(demanded, Mapping):
            return tuple(sorted(demanded))
        return (self.name,) if demanded else ()

    @abstractmethod
    def amount(self, demanded: Any, resource: str) -> int:
        """Return how much of a resource a demand of this manager has, of a container or a pod."""

    @abstractmethod
    def start(self, rules: HostPolicy, part: Any, demand: PodDemand) -> PodPart:
        """Return the part of a new draft for a demand, from the part of the ledger."""

    def hold(self, draft: Draft, held: Held) -> None:  # noqa: B027  (most keep nothing)
        """Put what a running pod keeps into the draft of its resize, or raise `Rejected`.

        From then on what a container keeps counts as left for it alone to use again: hints have its
        nodes, and the allocation has it.
        """

    def confine(self, draft: Draft, only: PodSets) -> None:  # noqa: B027  (most have no sets)
        """Have the draft of a pod that moves allocate of these sets alone."""

    def grows(self, draft: Draft, container: ContainerDemand | None) -> bool:
        """Return whether a resize gives a container (None: the pod) more than it keeps."""
        return False

    def lacks(self, draft: Draft, container: ContainerDemand | None) -> Rejection | None:
        """Return what the machine lacks for a container (None: the pod), None for nothing.

        Asked before any hints, which reject nothing: where those of another manager rule out
        alignment they are asked for only when the rejection is explained.
        """
        return None

    @final
    def hints(self, draft: Draft, container: ContainerDemand | None) -> ProviderHints:
        """Return the NUMA nodes that could serve a container (None: the pod as a whole)."""
        if container is None:
            return self.pod_hints(draft)
        return self.container_hints(draft, container)

    @abstractmethod
    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        """Return the NUMA nodes that could serve this container (KEP-693, HintProvider)."""

    @abstractmethod
    def pod_hints(self, draft: Draft) -> ProviderHints:
        """Return the NUMA nodes that could serve the whole pod, in pod scope."""

    @abstractmethod
    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        """Allocate the container's demand, aligned to the hint, or raise `Rejected`."""

    def allocate_pod(self, draft: Draft, hint: Hint) -> None:
        """Allocate the budget of a pod and divide it among its containers, or raise `Rejected`.

        Called once, in pod scope, for pods with pod-level resources (KEP-5526, AllocatePod). A
        resource that a budget does not have is allocated container by container.
        """
        for container in draft.demand.containers:
            self.allocate(draft, container, hint)

    def node_order(self, draft: Draft, container: ContainerDemand | None) -> Tiebreak | None:
        """Return which of equally preferred sets of nodes come first (container None: the pod)."""
        return None

    def empty_pool(self, draft: Draft, reason: Reason) -> Rejection | None:
        """Return why the containers that share the pod's budget would get nothing, None if not."""
        return None

    def veto(
        self,
        draft: Draft,
        ledger: Ledger,
        allocation: PodAllocation,
    ) -> Rejection | None:
        """Return why a pod may not have what all managers have allocated, None if it may.

        `ledger` is the one with the allocation. Not asked for a pod that runs already.
        """
        return None

    def spared(self, draft: Draft) -> Mask:
        """Return the CPUs without which a rejected decision is made again.

        Containers without CPUs of their own would lose the last of some kind with them.
        """
        return EMPTY

    @abstractmethod
    def free(self, draft: Draft, resource: str) -> Mapping[int, int]:
        """Return how much of a resource is free for the pod, by NUMA node.

        What ended init containers of the pod leave is free.
        """

    def amount_text(self, resource: str, amount: int) -> str:
        """Return an amount for people."""
        return str(amount)

    def offer_text(self, draft: Draft, resource: str, asked: int, fit: str) -> str:
        """Return what is demanded, where that fits, and what is free, for a rejection."""
        free = ", ".join(
            f"node {node}: {self.amount_text(resource, amount)}"
            for node, amount in self.free(draft, resource).items()
        )
        return f"{self.amount_text(resource, asked)} of {resource} {fit} (free: {free})"

    def nodes(
        self,
        rules: HostPolicy,
        allocation: PodAllocation,
        container: ContainerAllocation | None,
    ) -> Mask:
        """Return the NUMA nodes of what a container or the pod (None) has.

        Empty for what is on no node. `single-numa-node` allows one node.
        """
        return EMPTY

    def allocatable(self, rules: HostPolicy) -> Mapping[str, int]:
        """Return what all pods together may request, by resource, in the units of requests."""
        return {}

    def beyond_allocatable(
        self,
        rules: HostPolicy,
        part: Any,
        resource: str,
    ) -> int:
        """Return how much of a resource is allocated and is no longer part of `allocatable`.

        Pods keep it, so it leaves no less for others (kubelet, sanitizeNodeAllocatable).
        """
        return 0

    @abstractmethod
    def empty(self, rules: HostPolicy) -> Any:
        """Return the part of a ledger without allocations."""

    @abstractmethod
    def charged(self, rules: HostPolicy, part: Any, allocation: PodAllocation) -> Any:
        """Return the part of the ledger with an allocation added, in full, as a fact."""

    @abstractmethod
    def released(self, rules: HostPolicy, part: Any, allocation: PodAllocation) -> Any:
        """Return the part of the ledger without what only this allocation has."""

    def settled(self, draft: Draft, allocation: PodAllocation) -> Any:
        """Return the part of the ledger after the allocation that a draft has become."""
        return self.charged(draft.rules, draft.ledger.parts[self.name], allocation)

    def finished(
        self,
        rules: HostPolicy,
        part: Any,
        containers: Sequence[ContainerAllocation],
    ) -> tuple[Any, Sequence[ContainerAllocation]]:
        """Return the part of the ledger and what containers have left after they have ended.

        They are standard init containers of a pod without a budget that runs on. By default all
        stays with the pod.
        """
        return part, containers

    @abstractmethod
    def loaded(self, saved: Any, allocations: Iterable[PodAllocation]) -> Any:
        """Return the part of the ledger of these allocations.

        `saved` is what a checkpoint has beside them, None for managers other than the kubelet's:
        their parts follow from the allocations.
        """

    def restored(
        self,
        rules: HostPolicy,
        part: Any,
        allocations: Mapping[str, PodAllocation],
    ) -> Any:
        """Return a saved part of the ledger under the current policy, with all allocations.

        The part is None when none was saved. By default it follows from the allocations.
        """
        return self.loaded(None, allocations.values())

    def renumbered(self, allocated: Any, moves: Mapping[int, int]) -> Any:
        """Return what a container or a pod has after {old: new} numbers of NUMA nodes."""
        return allocated

    #: The counters of the manager's decisions, beside those of every manager.
    counters: tuple[MetricSpec, ...] = ()
    #: The gauges that `samples` yields, beside those of every manager.
    gauges: tuple[MetricSpec, ...] = ()
    #: What `violations` names as violated, beside `agent.managers.violations.Rule`.
    rule_names: tuple[str, ...] = ()

    def violations(
        self,
        rules: HostPolicy,
        ledger: Ledger,
        offline: Mask,
    ) -> Callable[[PodAllocation], Iterable[Violation]]:
        """Return a function that is called with every allocation, in the order of admission.

        It returns what the allocation has that the current policy would not allocate, that the
        host no longer has, or that an earlier allocation has. `offline` are CPUs that exist.
        """
        return lambda _allocation: ()

    def samples(self, rules: HostPolicy, ledger: Ledger) -> Iterable[Sample]:
        """Return the samples of the manager's gauges."""
        return ()

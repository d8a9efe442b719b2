"""The interface of a resource manager, and the exception by which a manager rejects a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agent.managers.allocations.demand import ContainerDemand
    from agent.managers.allocations.draft import Draft
    from agent.managers.decision import RejectionCause
    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import ProviderHints


class Rejected(Exception):  # noqa: N818  (not an error of the program: the pod's rejection)
    """The pod cannot be admitted; `cause` says why."""

    def __init__(self, cause: RejectionCause) -> None:
        super().__init__()
        self.cause = cause

    def __str__(self) -> str:
        return self.cause.explain().message


class HintProvider(Protocol):
    """One resource manager that the topology manager coordinates (KEP-693, HintProvider).

    Hints are for one container, or for the pod as a whole in pod scope. Allocation changes the
    draft, or raises `Rejected`. `allocate_pod` is called once, and only in pod scope, for pods with
    pod-level resources (KEP-5526, AllocatePod).
    """

    @property
    def name(self) -> str:
        """The manager's name, for explanations."""
        ...

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        """Return the NUMA nodes that could serve this container."""
        ...

    def pod_hints(self, draft: Draft) -> ProviderHints:
        """Return the NUMA nodes that could serve the whole pod."""
        ...

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        """Allocate the container's demand, aligned to the hint."""
        ...

    def allocate_pod(self, draft: Draft, hint: Hint) -> None:
        """Allocate the pod's budget and divide it among its containers."""
        ...

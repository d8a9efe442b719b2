"""Admissions in the making, for tests of one manager alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.admission import admit
from agent.managers.demand import PodPart, ResourceDemand
from agent.managers.resource_manager import ResourceManager

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Rejection
    from agent.managers.demand import ContainerDemand, PodDemand, PodRequest
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.resource_manager import Draft
    from agent.managers.rules import EffectivePolicy
    from agent.managers.topology.hint import Hint
    from agent.managers.topology.many_nodes import ProviderHints
    from agent.pods.model import Pod


def draft_of(rules: EffectivePolicy, pod: Pod, ledger: Ledger | None = None) -> Draft:
    """Return the draft of a pod that holds nothing yet, by default on a host without pods."""
    return rules.draft(ledger or rules.empty_ledger(), rules.demand(pod))


def with_pod(rules: EffectivePolicy, pod: Pod, ledger: Ledger | None = None) -> Ledger:
    """Return the ledger of a host on which the pod runs."""
    decision = admit(rules, ledger or rules.empty_ledger(), pod)
    assert decision.admitted, decision.rejection
    return decision.ledger


def allocated(rules: EffectivePolicy, pod: Pod, ledger: Ledger | None = None) -> PodAllocation:
    """Return what the pod is given, by default on a host without pods."""
    decision = admit(rules, ledger or rules.empty_ledger(), pod)
    assert decision.allocation is not None, decision.rejection
    return decision.allocation


def rejected(rules: EffectivePolicy, pod: Pod, ledger: Ledger | None = None) -> Rejection:
    """Return why the pod is rejected, which changes nothing."""
    before = ledger or rules.empty_ledger()
    decision = admit(rules, before, pod)
    assert decision.rejection is not None, decision.allocation
    assert decision.ledger is before
    return decision.rejection


def container(draft: Draft, name: str) -> ContainerDemand:
    return next(one for one in draft.demand.containers if one.name == name)


def counted(draft: Draft, prefix: str = "") -> Mapping[str, int]:
    """Return the counters as `name label,label`, without the kubelet's prefix of names."""
    return {
        f"{name.removeprefix('kubelet_')} {','.join(labels)}".strip(): value
        for (name, labels), value in draft.counters.items()
        if prefix in name
    }


class Inert(ResourceManager):
    """A manager without resources; tests give it a name and what they need."""

    def demand(self, request: PodRequest) -> ResourceDemand:
        none = (None,) * len(request.containers)
        why = ("",) * len(none)
        return ResourceDemand(None, none, active=False, exclusive=(False,) * len(none), why=why)

    def amount(self, demanded: object, resource: str) -> int:
        del demanded, resource
        return 0

    def start(self, rules: HostPolicy, part: object, demand: PodDemand) -> PodPart:
        del rules, part, demand
        return PodPart()

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        del draft, container
        return {}

    def pod_hints(self, draft: Draft) -> ProviderHints:
        del draft
        return {}

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        pass

    def free(self, draft: Draft, resource: str) -> Mapping[int, int]:
        del draft, resource
        return {}

    def empty(self, rules: HostPolicy) -> object:
        del rules
        return None

    def charged(self, rules: HostPolicy, part: object, allocation: PodAllocation) -> object:
        del rules, allocation
        return part

    released = charged

    def loaded(self, saved: object, allocations: Iterable[PodAllocation]) -> object:
        del allocations
        return saved

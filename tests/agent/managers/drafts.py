"""Admissions in the making, for tests of one manager alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.admission import admit
from agent.managers.allocations.demand import demand_of
from agent.managers.allocations.draft import Draft

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.demand import ContainerDemand
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import Pod


def draft_of(rules: EffectivePolicy, pod: Pod, ledger: Ledger | None = None) -> Draft:
    """Return the draft of a pod that holds nothing yet, by default on a host without pods."""
    return Draft.start(rules, ledger or rules.empty_ledger(), demand_of(rules.policy, pod))


def with_pod(rules: EffectivePolicy, pod: Pod, ledger: Ledger | None = None) -> Ledger:
    """Return the ledger of a host on which the pod runs."""
    decision = admit(rules, ledger or rules.empty_ledger(), pod)
    assert decision.admitted, decision.rejection
    return decision.ledger


def container(draft: Draft, name: str) -> ContainerDemand:
    return next(one for one in draft.demand.containers if one.name == name)


def counted(draft: Draft, prefix: str = "") -> Mapping[str, int]:
    """Return the counters as `name label,label`, without the kubelet's prefix of names."""
    return {
        f"{name.removeprefix('kubelet_')} {','.join(labels)}".strip(): value
        for (name, labels), value in draft.counters.items()
        if prefix in name
    }

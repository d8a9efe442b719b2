from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from agent.managers.admission import admit, align_and_allocate
from agent.managers.decision import Reason, Rejected, Rejection
from agent.managers.demand import PodDemand
from agent.managers.topology.hint import Hint
from agent.managers.topology.merge import best_reachable
from tests.agent.managers.drafts import Inert, draft_of
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    NO_POLICY,
    POD,
    RESTRICTED,
    SINGLE,
    make_rules,
)
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from agent.managers.demand import ContainerDemand
    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.managers.resource_manager import Draft, Managers
    from agent.managers.topology.many_nodes import ProviderHints
ON_NODE_1 = Hint(2, preferred=True)
IMPOSSIBLE: ProviderHints = {"x": ()}
BUDGET = guaranteed("cpu=2 memory=1Gi")


@dataclass
class Recorder(Inert):
    """A manager that records its calls and returns the given hints."""

    name: str
    log: list[str]
    offered: ProviderHints = field(default_factory=dict)
    rejects: str | None = None

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        del draft
        self.log.append(f"{self.name} hints {container.name}")
        return self.offered

    def pod_hints(self, draft: Draft) -> ProviderHints:
        del draft
        self.log.append(f"{self.name} hints pod")
        return self.offered

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        del draft
        self.log.append(f"{self.name} gives {container.name} {hint.nodes}")
        if container.name == self.rejects:
            raise Rejected(Rejection(Reason.UNEXPECTED, "no"))

    def allocate_pod(self, draft: Draft, hint: Hint) -> None:
        del draft
        self.log.append(f"{self.name} gives pod {hint.nodes}")


def align(draft: Draft, managers: Managers) -> None:
    """Let these managers decide on the pod of a draft."""
    draft.demand = PodDemand(draft.rules.policy, managers, draft.demand.pod)
    draft.managers = managers
    align_and_allocate(draft)


def two_containers(
    topology: TopologyManagerPolicy, scope: TopologyManagerScope, *, budget: bool = False
) -> Draft:
    asked = pod(init("i"), app("a"), of_pod=BUDGET if budget else None)
    return draft_of(make_rules(topology=topology, scope=scope), asked)


@pytest.mark.parametrize(
    ("policy", "scope", "budget", "calls", "aligned"),
    [
        (RESTRICTED, CONTAINER, False, "hints i, gives i 2, hints a, gives a 2", ["i", "a"]),
        (RESTRICTED, POD, False, "hints pod, gives i 2, gives a 2", [None]),
        (RESTRICTED, POD, True, "hints pod, gives pod 2", [None]),
        (NO_POLICY, POD, False, "gives i None, gives a None", []),
        (NO_POLICY, POD, True, "gives i None, gives a None", []),
    ],
)
def test_a_scope_says_who_is_aligned_and_served_when(
    policy: TopologyManagerPolicy,
    scope: TopologyManagerScope,
    calls: str,
    aligned: list[str | None],
    *,
    budget: bool,
) -> None:
    log: list[str] = []
    draft = two_containers(policy, scope, budget=budget)
    align(draft, (Recorder("first", log, {"x": (ON_NODE_1,)}), Recorder("second", log)))
    assert log == [f"{who} {call}" for call in calls.split(", ") for who in ("first", "second")]
    assert [trace.container for trace in draft.traces] == aligned
    assert draft.hints == ({"i": ON_NODE_1, "a": ON_NODE_1} if aligned else {})


class TestRejection:
    @pytest.mark.parametrize("policy", [RESTRICTED, SINGLE])
    @pytest.mark.parametrize("scope", [CONTAINER, POD])
    def test_hints_that_do_not_merge_are_rejected_before_anything_is_given(
        self, policy: TopologyManagerPolicy, scope: TopologyManagerScope
    ) -> None:
        log: list[str] = []
        with pytest.raises(Rejected) as caught:
            align(two_containers(policy, scope), [Recorder("one", log, IMPOSSIBLE)])
        assert log == [f"one hints {'i' if scope is CONTAINER else 'pod'}"]
        assert caught.value.cause.explain().reason is Reason.TOPOLOGY_AFFINITY
        assert caught.value.cause.explain().container == ("i" if scope is CONTAINER else None)

    @pytest.mark.parametrize("policy", [RESTRICTED, SINGLE])
    def test_hints_that_settle_the_matter_are_the_only_ones_until_it_is_explained(
        self, policy: TopologyManagerPolicy
    ) -> None:
        log: list[str] = []
        dear, cheap = Recorder("dear", log), Recorder("cheap", log, IMPOSSIBLE)
        cheap.cost = 0
        draft = two_containers(policy, POD)
        with pytest.raises(Rejected) as caught:
            align(draft, [dear, cheap])
        assert log == ["cheap hints pod"]
        caught.value.cause.explain()
        assert [name for name, _ in draft.traces[0].providers] == ["dear", "cheap"]
        assert log == ["cheap hints pod", "dear hints pod", "cheap hints pod"]

    def test_best_effort_asks_all_and_goes_on(self) -> None:
        log: list[str] = []
        draft, cheap = two_containers(BEST_EFFORT, POD), Recorder("cheap", log, IMPOSSIBLE)
        cheap.cost = 0
        align(draft, [Recorder("dear", log), cheap])
        assert log[:2] == ["cheap hints pod", "dear hints pod"]
        assert log[-1] == "cheap gives a 3"
        assert draft.hints["a"] == Hint(3, preferred=False)

    def test_a_provider_that_rejects_ends_the_admission(self) -> None:
        log: list[str] = []
        draft = two_containers(RESTRICTED, CONTAINER)
        with pytest.raises(Rejected):
            align(draft, [Recorder("one", log, rejects="i"), Recorder("two", log)])
        assert log == ["one hints i", "two hints i", "one gives i 3"]


def test_the_alignment_that_is_not_admitted_is_merged_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merge = Mock(wraps=best_reachable)
    monkeypatch.setattr("agent.managers.topology.merge.best_reachable", merge)
    rules = make_rules(topology=RESTRICTED)
    more = len(rules.assignable_cpus) + 1
    asked = pod(app("a", guaranteed(f"cpu={more} memory=1Gi")))
    decision = admit(rules, rules.empty_ledger(), asked)
    (trace,) = decision.hints
    assert (decision.admitted, trace.admitted, merge.call_count) == (False, False, 0)
    assert (trace.merged.preferred, merge.call_count) == (False, 1)

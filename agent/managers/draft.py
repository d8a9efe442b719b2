"""The draft of one admission, on which the resource managers work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from agent.managers.decision import NO_ANSWERS, Unanswered
from agent.managers.topology.search_budget import SearchBudget

if TYPE_CHECKING:
    from agent.managers.allocations.demand import PodDemand
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.decision import Answers, CounterKey, HintTrace, Question
    from agent.managers.host_policy import HostPolicy
    from agent.managers.topology.hints import Hint


class Draft(Struct):
    """The one mutable value of the decisions: what has been allocated to a pod so far.

    A draft lives inside a single call of `admit`, starts from an immutable ledger and ends as an
    allocation and a new ledger, or is dropped, so that a rejected pod changes nothing. `parts` are
    what each manager has allocated, by its name. `answers` are what device plugins prefer, and
    `aligned` the alignments that are left of those that were worked out before the answers were
    asked for: all that they depend on is the same. `tied` says that hints must have the nodes of
    CPUs that ended init containers left.
    """

    rules: HostPolicy
    ledger: Ledger
    demand: PodDemand
    parts: dict[str, Any]
    hints: dict[str, Hint] = field(default_factory=dict)
    counters: dict[CounterKey, int] = field(default_factory=dict)
    traces: list[HintTrace] = field(default_factory=list)
    works: list[SearchBudget] = field(default_factory=list)
    answers: Answers = NO_ANSWERS
    aligned: list[HintTrace] = field(default_factory=list)
    tied: bool = True

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

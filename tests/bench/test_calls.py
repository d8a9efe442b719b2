"""What is measured does no more than it must: its calls are counted, not timed."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from agent.managers.admission import admit
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from tests.bench import agents, hosts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

pytestmark = pytest.mark.nightly

#: Of functions in Python and in C: by a rejection with six resources, by the decision on a budget,
#: and in a pass at rest by a pod of five containers.
_OF_A_REJECTION: Final = 270
_OF_A_BUDGET: Final = 1120
_OF_A_POD: Final = 135


class Calls:
    """Counts the calls of the thread in which it is begun."""

    def __init__(self) -> None:
        self.number = 0
        self._former = sys.getprofile()

    def begin(self) -> None:
        sys.setprofile(self._count)

    def end(self) -> None:
        sys.setprofile(self._former)

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.number += event in ("call", "c_call")


@pytest.mark.parametrize(
    "policy", [TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE]
)
def test_a_rejection_with_six_resources_makes_few_calls(policy: TopologyManagerPolicy) -> None:
    rules, ledger = hosts.rules("2n128c", policy), hosts.ledger_on("2n128c", "half")
    for variant, asked in hosts.unalignable(rules, ledger):
        pod = hosts.pod_of("new", asked)
        assert not admit(rules, ledger, pod).admitted  # caches of the machine are filled
        assert _calls_of(partial(admit, rules, ledger, pod)) <= _OF_A_REJECTION, variant


@pytest.mark.parametrize("scope", TopologyManagerScope)
def test_a_decision_on_a_budget_makes_few_calls(scope: TopologyManagerScope) -> None:
    rules, pod = hosts.rules("2n128c", scope=scope), hosts.pod_level_pod("new")
    ledger = hosts.ledger_on("2n128c", "fragmented")
    assert admit(rules, ledger, pod).admitted  # caches of the machine are filled
    assert _calls_of(partial(admit, rules, ledger, pod)) <= _OF_A_BUDGET


def _calls_of(run: Callable[[], object]) -> int:
    calls = Calls()
    calls.begin()
    try:
        run()
    finally:
        calls.end()
    return calls.number


def test_a_pass_at_rest_makes_as_many_calls_for_each_pod() -> None:
    first, second, third = (asyncio.run(_calls(pods)) for pods in (10, 30, 50))
    assert third - second <= 1.02 * (second - first)
    assert (second - first) / 20 <= _OF_A_POD, (first, second, third)


async def _calls(pods: int) -> int:
    """Return how many calls the thread that enforces makes in a pass at rest."""
    calls = Calls()
    async with agents.settled(pods) as agent:
        worker = agent.controller.worker
        await worker.run(calls.begin)
        await agents.passed(agent)
        await worker.run(calls.end)
    return calls.number

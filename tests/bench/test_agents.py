"""The figures of a whole agent are of pods that were admitted and of containers that run."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.bench import agents

if TYPE_CHECKING:
    from types import FrameType

#: Of functions in Python and in C, by a pod of five containers that are as desired.
pytestmark = pytest.mark.nightly

_MOST_CALLS: Final = 135


def test_a_pass_is_measured_with_every_container_of_several_pods() -> None:
    figures = asyncio.run(agents.reconciled({2: 3, 1: 1}, rounds=2))

    assert [(each.name, each.n) for each in figures] == [
        ("reconcile/2n128c/containers10", 6),
        ("reconcile/2n128c/containers5", 2),
    ]


def test_a_pass_at_rest_makes_as_many_calls_for_each_pod() -> None:
    first, second, third = (asyncio.run(_calls(pods)) for pods in (10, 30, 50))
    each = (second - first) / 20

    assert third - second <= 1.02 * (second - first)
    assert each <= _MOST_CALLS, (first, second, third)


async def _calls(pods: int) -> int:
    """Return how many calls the thread that enforces makes in a pass at rest."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async with agents.settled(pods) as agent:
        worker = agent.controller.worker
        await worker.run(lambda: sys.setprofile(count))
        await agents.passed(agent)
        await worker.run(lambda: sys.setprofile(None))
    return calls


def test_admissions_are_measured_beside_the_pods_of_a_checkpoint() -> None:
    _, admitted = asyncio.run(agents.started(3, admissions=2))

    assert len(admitted) == 2

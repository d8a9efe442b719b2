"""A rejection with six resources does no more than it must: its calls are counted, not timed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pytest

from agent.managers.admission import admit
from agent.managers.policy import TopologyManagerPolicy
from tests.bench import hosts

if TYPE_CHECKING:
    from types import FrameType

#: Of functions in Python and in C, each of which takes about an eighth of a microsecond.
pytestmark = pytest.mark.nightly

_MOST_CALLS: Final = 270


@pytest.mark.parametrize(
    "policy", [TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE]
)
def test_a_rejection_with_six_resources_makes_few_calls(policy: TopologyManagerPolicy) -> None:
    rules, ledger = hosts.rules("2n128c", policy), hosts.ledger_on("2n128c", "half")
    for variant, asked in hosts.unalignable(rules, ledger):
        pod = hosts.pod_of("new", asked)
        assert not admit(rules, ledger, pod).admitted  # caches of the machine are filled
        calls = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        former = sys.getprofile()
        sys.setprofile(count)
        try:
            admit(rules, ledger, pod)
        finally:
            sys.setprofile(former)
        assert calls <= _MOST_CALLS, variant

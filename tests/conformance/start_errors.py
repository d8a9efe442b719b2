"""Recorded configurations with which the kubelet does not start, or we do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.conformance.outcome import Outcome
from tests.conformance.recorded_config import start_problems

if TYPE_CHECKING:
    from tests.conformance.outcome import Case

#: What the kubelet rejects and the agent can do: more than eight NUMA nodes, and reserved memory
#: that is not spelled out by node (it is derived, and shown).
_NOT_NEEDED: Final = ("unsupported on machines with more than", 'the total amount "0" of type')
#: What the kubelet does not look at with policy none: a mistake there is named all the same.
_IGNORED_WITH_NONE: Final = ("topologyManagerScope", "topologyManagerPolicyOptions")


def start_is_rejected(case: Case) -> Outcome:
    """Compare a configuration that the kubelet rejects."""
    if start_problems(case):
        return Outcome.equal()
    message = case["expected"]["start_error"]["message"]
    if message.startswith(_NOT_NEEDED):
        return Outcome.right_instead()
    return Outcome.wrong(f"starts, expected: {message}")


def rejects_what_none_ignores(case: Case, problems: list[str]) -> bool:
    """Return whether all that we reject is what the kubelet ignores with topology policy none."""
    return case["config"]["topology"]["policy"] == "none" and all(
        problem.startswith(_IGNORED_WITH_NONE) for problem in problems
    )

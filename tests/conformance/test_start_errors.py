from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from tests.conformance.admit import run_case
from tests.conformance.outcome import Outcome, Verdict
from tests.conformance.selected import selected

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.outcome import Case


def with_policy_none(change: Callable[[Case], object]) -> Outcome:
    case = next(
        case
        for case in selected("admit")
        if case["config"]["topology"]["policy"] == "none" and "start_error" not in case["expected"]
    )
    case = copy.deepcopy(case)
    change(case)
    return run_case(case)


# Shows in differences.md: policy-none
def test_what_policy_none_ignores_may_be_rejected() -> None:
    def odd_scope(case: Case) -> None:
        case["config"]["topology"]["scope"] = "sideways"

    def odd_option(case: Case) -> None:
        case["config"]["topology"]["options"] = {"no-such-option": "true"}

    assert with_policy_none(odd_scope) == Outcome.right_instead()
    assert with_policy_none(odd_option) == Outcome.right_instead()


def test_no_other_rejection_of_a_configuration_that_the_kubelet_takes_is_right() -> None:
    def odd_reservation(case: Case) -> None:
        case["config"]["cpu"] |= {"policy": "static", "reserved": "4000"}

    assert with_policy_none(odd_reservation).verdict is Verdict.WRONG


def test_only_what_the_agent_does_not_need_may_be_taken_where_the_kubelet_rejects() -> None:
    def rejected(message: str) -> Callable[[Case], None]:
        def change(case: Case) -> None:
            case["expected"] = {"start_error": {"message": message}}

        return change

    many_nodes = "unsupported on machines with more than 8 NUMA Nodes"
    assert with_policy_none(rejected(many_nodes)) == Outcome.right_instead()
    assert with_policy_none(rejected("unknown policy")).verdict is Verdict.WRONG

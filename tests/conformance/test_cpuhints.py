from __future__ import annotations

from tests.conformance.cpuhints import run_case
from tests.conformance.outcome import Verdict
from tests.conformance.selected import selected


def test_hints_in_another_order_are_wrong() -> None:
    case = next(c for c in selected("cpuhints") if len(c["expected"].get("hints", ())) > 1)
    case["expected"]["hints"].reverse()

    assert run_case(case).verdict is Verdict.WRONG


def test_a_rejected_option_must_be_rejected_by_the_kubelet_too() -> None:
    case = next(c for c in selected("cpuhints") if "policy_error" in c["expected"])
    case["expected"] = {"hints": []}

    assert run_case(case).verdict is Verdict.WRONG

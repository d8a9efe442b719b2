from __future__ import annotations

import pytest

from tests.conformance.checkpoint import run_case
from tests.conformance.outcome import Outcome, Verdict
from tests.conformance.selected import selected

CASES = {case["name"]: case for case in selected("checkpoint")}
CPU = CASES["checkpoint/base/3/gate"]


def test_the_same_bytes_are_equal() -> None:
    assert run_case(CPU) == Outcome.equal()


@pytest.mark.parametrize(
    "change", [{"default": "0-2"}, {"policy_name": "none"}, {"pod_entries": {}}, {"gates": {}}]
)
def test_other_content_is_wrong(change: dict[str, object]) -> None:
    assert run_case({**CPU, **change}).verdict is Verdict.WRONG


@pytest.mark.parametrize("key", ["file", "for_hash"])
def test_every_recorded_text_is_compared(key: str) -> None:
    expected = {**CPU["expected"], key: CPU["expected"][key].replace("static", "statik")}
    assert run_case({**CPU, "expected": expected}).verdict is Verdict.WRONG


def test_budgets_without_the_gate_must_not_be_lost() -> None:
    panic = CASES["checkpoint/base/3/nogate"]
    assert run_case(panic) == Outcome.right_instead()
    assert run_case({**panic, "pod_entries": {}}).verdict is Verdict.WRONG

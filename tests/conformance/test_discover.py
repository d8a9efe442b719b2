from __future__ import annotations

from tests.conformance.discover import run_case
from tests.conformance.outcome import Verdict
from tests.conformance.selected import selected


def test_another_average_is_wrong() -> None:
    case = next(c for c in selected("discover") if "topology" in c["expected"])
    case["expected"]["cpus_per_core"] += 1

    assert "cpus_per_core" in run_case(case).differences[0]


def test_a_machine_that_the_kubelet_rejects_must_be_rejected() -> None:
    case = next(c for c in selected("discover") if "error" in c["expected"])
    assert run_case(case).verdict is Verdict.EQUAL

    case["topology"]["cpus"] = [[0, 0, 0, 0, 0]]

    assert run_case(case).verdict is Verdict.WRONG

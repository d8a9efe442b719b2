from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.mask import Mask
from tests.conformance.outcome import Outcome, Verdict
from tests.conformance.take import run_case

if TYPE_CHECKING:
    from tests.conformance.outcome import Case

EQUAL, RIGHT = Outcome.equal(), Outcome.right_instead()
#: Two cores of two threads on one node; the kubelet takes the whole first core.
CASE: Case = {
    "name": "take/example",
    "family": "take",
    "op": "packed",
    "strategy": "packed",
    "uncore": False,
    "topology": {
        "cpus": [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [2, 0, 0, 0, 0], [3, 1, 0, 0, 0]],
        "num_cpus": 4,
        "num_cores": 2,
        "num_sockets": 1,
        "num_numa": 1,
        "num_uncore": 1,
    },
    "available": "0-3",
    "num": 2,
    "expected": {"cpus": "0,2"},
}


#: Cores (0,1) and (2,3) and the single CPU 4 on node 0, the single CPU 5 on node 1.
UNEVEN: Case = {
    **CASE,
    "topology": {
        "cpus": [[cpu, (0, 0, 2, 2, 4, 5)[cpu], 0, cpu // 5, 0] for cpu in range(6)],
        "num_cpus": 6,
        "num_cores": 4,
        "num_sockets": 1,
        "num_numa": 2,
        "num_uncore": 1,
    },
    "available": "0,2,4-5",
    "irregular": ["cores"],
    "expected": {"cpus": "0,2"},
}
OTHER, IRREGULAR = {"expected": {"cpus": "1,3"}}, {"irregular": ["cores"]}
#: Of CPUs 0 and 3 ours are wider than the kubelet's.
WIDER = {"available": "0,3", "expected": {"cpus": "0,2"}, **IRREGULAR}
TEXT = "not enough cpus available to satisfy request: requested=5, available="


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param({}, EQUAL, id="the same CPUs"),
        pytest.param(OTHER, Outcome.wrong("cpus 0,2, kubelet {'cpus': '1,3'}"), id="others"),
        pytest.param({**OTHER, **IRREGULAR}, RIGHT, id="as narrow on an irregular host"),
        pytest.param(WIDER, Outcome.wrong("cpus 0,3 touch 2 cores, 0,2 only 1"), id="wider"),
        pytest.param({**WIDER, "outside_available": "2"}, RIGHT, id="theirs busy"),
        pytest.param({**WIDER, "expected": {"cpus": "0"}}, RIGHT, id="theirs too few"),
        pytest.param({"expected": {"hang": True}}, RIGHT, id="theirs hangs"),
        pytest.param({**OTHER, "expected_noalias": {"cpus": "0,2"}}, EQUAL, id="no aliasing"),
        pytest.param({"num": 5, "expected": {"error": f"{TEXT}4"}}, EQUAL, id="both reject"),
        pytest.param(UNEVEN, RIGHT, id="theirs beside busy ones for no reason"),
    ],
)
def test_a_choice(changes: Case, outcome: Outcome) -> None:
    assert run_case({**CASE, **changes}) == outcome


@pytest.mark.parametrize("expected", [{"error": f"{TEXT}3"}, {"cpus": "0,2"}])
def test_a_rejection_must_name_the_same_numbers(expected: Case) -> None:
    assert run_case({**CASE, "num": 5, "expected": expected}).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("ours", "case", "text"),
    [
        ("0,5", UNEVEN, "cpus 0,5 touch 2 nodes, 0,2 only 1"),
        (
            "0,3",
            {**CASE, **IRREGULAR, "available": "0,2", "outside_available": "3"},
            "cpus 3 of 0,3 are not free",
        ),
    ],
)
def test_an_invalid_choice_of_ours_is_wrong_whatever_the_flag(
    monkeypatch: pytest.MonkeyPatch, ours: str, case: Case, text: str
) -> None:
    monkeypatch.setattr("tests.conformance.take.take", lambda *_: Mask.parse(ours))
    assert run_case(case) == Outcome.wrong(text)

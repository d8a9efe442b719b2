from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from tests.conformance.outcome import Outcome, Verdict
from tests.conformance.restore import run_case
from tests.conformance.selected import selected

if TYPE_CHECKING:
    from tests.conformance.outcome import Case

CASES = {case["name"]: case for case in selected("restore")}


def changed(name: str, key: str, value: object) -> Case:
    """Return a recorded case with one part of the kubelet's answer replaced."""
    case = deepcopy(CASES[name])
    *path, last = key.split(".")
    place = case["expected"]
    for part in path:
        place = place[part]
    place[last] = value
    return case


@pytest.mark.parametrize(
    "name",
    [
        "restore/cpu/two-pods-share/gate",
        "restore/cpu/v3-stale-pod-entry/gate",
        "restore/cpu/v3-checksum-zero/nogate",
        "restore/cpu/v3-no-pods/nogate",
        "restore/memory/v2-empty/nogate",
    ],
)
def test_a_deliberate_difference_is_right(name: str) -> None:
    assert run_case(CASES[name]) == Outcome.right_instead()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("restore/cpu/v2/gate", "cpu_start_error", "rejected"),
        ("restore/cpu/v2/gate", "cpu.default", "0-15"),
        ("restore/cpu/v2/gate", "cpu.entries.u1.a", "1,10"),
        ("restore/cpu/v3/gate", "cpu.pod_entries.u3", "4"),
        ("restore/cpu/v3-stale-pod-entry/gate", "cpu.pod_entries.u9", "4-16"),
        ("restore/memory/v1-one/nogate", "memory.entries.u.c", []),
        ("restore/memory/v1-cross/gate", "memory.machine_state.0.cells", [0]),
    ],
)
def test_another_answer_is_wrong(name: str, key: str, value: object) -> None:
    assert run_case(changed(name, key, value)).verdict is Verdict.WRONG


def test_rejecting_what_the_kubelet_takes_is_wrong() -> None:
    case = deepcopy(CASES["restore/cpu/overlap/gate"])
    case["expected"] = deepcopy(CASES["restore/cpu/v2/gate"]["expected"])
    assert run_case(case).verdict is Verdict.WRONG


def test_the_file_that_the_kubelet_writes_again_is_compared() -> None:
    name = "restore/cpu/default-empty/gate"
    assert run_case(CASES[name]) == Outcome.equal()
    other = CASES[name]["expected"]["cpu_manager_state_after"].replace("3394376107", "0")
    assert run_case(changed(name, "cpu_manager_state_after", other)).verdict is Verdict.WRONG

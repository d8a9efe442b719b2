"""That the comparisons of the families find what is wrong, and never end in a crash."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from tests.conformance.families import run_case
from tests.conformance.outcome import Outcome, Verdict
from tests.conformance.selected import selected

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.outcome import Case


def example(family: str, fits: Callable[[Case], object]) -> Case:
    """Return a copy of the first kept case that fits, which is equal as it stands."""
    case = copy.deepcopy(next(case for case in selected(family) if fits(case)))
    assert run_case(case) == Outcome.equal()
    return case


def differences(case: Case) -> str:
    outcome = run_case(case)
    assert outcome.verdict is Verdict.WRONG
    return "; ".join(outcome.differences)


@pytest.mark.parametrize(("what", "other"), [("mask", [63]), ("preferred", None), ("admit", None)])
def test_another_merge_is_wrong(what: str, other: object) -> None:
    case = example("merge", lambda case: case["expected"].get("mask"))
    case["expected"][what] = other
    assert what in differences(case)


def test_distances_must_be_missed_on_both_sides() -> None:
    rejected = example("merge", lambda case: "error" in case["expected"])
    rejected["expected"] = {"mask": None, "preferred": False, "admit": True}
    assert "rejected" in differences(rejected)
    merged = example("merge", lambda case: "error" not in case["expected"])
    merged["expected"] = {"error": "no distances"}
    assert "not rejected" in differences(merged)


@pytest.mark.parametrize(
    ("what", "other"),
    [("qos", "x"), ("pod_cpus", 99), ("memory", {}), ("exclusive_cpus", {}), ("pod_limits", {})],
)
def test_another_computing_of_a_pod_is_wrong(what: str, other: object) -> None:
    case = example("podinfo", lambda case: case["expected"]["pod_limits"])
    case["expected"][what] = other
    assert what in differences(case)


@pytest.mark.parametrize("pool", ["cpu_pod_scope_error", "memory_pod_scope_error"])
def test_an_empty_pool_must_be_found_on_both_sides(pool: str) -> None:
    """Pods that never get so far are not compared: the API server rejects them."""
    found: list[str] = []
    for case in selected("podinfo"):
        if case["expected"].pop(pool, None) is not None:
            found += run_case(case).differences
    assert any(pool in text for text in found)


def test_another_reading_of_options_is_wrong() -> None:
    case = example("options", lambda case: case["kind"] == "cpu" and "options" in case["expected"])
    name = next(iter(case["expected"]["options"]))
    case["expected"]["options"][name] = not case["expected"]["options"][name]
    assert name in differences(case)


def test_a_rejection_must_be_of_the_same_option() -> None:
    case = example("options", lambda case: "full-pcpus-only" in case["expected"].get("error", ""))
    case["expected"]["error"] = "unknown option some-other-option"
    assert "some-other-option" in differences(case)
    del case["expected"]["error"]
    assert "expected rejection None" in differences(case)


def test_hints_in_another_order_are_wrong() -> None:
    case = example("cpuhints", lambda case: len(case["expected"].get("hints", ())) > 1)
    case["expected"]["hints"].reverse()
    assert "hints" in differences(case)


def test_a_rejected_option_must_be_rejected_by_the_kubelet_too() -> None:
    case = example("cpuhints", lambda case: "policy_error" in case["expected"])
    case["expected"] = {"hints": []}
    assert differences(case).startswith("rejected: ")


def test_another_machine_is_wrong_and_one_that_the_kubelet_rejects_must_be_rejected() -> None:
    case = example("discover", lambda case: "topology" in case["expected"])
    case["expected"]["cpus_per_core"] += 1
    assert "cpus_per_core" in differences(case)
    case = example("discover", lambda case: "error" in case["expected"])
    case["topology"]["cpus"] = [[0, 0, 0, 0, 0]]
    assert "topology: " in differences(case)


@pytest.mark.parametrize(
    ("key", "other", "what"),
    [
        ("default", "0-2", "file "),
        ("policy_name", "none", "file "),
        ("pod_entries", {}, "file "),
        ("gates", {}, "not written"),
    ],
)
def test_another_content_of_a_checkpoint_is_wrong(key: str, other: object, what: str) -> None:
    case = example("checkpoint", lambda case: case["name"] == "checkpoint/base/3/gate")
    assert what in differences({**case, key: other})


@pytest.mark.parametrize(("key", "what"), [("file", "file "), ("for_hash", "hashed ")])
def test_every_recorded_text_of_a_checkpoint_is_compared(key: str, what: str) -> None:
    case = example("checkpoint", lambda case: case["name"] == "checkpoint/base/3/gate")
    case["expected"][key] = case["expected"][key].replace("static", "statik")
    assert differences(case).startswith(what)


def test_budgets_without_the_gate_must_not_be_lost() -> None:
    panic = next(c for c in selected("checkpoint") if c["name"] == "checkpoint/base/3/nogate")
    assert run_case(panic) == Outcome.right_instead()
    assert "pod entries are lost" in differences({**panic, "pod_entries": {}})


def test_a_crash_of_the_comparison_is_wrong() -> None:
    case = example("merge", lambda _: True)
    del case["policy"]
    assert "KeyError" in differences(case)


def test_a_family_without_a_comparison_is_wrong() -> None:
    assert "no comparison" in differences({"name": "x", "family": "unheard-of"})


RESTORED = {case["name"]: case for case in selected("restore")}


def restored(name: str, key: str, value: object) -> Case:
    """Return a recorded case with one part of the kubelet's answer replaced."""
    case = copy.deepcopy(RESTORED[name])
    *path, last = key.split(".")
    place = case["expected"]
    for part in path:
        place = place[part]
    place[last] = value
    return case


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
def test_another_restored_state_is_wrong(name: str, key: str, value: object) -> None:
    assert run_case(restored(name, key, value)).verdict is Verdict.WRONG


def test_rejecting_what_the_kubelet_takes_is_wrong_and_what_it_writes_again_is_compared() -> None:
    overlap = copy.deepcopy(RESTORED["restore/cpu/overlap/gate"])
    overlap["expected"] = RESTORED["restore/cpu/v2/gate"]["expected"]
    assert run_case(overlap).verdict is Verdict.WRONG
    name = "restore/cpu/default-empty/gate"
    assert run_case(RESTORED[name]) == Outcome.equal()
    other = RESTORED[name]["expected"]["cpu_manager_state_after"].replace("3394376107", "0")
    assert run_case(restored(name, "cpu_manager_state_after", other)).verdict is Verdict.WRONG

from __future__ import annotations

from typing import TYPE_CHECKING

from sysfs.mask import Mask
from tests.conformance.outcome import Outcome, Verdict
from tests.conformance.take import run_case

if TYPE_CHECKING:
    import pytest

    from tests.conformance.outcome import Case

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


def answered(**changes: object) -> Outcome:
    return run_case({**CASE, **changes})


def test_the_same_cpus_are_equal() -> None:
    assert answered() == Outcome.equal()


def test_other_cpus_are_wrong() -> None:
    assert answered(expected={"cpus": "1,3"}).verdict is Verdict.WRONG


def test_other_cpus_as_narrow_are_right_on_an_irregular_host() -> None:
    assert answered(expected={"cpus": "1,3"}, irregular=["cores"]) == Outcome.right_instead()


def test_wider_cpus_are_wrong_on_an_irregular_host() -> None:
    outcome = answered(available="0,3", expected={"cpus": "0,2"}, irregular=["cores"])
    assert outcome == Outcome.wrong("cpus 0,3 touch 2 cores, 0,2 only 1")


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


def test_wider_cpus_are_right_where_the_kubelets_are_beside_busy_ones_for_no_reason() -> None:
    outcome = run_case(UNEVEN)
    assert outcome == Outcome.right_instead()
    assert outcome.rules == {"whole cores"}


def test_wider_cpus_are_wrong_where_ours_are_beside_busy_ones_for_no_reason_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.conformance.take.take", lambda *_: Mask.parse("0,5"))
    assert run_case(UNEVEN) == Outcome.wrong("cpus 0,5 touch 2 nodes, 0,2 only 1")


def test_wider_cpus_are_right_where_the_kubelet_took_busy_ones() -> None:
    outcome = answered(
        available="0,3", expected={"cpus": "0,2"}, irregular=["cores"], outside_available="2"
    )
    assert outcome == Outcome.right_instead()


def test_too_few_cpus_are_no_measure_of_width() -> None:
    """A unit test's topology with one core id on two sockets makes the kubelet take too few."""
    outcome = answered(available="0,3", expected={"cpus": "0"}, irregular=["cores"])
    assert outcome == Outcome.right_instead()


def test_any_valid_choice_is_right_where_the_kubelet_hangs() -> None:
    assert answered(expected={"hang": True}) == Outcome.right_instead()


def test_the_answer_without_the_aliasing_defect_counts() -> None:
    outcome = answered(expected={"cpus": "1,3"}, expected_noalias={"cpus": "0,2"})
    assert outcome == Outcome.equal()


def test_cpus_that_are_not_free_are_wrong_whatever_the_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.conformance.take.take", lambda *_: Mask.parse("0,3"))
    outcome = answered(available="0,2", irregular=["cores"], outside_available="3")
    assert outcome == Outcome.wrong("cpus 3 of 0,3 are not free")


def test_a_rejection_must_name_the_same_numbers() -> None:
    text = "not enough cpus available to satisfy request: requested=5, available={}"
    assert answered(num=5, expected={"error": text.format(4)}) == Outcome.equal()
    assert answered(num=5, expected={"error": text.format(3)}).verdict is Verdict.WRONG
    assert answered(num=5).verdict is Verdict.WRONG

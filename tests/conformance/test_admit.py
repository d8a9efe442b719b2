"""That the comparison of whole admissions finds what is wrong."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.admit import run_case
from tests.conformance.outcome import Outcome, Verdict
from tests.conformance.selected import selected

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.outcome import Case

CASES = {case["name"]: case for family in ("admit", "admit_named") for case in selected(family)}
#: A Guaranteed pod with exclusive CPUs and pinned memory, then others.
PLAIN = "named/docs/static-policy/restricted/mem"
FLAGS = {"irregular", "doc_deviation", "invariant_violations", "api_invalid_pods"}


def outcome_of(name: str, change: Callable[[Case], object]) -> Outcome:
    case = copy.deepcopy(CASES[name])
    change(case)
    return run_case(case)


def first_with_cpus(case: Case) -> dict[str, Any]:
    """Return the first recorded answer in which a container holds CPUs."""
    return next(
        step
        for step in case["expected"]["steps"]
        if any(c["cpus"] for c in (step.get("pod") or {"containers": {}})["containers"].values())
    )


def invalid(case: Case) -> list[str]:
    return list(case.get("api_invalid_pods", ()))


def container(case: Case) -> dict[str, Any]:
    containers = first_with_cpus(case)["pod"]["containers"]
    return next(one for one in containers.values() if one["cpus"])


CHANGES: dict[str, Callable[[Case], object]] = {
    "admitted": lambda case: first_with_cpus(case).update(admitted=False, reason="x"),
    "qos": lambda case: first_with_cpus(case)["pod"].update(qos="Burstable"),
    "pod quota_disabled": lambda case: first_with_cpus(case)["pod"].update(quota_disabled=False),
    "cpus": lambda case: container(case).update(cpus="63"),
    "effective": lambda case: container(case).update(effective="63"),
    "isolation": lambda case: container(case).update(isolation="pod"),
    "quota_disabled": lambda case: container(case).update(quota_disabled=False),
    "mems": lambda case: container(case).update(mems="7"),
    "memory": lambda case: container(case)["memory"][0].update(size=1),
    "hint": lambda case: container(case).update(hint={"mask": [7], "preferred": True}),
    "shared pool": lambda case: first_with_cpus(case)["state"].update(default="63"),
    "memory of node": lambda case: first_with_cpus(case)["state"]["mem_nodes"]["0"].update(
        assignments=9
    ),
    "counters": lambda case: first_with_cpus(case)["metrics"].update(
        kubelet_cpu_manager_pinning_requests_total=9
    ),
    "shared_pool_size": lambda case: first_with_cpus(case)["metrics"].update(
        kubelet_cpu_manager_shared_pool_size_millicores=9
    ),
    "exclusive_cpu_allocation_count": lambda case: first_with_cpus(case)["metrics"].update(
        kubelet_cpu_manager_exclusive_cpu_allocation_count=9
    ),
    "allocation_per_numa": lambda case: first_with_cpus(case)["metrics"].update(
        {"kubelet_cpu_manager_allocation_per_numa{numa_node=0}": 9}
    ),
    "gauges": lambda case: case["expected"]["initial"]["metrics"].update(
        kubelet_cpu_manager_shared_pool_size_millicores=9
    ),
    "reserved": lambda case: case["expected"]["initial"].update(reserved="63"),
    "allocatable": lambda case: case["expected"]["initial"].update(allocatable="63"),
}


def test_the_recorded_answers_are_equal() -> None:
    assert outcome_of(PLAIN, lambda _: None) == Outcome.equal()


@pytest.mark.parametrize("what", CHANGES)
def test_another_answer_is_wrong_and_named(what: str) -> None:
    outcome = outcome_of(PLAIN, CHANGES[what])
    assert outcome.verdict is Verdict.WRONG
    assert any(what in difference for difference in outcome.differences)


def test_another_reason_is_wrong() -> None:
    name = "named/kep2625/full/5"
    assert outcome_of(name, lambda _: None) == Outcome.equal()

    def other(case: Case) -> None:
        case["expected"]["steps"][0]["reason"] = "TopologyAffinityError"

    assert "reason" in outcome_of(name, other).differences[0]


def test_other_devices_are_wrong() -> None:
    def holders(case: Case) -> list[dict[str, Any]]:
        pods = (step.get("pod") or {} for step in case["expected"]["steps"])
        found = (one for each in pods for one in each.get("containers", {}).values())
        return [one for one in found if one.get("devices")]

    name = next(n for n, case in CASES.items() if holders(case) and not FLAGS & case.keys())
    other = outcome_of(name, lambda case: holders(case)[0].update(devices={"a.b/none": ["x"]}))
    assert any("devices" in text for text in other.differences)


class TestGoingOn:
    """After an answer that is right instead of equal the next one is compared as any other."""

    #: At step 1 the kubelet rejects what the documents admit; at step 2 both admit a pod.
    NAME = "admit/00854/s2n2-interleaved/none-pod-plrm"

    def test_a_later_answer_must_be_equal_again(self) -> None:
        assert outcome_of(self.NAME, lambda _: None).verdict is Verdict.RIGHT

        def other(case: Case) -> None:
            case["expected"]["steps"][2]["pod"]["qos"] = "Burstable"

        assert outcome_of(self.NAME, other).differences[0].startswith("step 2 admit: qos")

    def test_a_state_that_can_be_none_of_ours_is_not_gone_on_from(self) -> None:
        def more_than_there_is(case: Case) -> None:
            node = case["expected"]["steps"][1]["state"]["mem_nodes"]["0"]
            node["memory"]["memory"] = [0, 1 << 60]
            case["expected"]["steps"][2]["pod"]["qos"] = "Burstable"

        assert outcome_of(self.NAME, more_than_there_is).verdict is Verdict.RIGHT


class TestFlags:
    DEVIATION = "named/kep5526-options/align-by-socket/12/container"

    def test_the_documents_pod_must_be_admitted(self) -> None:
        assert outcome_of(self.DEVIATION, lambda _: None) == Outcome.right_instead()

        def no_excuse(case: Case) -> None:
            step = case.pop("doc_deviation")["step"]
            case["expected"]["steps"][step]["message"] = "for another reason than memory"

        assert outcome_of(self.DEVIATION, no_excuse).verdict is Verdict.WRONG

    def test_before_the_flagged_step_everything_must_be_equal(self) -> None:
        name = next(
            name
            for name, case in CASES.items()
            if FLAGS & case.keys() == {"invariant_violations"}
            and min(part["step"] for part in case["invariant_violations"]["first"]) > 0
        )

        def other(case: Case) -> None:
            case["expected"]["steps"][0]["state"]["default"] = "63"

        assert "shared pool" in outcome_of(name, other).differences[0]

    # Shows in differences.md: invalid-pods
    def test_a_pod_that_the_api_server_rejects_must_be_rejected(self) -> None:
        name, number = next(
            (name, number)
            for name, case in CASES.items()
            for number, step in enumerate(case["steps"])
            if step["op"] == "admit" and step["pod"]["metadata"]["uid"] in invalid(case)
        )

        def valid(case: Case) -> None:
            pod = case["steps"][number]["pod"]
            pod["spec"] = copy.deepcopy(CASES[PLAIN]["steps"][0]["pod"]["spec"])

        assert outcome_of(name, lambda _: None) == Outcome.right_instead()
        assert "accepted, the API server would reject it" in outcome_of(name, valid).differences[0]

    def test_a_configuration_that_the_kubelet_rejects_must_be_rejected(self) -> None:
        name = next(
            name
            for name, case in CASES.items()
            if "unknown" in case["expected"].get("start_error", {}).get("message", "")
        )
        assert outcome_of(name, lambda _: None) == Outcome.equal()

        def fine(case: Case) -> None:
            case["config"] = CASES[PLAIN]["config"]
            case["topology"] = CASES[PLAIN]["topology"]

        assert "starts, expected" in outcome_of(name, fine).differences[0]


def with_policy_none(change: Callable[[Case], object]) -> Outcome:
    name = next(
        name
        for name, case in CASES.items()
        if case["config"]["topology"]["policy"] == "none" and "start_error" not in case["expected"]
    )
    return outcome_of(name, change)


def rejected_with(message: str) -> Callable[[Case], object]:
    return lambda case: case.update(expected={"start_error": {"message": message}})


# Shows in differences.md: policy-none
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda case: case["config"]["topology"].update(scope="sideways"), Verdict.RIGHT),
        (lambda case: case["config"]["topology"].update(options={"no": "true"}), Verdict.RIGHT),
        (
            lambda case: case["config"]["cpu"].update(policy="static", reserved="4000"),
            Verdict.WRONG,
        ),
        (rejected_with("unsupported on machines with more than 8 NUMA Nodes"), Verdict.RIGHT),
        (rejected_with("unknown policy"), Verdict.WRONG),
    ],
)
def test_what_policy_none_ignores_may_be_rejected_and_what_is_not_needed_taken(
    change: Callable[[Case], object], verdict: Verdict
) -> None:
    assert with_policy_none(change).verdict is verdict

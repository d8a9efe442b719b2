"""Recorded choices of CPUs against our own.

Where a flag says that the kubelet's answer is not right, ours must be valid: so many CPUs as asked
for, all of them free; and on irregular hosts no wider than the kubelet's, unless that one was
narrow because it took busy CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.managers.cpu_assignment import NotEnoughCpusError, Strategy, take
from sysfs.mask import Mask
from tests.conformance.cpu_topologies import topology_of, width
from tests.conformance.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.cpu_topology import CpuTopology
    from tests.conformance.outcome import Case


def run_case(case: Case) -> Outcome:
    """Compare one case of the family `take`."""
    topology = topology_of(case["topology"])
    available = Mask.parse(case["available"])
    expected = case["expected_noalias" if "expected_noalias" in case else "expected"]
    try:
        taken = take(topology, _strategy(case), available, case["num"])
    except NotEnoughCpusError as error:
        return Outcome.of(list(_refusal_differences(error, expected)))
    if str(taken) == expected.get("cpus"):
        return Outcome.equal()
    if not _kubelet_is_wrong(case):
        return Outcome.wrong(f"cpus {taken}, kubelet {expected}")
    problems = list(_invalid(case, topology, taken, expected))
    return Outcome.wrong(*problems) if problems else Outcome.right_instead()


def _strategy(case: Case) -> Strategy:
    return Strategy(
        group_size=case["group_size"] if case["op"] == "distributed" else None,
        spread=case["strategy"] == "spread",
        uncore=case.get("uncore", False),
    )


def _refusal_differences(error: NotEnoughCpusError, expected: Mapping[str, Any]) -> Iterator[str]:
    text = (
        "not enough cpus available to satisfy request:"
        f" requested={error.asked}, available={error.available}"
    )
    if text != expected.get("error"):
        yield f"refused: {text}, kubelet {expected}"


def _kubelet_is_wrong(case: Case) -> bool:
    hangs = "hang" in case["expected"]
    return hangs or bool(case.get("irregular")) or "outside_available" in case


def _invalid(
    case: Case, topology: CpuTopology, taken: Mask, expected: Mapping[str, Any]
) -> Iterator[str]:
    busy = taken - Mask.parse(case["available"])
    if busy:
        yield f"cpus {busy} of {taken} are not free"
    if len(taken) != case["num"]:
        yield f"{len(taken)} cpus {taken}, asked {case['num']}"
    if "cpus" in expected and "outside_available" not in case:
        theirs = width(topology, Mask.parse(expected["cpus"]))
        ours = width(topology, taken)
        for kind, number in ours.items():
            if number > theirs[kind]:
                yield f"cpus {taken} touch {number} {kind}, {expected['cpus']} only {theirs[kind]}"

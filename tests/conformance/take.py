"""Recorded choices of CPUs against our own.

Where a flag says that the kubelet's answer is not right, ours must be valid: so many CPUs as asked
for, all of them free; and on irregular hosts no wider than the kubelet's, unless that one was
narrow because it took busy CPUs, too few, or CPUs beside busy ones although whole cores were free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.managers.cpu.strategy import Strategy
from agent.managers.cpu.take import NotEnoughCpusError, take
from sysfs.mask import Mask
from tests.conformance.outcome import Outcome
from tests.conformance.recorded import topology_of, width

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.cpu.topology import CpuTopology
    from tests.conformance.outcome import Case


def run_case(case: Case) -> Outcome:
    """Compare one case of the family `take`."""
    topology = topology_of(case["topology"])
    available = Mask.parse(case["available"])
    expected = case["expected_noalias" if "expected_noalias" in case else "expected"]
    try:
        taken = take(topology, _strategy(case), available, case["num"])
    except NotEnoughCpusError as error:
        return Outcome.of(list(_rejection_differences(error, expected)))
    if str(taken) == expected.get("cpus"):
        return Outcome.equal()
    if not _kubelet_is_wrong(case):
        return Outcome.wrong(f"cpus {taken}, kubelet {expected}")
    invalid = list(_invalid(case, taken))
    wider = list(_wider(case, topology, taken, expected))
    if invalid:
        return Outcome.wrong(*invalid)
    if wider:
        theirs = Mask.parse(expected["cpus"])
        right = _whole_cores_instead(topology, available, taken, theirs)
        return Outcome.right_instead("whole cores") if right else Outcome.wrong(*wider)
    return Outcome.right_instead(*(["uneven host"] if case.get("irregular") else []))


def _strategy(case: Case) -> Strategy:
    return Strategy(
        group_size=case["group_size"] if case["op"] == "distributed" else None,
        spread=case["strategy"] == "spread",
        uncore=case.get("uncore", False),
    )


def _rejection_differences(error: NotEnoughCpusError, expected: Mapping[str, Any]) -> Iterator[str]:
    text = (
        "not enough cpus available to satisfy request:"
        f" requested={error.asked}, available={error.available}"
    )
    if text != expected.get("error"):
        yield f"rejected: {text}, kubelet {expected}"


def _kubelet_is_wrong(case: Case) -> bool:
    hangs = "hang" in case["expected"]
    return hangs or bool(case.get("irregular")) or "outside_available" in case


def _invalid(case: Case, taken: Mask) -> Iterator[str]:
    busy = taken - Mask.parse(case["available"])
    if busy:
        yield f"cpus {busy} of {taken} are not free"
    if len(taken) != case["num"]:
        yield f"{len(taken)} cpus {taken}, asked {case['num']}"


def _wider(
    case: Case, topology: CpuTopology, taken: Mask, expected: Mapping[str, Any]
) -> Iterator[str]:
    # A kubelet that takes too few CPUs (its counts were those of no real host) is not a measure.
    whole = "cpus" in expected and len(Mask.parse(expected["cpus"])) == case["num"]
    if whole and "outside_available" not in case:
        theirs = width(topology, Mask.parse(expected["cpus"]))
        ours = width(topology, taken)
        for kind, number in ours.items():
            if number > theirs[kind]:
                yield f"cpus {taken} touch {number} {kind}, {expected['cpus']} only {theirs[kind]}"


def _whole_cores_instead(topology: CpuTopology, free: Mask, ours: Mask, theirs: Mask) -> bool:
    """Return whether `theirs` has CPUs beside busy ones for no reason, and `ours` has not.

    There is a reason where no core would serve instead of these CPUs: one that is free as a whole,
    is not taken, and has no more CPUs than they are.
    """
    return _needless(topology, free, theirs) and not _needless(topology, free, ours)


def _needless(topology: CpuTopology, free: Mask, taken: Mask) -> bool:
    beside_busy = sum(
        (core.cpus & taken.bits).bit_count() for core in topology.cores if core.cpus & ~free.bits
    )
    return any(
        core.size <= beside_busy
        for core in topology.cores
        if not core.cpus & ~free.bits and not core.cpus & taken.bits
    )

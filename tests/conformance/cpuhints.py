"""Recorded topology hints of the CPU manager against our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config.policy_options import socket_problems
from agent.managers.cpu.hints import cpu_hints
from agent.managers.policy import CpuPolicyOptions, TopologyManagerPolicy
from sysfs.mask import Mask
from tests.conformance.outcome import Outcome
from tests.conformance.recorded import topology_of

if TYPE_CHECKING:
    from tests.conformance.outcome import Case


def run_case(case: Case) -> Outcome:
    """Compare one case of the family `cpuhints`: the same hints in the same order."""
    topology = topology_of(case["topology"])
    options = CpuPolicyOptions(
        **{name.replace("-", "_"): value == "true" for name, value in case["options"].items()}
    )
    expected = case["expected"]
    counts, policy = topology.counts, TopologyManagerPolicy.NONE
    rejections = tuple(socket_problems(options, policy, counts.sockets, counts.nodes))
    if rejections:
        return _same(f"rejected: {rejections}", "policy_error" in expected, expected)
    hints = cpu_hints(
        topology,
        options,
        Mask.parse(case["available"]),
        Mask.parse(case["reusable"]),
        case["request"],
    )
    ours = [{"mask": list(Mask(hint.nodes or 0)), "preferred": hint.preferred} for hint in hints]
    return _same(f"hints {ours}", ours == expected.get("hints"), expected)


def _same(ours: str, same: bool, expected: object) -> Outcome:  # noqa: FBT001  (one private use)
    return Outcome.equal() if same else Outcome.wrong(f"{ours}, kubelet {expected}")

"""How recorded policy options are read and rejected, against our own reading."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from agent.config.policy_options import (
    MAX_NODES,
    MIN_MAX_NODES,
    cpu_option_problems,
    cpu_options,
    prefers_closest,
    socket_problems,
    topology_option_problems,
)
from agent.managers.policy import TopologyManagerPolicy
from tests.conformance.outcome import Outcome
from tests.conformance.recorded import gates_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.outcome import Case

#: The names of options in a recorded message.
_OPTION: Final = re.compile(r"[a-z]+(?:-[a-z]+)+")


def run_case(case: Case) -> Outcome:
    """Compare one set of options."""
    return Outcome.of(_cpu(case) if case["kind"] == "cpu" else _topology(case))


def _cpu(case: Case) -> list[str]:
    options, expected = case["options"], case["expected"]
    problems = dict(cpu_option_problems(options, gates_of(case.get("gates") or {})))
    differences = _rejection(expected.get("error"), problems)
    if problems or differences:
        return differences
    found = {name.replace("_", "-"): value for name, value in asdict(cpu_options(options)).items()}
    policy = TopologyManagerPolicy(case.get("topology_policy", "none"))
    counts = case["topology"]
    on_host = dict(
        socket_problems(cpu_options(options), policy, counts["num_sockets"], counts["num_numa"])
    )
    return [
        *_equal(expected["options"], found),
        *_rejection(expected.get("validate_error"), on_host),
    ]


def _topology(case: Case) -> list[str]:
    options, expected = case["options"], case["expected"]
    problems = dict(topology_option_problems(options))
    differences = _rejection(expected.get("error"), problems)
    if problems or differences:
        return differences
    found = {
        "max-allowable-numa-nodes": int(options.get(MAX_NODES, MIN_MAX_NODES)),
        "prefer-closest-numa-nodes": prefers_closest(options),
    }
    return _equal(expected["options"], found)


def _rejection(expected: str | None, problems: Mapping[str, str]) -> list[str]:
    """Compare whether it is rejected, and that an option which the kubelet names is among ours."""
    if (expected is not None) != bool(problems):
        return [f"expected rejection {expected!r}, found {dict(problems)}"]
    named = set(_OPTION.findall(expected or ""))
    if named and not named & {*problems, *_OPTION.findall(" ".join(problems.values()))}:
        return [f"expected a rejection of {sorted(named)}, found {dict(problems)}"]
    return []


def _equal(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [] if expected == found else [f"expected {expected}, found {found}"]

"""Recorded merges of topology hints against our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.managers.errors import NodeDistancesError
from agent.managers.machine import MachineNode
from agent.managers.policy import TopologyManagerPolicy, TopologyPolicy
from agent.managers.topology.hint import Hint
from agent.managers.topology.merge import require_distances
from sysfs.mask import Mask
from tests.agent.managers.topology.merging import merge
from tests.conformance.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.managers.topology.many_nodes import ProviderHints
    from tests.conformance.outcome import Case


def run_case(case: Case) -> Outcome:
    """Merge the hints of one case and compare mask, preference and admission."""
    nodes = _nodes(case["numa"])
    policy = TopologyPolicy(
        TopologyManagerPolicy(case["policy"]),
        prefer_closest_numa_nodes=case["options"].get("prefer-closest-numa-nodes") == "true",
    )
    expected = case["expected"]
    try:
        require_distances(nodes, policy)
    except NodeDistancesError as error:
        return Outcome.equal() if "error" in expected else Outcome.wrong(f"rejected: {error}")
    if "error" in expected:
        return Outcome.wrong(f"not rejected, expected: {expected['error']}")
    hint, admitted = merge(
        Mask.from_ids(node.id for node in nodes),
        {node.id: node.distances for node in nodes},
        policy,
        [_provider(provider) for provider in case["providers"]],
    )
    ours = {"mask": _ids(hint.nodes), "preferred": hint.preferred, "admit": admitted}
    return Outcome.of(
        [
            f"{name}: {ours[name]}, expected {expected[name]}"
            for name in ours
            if ours[name] != expected[name]
        ]
    )


def _nodes(rows: Sequence[Mapping[str, Any]]) -> tuple[MachineNode, ...]:
    ids = [row["id"] for row in rows]
    return tuple(
        MachineNode(row["id"], 0, {}, dict(zip(ids, row.get("distances", ()), strict=False)))
        for row in rows
    )


def _provider(provider: Mapping[str, Any] | None) -> ProviderHints:
    return {
        resource: None if hints is None else [_hint(hint) for hint in hints]
        for resource, hints in (provider or {}).items()
    }


def _hint(hint: Mapping[str, Any]) -> Hint:
    ids = hint["mask"]
    return Hint(None if ids is None else Mask.from_ids(ids).bits, preferred=hint["preferred"])


def _ids(nodes: int | None) -> list[int] | None:
    return None if nodes is None else list(Mask(nodes))

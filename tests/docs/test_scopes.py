"""docs/scopes.md and the examples say what is decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pytest

from agent.config.load import load_config
from agent.config.resolve import resolve
from agent.managers.admission import admit
from agent.managers.allocation import Isolation
from agent.managers.machine import Machine
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import load_pod
from sysfs.described import regular_host
from tests.docs.consoles import changed_settings, settings_in
from tests.docs.hosts import ROOT

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation

TEXT: Final = (ROOT / "docs/scopes.md").read_text()
EXAMPLES: Final = ROOT / "deploy/examples"
POD, CONTAINER = "pod", "container"
#: A machine of the page.
MACHINE: Final = Machine.of(regular_host(cores_per_node=8, threads=2, memory_bytes=16 << 30))

Placed = Mapping[str, Isolation]
OWN, PODS, NODES = Isolation.CONTAINER, Isolation.POD, Isolation.HOST

#: What containers get in pod scope and in container scope; None: the pod is rejected.
EXPECTED: Final[Mapping[str, tuple[Placed | None, Placed | None]]] = {
    "guaranteed": (
        {"worker": OWN, "feeder": OWN},
        {"worker": OWN, "feeder": OWN},
    ),
    "mixed": (
        {"database": OWN, "metrics": PODS, "logs": PODS},
        {"database": OWN, "metrics": NODES, "logs": NODES},
    ),
    "shared-only": (
        {"web": PODS, "cache": PODS, "logs": PODS},
        {"web": NODES, "cache": NODES, "logs": NODES},
    ),
    "empty-pool": (
        None,
        {"database": OWN, "proxy": OWN, "logs": NODES},
    ),
    "spare-budget": (
        {"database": OWN, "proxy": OWN},
        {"database": OWN, "proxy": OWN},
    ),
    "init-containers": (
        {"prepare": PODS, "migrate": OWN, "database": OWN, "logs": PODS},
        {"prepare": NODES, "migrate": OWN, "database": OWN, "logs": NODES},
    ),
    "sidecar": (
        {"proxy": OWN, "restore": PODS, "audit": PODS, "database": OWN, "logs": PODS},
        {"proxy": OWN, "restore": NODES, "audit": NODES, "database": OWN, "logs": NODES},
    ),
    "two-devices": (
        None,
        {"packets": OWN, "trainer": OWN, "metrics": NODES},
    ),
}


def decided(example: str, scope: str, policy: str = "restricted") -> PodAllocation | None:
    """Decide the pod of an example on an empty machine of the page."""
    pod = (EXAMPLES / f"{example}.yaml").read_bytes()
    changes = [("topologyManagerScope", scope), ("topologyManagerPolicy", policy)]
    config = load_config(changed_settings(settings_in(TEXT), changes), "the page")
    rules = EffectivePolicy(MACHINE, resolve(config, MACHINE), MANAGERS)
    asked = load_pod(pod, example, pod_level=config.gates.pod_level_resources)
    return admit(rules, rules.empty_ledger(), asked).allocation


def isolations(allocation: PodAllocation | None) -> Placed | None:
    return None if allocation is None else {c.name: c.isolation for c in allocation.containers}


def test_every_example_is_tried() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == EXPECTED.keys()


@pytest.mark.parametrize("example", EXPECTED)
def test_an_example_is_decided_as_expected_in_both_scopes(example: str) -> None:
    in_pod_scope, in_container_scope = EXPECTED[example]
    assert isolations(decided(example, POD)) == in_pod_scope
    assert isolations(decided(example, CONTAINER)) == in_container_scope


@pytest.mark.parametrize("example", EXPECTED)
def test_policy_none_gives_no_budget_rejects_nothing_and_heeds_no_scope(example: str) -> None:
    in_pod_scope, other = (decided(example, scope, "none") for scope in (POD, CONTAINER))
    assert in_pod_scope is not None
    assert in_pod_scope.cpus is None
    assert isolations(in_pod_scope) == EXPECTED[example][1]
    assert other is not None
    assert in_pod_scope.containers == other.containers


def table(heading: str) -> dict[str, tuple[str, ...]]:
    """Return the rows of the table whose first column has this heading, by their first cells."""
    text = TEXT.partition(f"\n| {heading} | pod scope | container scope |\n")[2]
    lines = text.partition("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: tuple(row[1:]) for row in rows}


#: Which container of which example is one of the kind that a row is about.
KINDS: Final = {
    "exclusive container": ("mixed", "database"),
    "other container": ("mixed", "metrics"),
    "exclusive init container": ("init-containers", "migrate"),
    "other init container": ("init-containers", "prepare"),
    "exclusive sidecar": ("sidecar", "proxy"),
    "other sidecar": ("sidecar", "audit"),
}
WORDS: Final = {
    "its own": OWN,
    "the pod's shared pool": PODS,
    "the pod's budget, less": PODS,
    "the node's shared pool": NODES,
}


def test_the_table_of_containers_says_what_they_get() -> None:
    rows = table("container")
    assert rows.keys() == KINDS.keys()
    for kind, (example, container) in KINDS.items():
        for cell, placed in zip(rows[kind], EXPECTED[example], strict=True):
            assert placed is not None
            stated = next(level for words, level in WORDS.items() if cell.startswith(words))
            assert stated is placed[container], kind


def test_the_table_of_pods_says_what_is_rejected() -> None:
    rows = table("pod")
    for row, example in (
        ("exclusive containers use up the budget, and there are others", "empty-pool"),
        ("containers need different nodes", "two-devices"),
    ):
        for cell, placed in zip(rows[row], EXPECTED[example], strict=True):
            assert cell.split()[0] == ("rejected" if placed is None else "admitted"), row

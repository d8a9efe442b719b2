"""docs/scopes.md and the examples say what is decided."""

from __future__ import annotations

import json
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
from sysfs.mask import Mask
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


def decided(pod: bytes, scope: str, policy: str = "restricted") -> PodAllocation | None:
    """Decide the pod of a manifest on an empty machine of the page."""
    changes = [("topologyManagerScope", scope), ("topologyManagerPolicy", policy)]
    config = load_config(changed_settings(settings_in(TEXT), changes), "the page")
    rules = EffectivePolicy(MACHINE, resolve(config, MACHINE), MANAGERS)
    asked = load_pod(pod, "a test", pod_level=config.gates.pod_level_resources)
    return admit(rules, rules.empty_ledger(), asked).allocation


def example_of(name: str) -> bytes:
    return (EXAMPLES / f"{name}.yaml").read_bytes()


def allocated(example: str, scope: str, policy: str = "restricted") -> PodAllocation:
    allocation = decided(example_of(example), scope, policy)
    assert allocation is not None
    return allocation


def cpus(allocation: PodAllocation, container: str) -> Mask:
    found = allocation.container(container)
    assert found is not None
    assert found.cpus is not None
    return found.cpus


def isolations(allocation: PodAllocation | None) -> Placed | None:
    return None if allocation is None else {c.name: c.isolation for c in allocation.containers}


def test_every_example_is_tried() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == EXPECTED.keys()


@pytest.mark.parametrize("example", EXPECTED)
def test_an_example_is_decided_as_expected_in_both_scopes(example: str) -> None:
    in_pod_scope, in_container_scope = EXPECTED[example]
    assert isolations(decided(example_of(example), POD)) == in_pod_scope
    assert isolations(decided(example_of(example), CONTAINER)) == in_container_scope


# --- what the page says of single examples ------------------------------------------------------


@pytest.mark.parametrize("scope", [POD, CONTAINER])
def test_the_slice_of_an_init_container_is_given_again(scope: str) -> None:
    allocation = allocated("init-containers", scope)
    assert cpus(allocation, "database") == cpus(allocation, "migrate")
    assert len(cpus(allocation, "migrate")) == 4


def test_an_init_container_without_requests_bursts_to_the_whole_budget() -> None:
    allocation = allocated("init-containers", POD)
    assert cpus(allocation, "prepare") == allocation.cpus
    assert len(cpus(allocation, "prepare")) == 8


def test_a_sidecar_keeps_its_slice_and_the_others_share_what_is_left() -> None:
    allocation = allocated("sidecar", POD)
    assert allocation.cpus is not None
    proxy, database = cpus(allocation, "proxy"), cpus(allocation, "database")
    assert not proxy & database
    assert cpus(allocation, "restore") == allocation.cpus - proxy
    left = allocation.cpus - proxy - database
    assert cpus(allocation, "audit") == cpus(allocation, "logs") == left
    assert len(left) == 2


def test_what_is_left_of_a_budget_is_the_pods_in_pod_scope_alone() -> None:
    allocation = allocated("spare-budget", POD)
    assert allocation.cpus is not None
    assert len(allocation.cpus - cpus(allocation, "database") - cpus(allocation, "proxy")) == 2
    assert len(allocated("spare-budget", CONTAINER).exclusive_cpus) == 4


def test_each_container_is_beside_its_device_in_container_scope() -> None:
    allocation = allocated("two-devices", CONTAINER)
    nodes = {c.name: c.mems for c in allocation.containers}
    assert nodes == {"packets": Mask.of(1), "trainer": Mask.of(0), "metrics": Mask.of()}
    assert cpus(allocation, "packets") <= Mask.parse("8-15,24-31")
    assert cpus(allocation, "trainer") <= Mask.parse("0-7,16-23")


def test_best_effort_admits_in_pod_scope_what_no_node_can_hold() -> None:
    assert decided(example_of("two-devices"), POD, "best-effort") is not None


def test_memory_is_pinned_for_all_in_pod_scope_and_for_exclusive_containers_in_the_other() -> None:
    pinned = {
        scope: {c.name for c in allocated("mixed", scope).containers if c.mems}
        for scope in (POD, CONTAINER)
    }
    assert pinned == {POD: {"database", "metrics", "logs"}, CONTAINER: {"database"}}


@pytest.mark.parametrize("example", EXPECTED)
def test_policy_none_gives_no_budget_rejects_nothing_and_heeds_no_scope(example: str) -> None:
    in_pod_scope = allocated(example, POD, "none")
    assert in_pod_scope.cpus is None
    assert isolations(in_pod_scope) == EXPECTED[example][1]
    assert in_pod_scope.containers == allocated(example, CONTAINER, "none").containers


def pod_of(*requests: str, budget: str | None = None) -> bytes:
    """Return the manifest of a pod with a container for each amount of CPUs ("": no requests)."""
    containers = [
        {"name": f"c{number}", **(amounts(asked, "1Gi") if asked else {})}
        for number, asked in enumerate(requests)
    ]
    spec = {"containers": containers, **(amounts(budget, "8Gi") if budget else {})}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    return json.dumps(manifest).encode()


def amounts(cpu: str, memory: str) -> Mapping[str, object]:
    asked = {"cpu": cpu, "memory": memory}
    return {"resources": {"requests": asked, "limits": asked}}


def test_without_a_budget_pod_scope_keeps_a_pod_together_and_container_scope_does_not() -> None:
    """Two containers of 8 CPUs fit node 1, which has 16, and one of them node 0, which has 14."""
    pod = pod_of("8", "8")
    together, apart = decided(pod, POD), decided(pod, CONTAINER)
    assert together is not None
    assert apart is not None
    assert [c.mems for c in together.containers] == [Mask.of(1), Mask.of(1)]
    assert [c.mems for c in apart.containers] == [Mask.of(0), Mask.of(1)]


def test_a_pod_larger_than_a_node_is_for_container_scope() -> None:
    pod = pod_of("10", "10")
    assert decided(pod, POD) is None
    assert isolations(decided(pod, CONTAINER)) == {"c0": OWN, "c1": OWN}


def test_a_budget_that_is_not_a_whole_number_gets_no_cpus_of_its_own_in_pod_scope() -> None:
    allocation = decided(pod_of("2", "", budget="4500m"), POD)
    assert allocation is not None
    assert allocation.cpus is None
    assert isolations(allocation) == {"c0": NODES, "c1": NODES}
    assert [c.mems for c in allocation.containers] == [Mask.of(0), Mask.of(0)]


# --- the tables ---------------------------------------------------------------------------------


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

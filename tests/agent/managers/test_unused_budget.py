from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import Origin
from agent.managers.sharing import UnusedBudget, unused_budget
from agent.pods.model import CPU, ContainerKind
from sysfs.mask import Mask
from tests.agent.managers.hosts import GIB, make_rules
from tests.agent.managers.test_invariants import pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod

TWO = guaranteed("cpu=2 memory=1Gi")
BUDGET = guaranteed("cpu=6 memory=4Gi")


def allocated(*containers: Container, rules: EffectivePolicy | None = None) -> PodAllocation:
    rules = rules or make_rules()
    allocation = admit(rules, rules.empty_ledger(), pod(*containers, of_pod=BUDGET)).allocation
    assert allocation is not None
    return allocation


def test_what_the_only_exclusive_container_leaves_is_unused() -> None:
    assert unused_budget(allocated(app("a", TWO))) == (
        UnusedBudget(CPU, 4, 6, Mask.parse("3-6")),
        UnusedBudget("memory", 3 * GIB, 4 * GIB),
    )


def test_nothing_is_said_of_a_pod_whose_containers_are_not_all_known() -> None:
    """Of an imported budget the sharing container may be the one that has ended."""
    allocation = allocated(app("a", TWO))
    unknown = tuple(replace(container, why="") for container in allocation.containers)
    assert unused_budget(replace(allocation, origin=Origin.IMPORTED, containers=unknown)) == ()


@given(rules=rule_sets(), asked=pods("u-1"))
@settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_it_is_the_budget_less_what_lasts_unless_a_container_shares(
    rules: EffectivePolicy, asked: Pod
) -> None:
    allocation = admit(rules, rules.empty_ledger(), asked).allocation
    if allocation is None:
        return
    lasting = [c for c in rules.demand(asked).containers if c.kind is not ContainerKind.INIT]
    found = {each.resource: each.unused for each in unused_budget(allocation)}
    cpus = 0
    if allocation.cpus is not None and all(c.cpus for c in lasting):
        cpus = len(allocation.cpus) - sum(c.cpus for c in lasting)
    assert found.pop(CPU, 0) == cpus
    memory: dict[str, int] = {}
    if all(c.memory for c in lasting):
        for block in allocation.memory:
            used = sum(c.memory.get(block.type, 0) for c in lasting)
            memory[block.type] = block.size - used
    assert found == {name: size for name, size in memory.items() if size > 0}

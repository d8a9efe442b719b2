"""What a ledger is under the rules of another start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.machine import Machine
from agent.managers.memory.state import memory_charge
from agent.managers.rules import restored
from sysfs.described import regular_host
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import GIB, PLAIN, make_rules
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger

RULES, UNPINNED = make_rules(), make_rules(memory=False)


def filled() -> Ledger:
    ledger = RULES.empty_ledger()
    for uid in ("u-1", "u-2"):
        asked = pod(app("a", guaranteed("cpu=500m memory=1Gi")), uid=uid)
        ledger = with_pod(RULES, asked, ledger)
    return ledger


def charged(ledger: Ledger) -> int:
    return sum(node.reserved.get("memory", 0) for node in memory_charge(ledger).values())


def test_less_memory_of_the_same_shape_changes_nothing() -> None:
    ledger = filled()
    nodes = (replace(node, memory_bytes=node.known_memory - 4096) for node in PLAIN.nodes)
    assert restored(make_rules(replace(PLAIN, nodes=tuple(nodes))), ledger) is ledger


def test_without_memory_pinning_nothing_is_charged_until_memory_is_pinned_again() -> None:
    ledger = filled()
    taken = restored(UNPINNED, ledger)
    assert memory_charge(taken) == {}
    assert taken.allocations is ledger.allocations
    assert memory_charge(remove(UNPINNED, taken, "u-1")) == {}
    back = restored(RULES, taken)
    assert charged(back) == charged(ledger) == 2 * GIB
    emptied = remove(RULES, remove(RULES, back, "u-1"), "u-2")
    assert memory_charge(emptied) == memory_charge(RULES.empty_ledger())


# Shows in differences.md: memory-nodes
def test_what_the_machine_no_longer_has_is_not_charged() -> None:
    ledger = filled()
    rules = make_rules(Machine.of(regular_host(packages=1, cores_per_node=8)))
    moved = restored(rules, ledger)
    assert memory_charge(moved).keys() == {0}
    assert moved.allocations is ledger.allocations
    assert remove(rules, moved, "u-1").allocations.keys() == {"u-2"}

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers import admission
from agent.managers.machine import Machine
from agent.managers.memory.state import memory_charge
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    MemoryManagerPolicy,
    MemoryPolicy,
    Policy,
)
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, restored
from agent.pods.manifest import load_pod
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from sysfs.host import Host

GIB = 1 << 30


def rules(host: Host, memory: MemoryManagerPolicy = MemoryManagerPolicy.STATIC) -> EffectivePolicy:
    reserved = MappingProxyType({0: MappingProxyType({"memory": GIB})})
    cpu = CpuPolicy(CpuManagerPolicy.STATIC, reserved=Mask.of(0))
    return EffectivePolicy(
        Machine.of(host), Policy(cpu=cpu, memory=MemoryPolicy(memory, reserved)), MANAGERS
    )


TWO_NODES = regular_host(packages=2, cores_per_node=4, hugepages=((2 << 20, 512),))
ONE_NODE = regular_host(packages=1, cores_per_node=8)


def filled(in_force: EffectivePolicy) -> Ledger:
    ledger = in_force.empty_ledger()
    for name, uid in (("web", UID), ("db", OTHER_UID)):
        decision = admission.admit(in_force, ledger, load_pod(manifest(name, uid), "test"))
        assert decision.admitted
        ledger = decision.ledger
    return ledger


def charged(ledger: Ledger) -> int:
    return sum(node.reserved.get("memory", 0) for node in memory_charge(ledger).values())


def test_less_memory_of_the_same_shape_changes_nothing() -> None:
    ledger = filled(rules(TWO_NODES))
    smaller = replace(
        TWO_NODES,
        nodes=tuple(replace(n, memory_bytes=(n.memory_bytes or 0) - 4096) for n in TWO_NODES.nodes),
    )
    assert restored(rules(smaller), ledger) is ledger


def test_without_memory_pinning_nothing_is_charged_and_allocations_stay() -> None:
    ledger = filled(rules(TWO_NODES))
    taken = restored(rules(TWO_NODES, MemoryManagerPolicy.NONE), ledger)
    assert memory_charge(taken) == {}
    assert taken.allocations is ledger.allocations
    assert (
        memory_charge(admission.remove(rules(TWO_NODES, MemoryManagerPolicy.NONE), taken, UID))
        == {}
    )


def test_with_memory_pinning_again_what_allocations_hold_is_charged_again() -> None:
    static, none = rules(TWO_NODES), rules(TWO_NODES, MemoryManagerPolicy.NONE)
    ledger = filled(static)
    back = restored(static, restored(none, ledger))
    assert charged(back) == charged(ledger) == 2 * GIB
    emptied = admission.remove(static, admission.remove(static, back, UID), OTHER_UID)
    assert memory_charge(emptied) == memory_charge(static.empty_ledger())


# Shows in differences.md: memory-nodes
def test_what_the_machine_no_longer_has_is_not_charged() -> None:
    ledger = filled(rules(TWO_NODES))
    moved = restored(rules(ONE_NODE), ledger)
    assert memory_charge(moved).keys() == {0}
    assert moved.allocations is ledger.allocations
    assert admission.remove(rules(ONE_NODE), moved, UID).allocations.keys() == {OTHER_UID}

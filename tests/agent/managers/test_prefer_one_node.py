"""CPUs and memory on one node, rather than some of them near a device (`agent.preferOneNode`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.policy import PluginDevice
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, RESTRICTED, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

NIC: Final = "example.com/nic"
DEVICES: Final = {NIC: (PluginDevice("n0", Mask.of(0)),)}


def rules(topology: object = BEST_EFFORT, *, one_node: bool = True) -> EffectivePolicy:
    found = make_rules(topology=topology, devices=DEVICES)  # type: ignore[arg-type]
    return preferring(found, one_node=one_node)


def preferring(found: EffectivePolicy, *, one_node: bool) -> EffectivePolicy:
    topology = replace(found.policy.topology, prefer_one_node=one_node)
    return replace(found, policy=replace(found.policy, topology=topology))


def asking(cpus: int, nics: int = 1) -> Pod:
    nic = f" {NIC}={nics}" if nics else ""
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi{nic}")), uid=f"u-{cpus}-{nics}")


# Shows in differences.md: prefer-one-node
@pytest.mark.parametrize(
    ("one_node", "cpus", "memory"), [(False, "5-7,8-10", "0"), (True, "8-13", "1")]
)
def test_cpus_and_memory_go_to_one_node_where_that_of_the_device_has_too_few(
    cpus: str, memory: str, *, one_node: bool
) -> None:
    host = rules(one_node=one_node)
    ledger = with_pod(host, asking(4, nics=0))  # of node 0 three CPUs are left
    found = allocated(host, asking(6), ledger)
    assert found.exclusive_cpus == Mask.parse(cpus)
    assert str(found.containers[0].mems) == memory
    assert found.containers[0].devices == {NIC: ("n0",)}
    assert not found.containers[0].hint.preferred


def test_near_the_device_comes_first_and_other_policies_decide_as_before() -> None:
    assert allocated(rules(), asking(6)).exclusive_cpus == Mask.parse("1-6")
    strict = rules(RESTRICTED)
    ledger = with_pod(strict, asking(4, nics=0))
    assert not admit(strict, ledger, asking(6)).admitted


@given(drawn=rule_sets(), asked=pods("u-1").filter(lambda each: len(each.all_containers()) == 1))
@EVERY_SEQUENCE
def test_a_container_is_on_no_more_nodes_with_it_and_no_other_one_is_admitted(
    drawn: EffectivePolicy, asked: Pod
) -> None:
    nodes = []
    for one_node in (True, False):
        decision = admit(preferring(drawn, one_node=one_node), drawn.empty_ledger(), asked)
        cpus = None if decision.allocation is None else decision.allocation.exclusive_cpus
        nodes.append(None if cpus is None else len(drawn.machine.cpus.nodes_of(cpus)))
    with_it, without = nodes
    assert (with_it is None) is (without is None)
    assert with_it is None or without is None or with_it <= without

"""What an allocation has of what a latency-critical container wants, and why not more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.allocation import ContainerAllocation, PodAllocation
from agent.managers.decision import Reason
from agent.managers.policy import PluginDevice
from agent.managers.quality import verdict
from agent.pods.model import NEAR_NODES, REQUIRE, ContainerKind, QosClass, Quality
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, rejected, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, POD, RESTRICTED, SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, pod, resources

if TYPE_CHECKING:
    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod

GPU = "example.com/gpu"


CORES = make_rules(SMT, RESTRICTED, CONTAINER, memory=False)


def judged(rules: EffectivePolicy, *containers: Container) -> dict[tuple[str, str], str]:
    allocation = allocated(rules, pod(*containers))
    return {(each.container, str(each.quality)): each.why for each in verdict(rules, allocation)}


def test_a_container_that_asked_for_no_cpus_of_its_own_lacks_none() -> None:
    rules = make_rules(SMT, RESTRICTED, CONTAINER)
    assert judged(rules, app("main", guaranteed("cpu=1500m memory=1Gi"))) == {
        ("main", "aligned"): ""
    }
    assert judged(rules, app("main", resources("cpu=1"))) == {}


def test_without_a_specification_it_is_not_known_whether_cpus_are_its_own() -> None:
    main = ContainerAllocation("main", ContainerKind.APP)
    allocation = PodAllocation("a", "web", "shop", QosClass.GUARANTEED, "", (main,))
    (found,) = verdict(make_rules(SMT, RESTRICTED, CONTAINER), allocation)
    assert (found.quality, found.why) == (Quality.EXCLUSIVE, "its specification is not known")


@pytest.mark.parametrize("quality", ["aligned", "whole-cores", "near-device"])
def test_what_is_required_of_a_pod_that_has_nothing_to_judge_is_lacking(quality: str) -> None:
    rules = make_rules(SMT, RESTRICTED, CONTAINER)
    asked = replace(pod(app("main", resources("cpu=1"))), annotations={REQUIRE: quality})
    assert f"requires: {quality}: no container has" in rejected(rules, asked).message


def test_the_fewest_nodes_that_have_enough_are_aligned_if_that_is_so_of_all_resources() -> None:
    wide = app("main", guaranteed("cpu=9 memory=1Gi"))
    with_memory = make_rules(topology=BEST_EFFORT, scope=CONTAINER)
    cpus_alone = make_rules(topology=BEST_EFFORT, scope=CONTAINER, memory=False)
    assert judged(cpus_alone, wide)["main", "aligned"] == ""
    assert judged(with_memory, wide)["main", "aligned"] == "CPUs on nodes 0-1, memory on nodes 0-1"


def test_a_device_of_another_node_is_far_and_one_without_a_node_is_not() -> None:
    devices = {GPU: (PluginDevice("far", Mask.of(1)),), "example.com/x": (PluginDevice("any"),)}
    rules = make_rules(topology=BEST_EFFORT, scope=CONTAINER, memory=False, devices=devices)
    for amount in f"cpu=2 memory=1Gi {GPU}=1 example.com/x=1", f"cpu=8 memory=1Gi {GPU}=1":
        assert judged(rules, app("main", guaranteed(amount)))["main", "near-device"] == ""
    other = pod(app("main", guaranteed("cpu=8 memory=1Gi")), uid="other")
    asked = pod(app("main", guaranteed(f"cpu=5 memory=1Gi {GPU}=1")))
    allocation = allocated(rules, asked, with_pod(rules, other))
    (found,) = [e for e in verdict(rules, allocation) if e.quality is Quality.NEAR_DEVICE]
    assert found.why == f"{GPU} far is on node 1, the container on node 0"


def requiring(text: str) -> Pod:
    return pod(app("main", guaranteed("cpu=3 memory=1Gi")), annotations={REQUIRE: text})


def test_a_pod_that_would_not_get_what_it_requires_is_rejected_unless_it_runs() -> None:
    rejection = rejected(CORES, requiring("exclusive, whole-cores"))
    assert (rejection.reason, rejection.container) == (Reason.REQUIREMENT, "main")
    assert rejection.message == (
        "the pod would not get what it requires: main is not whole-cores: not its own on the same "
        "cores: CPU 0"
    )
    allocated(CORES, requiring("whole-cores"), with_pod(CORES, requiring("")))


def near(nodes: str, cpus: int, uid: str = "near") -> Pod:
    main = app("main", guaranteed(f"cpu={cpus} memory=1Gi"))
    return pod(main, uid=uid, annotations={NEAR_NODES: nodes})


@pytest.mark.parametrize("topology", [BEST_EFFORT, RESTRICTED])
@pytest.mark.parametrize("scope", [CONTAINER, POD])
@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_is_put_near_the_node_that_it_names(
    topology: TopologyManagerPolicy, scope: TopologyManagerScope, node: int
) -> None:
    rules = make_rules(topology=topology, scope=scope)
    allocation = allocated(rules, near(str(node), 2))
    assert rules.machine.cpus.nodes_of(allocation.exclusive_cpus) == Mask.of(node)
    assert allocation.containers[0].mems == Mask.of(node)


def test_a_pod_that_cannot_be_near_or_is_on_no_node_is_rejected() -> None:
    rules = make_rules(topology=BEST_EFFORT, scope=CONTAINER)
    rejection = rejected(rules, near("1", 2), with_pod(rules, near("1", 8, "first")))
    assert rejection.reason == Reason.REQUIREMENT
    assert rejection.message == (
        "the pod would not be near node 1 as it requires: main is on node 0"
    )
    shared = pod(app("main", resources("cpu=1")), annotations={NEAR_NODES: "1"})
    message = rejected(rules, shared).message
    assert "none of its containers has CPUs or memory of its own" in message

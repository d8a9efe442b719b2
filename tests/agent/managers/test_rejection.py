from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.admission import admit
from agent.managers.decision import HintTrace, Reason, Rejection
from agent.managers.machine import Machine
from agent.managers.policy import PluginDevice
from agent.managers.rejection import affinity_rejection
from agent.managers.topology.hint import Hint
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import draft_of, with_pod
from tests.agent.managers.hosts import RESTRICTED, SINGLE, make_rules
from tests.agent.pods.pods import app, guaranteed, pod, resources

if TYPE_CHECKING:
    from agent.managers.policy import TopologyManagerPolicy
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

GPU = "example.com/gpu"
NIC = "example.com/nic"
DEVICES = {
    GPU: (
        PluginDevice("g0", Mask.of(0)),
        PluginDevice("g1", Mask.of(0), healthy=False),
        PluginDevice("g2", Mask.of(1)),
        PluginDevice("g3", Mask.of(0, 1)),
    ),
    NIC: (PluginDevice("n1", Mask.of(1)),),
}


def rejected(rules: EffectivePolicy, desired: Pod, *others: Pod) -> Rejection:
    ledger = rules.empty_ledger()
    for other in others:
        ledger = with_pod(rules, other, ledger)
    decision = admit(rules, ledger, desired)
    assert decision.rejection is not None
    return decision.rejection


class TestFailedAlignment:
    BIG = pod(app("a", guaranteed("cpu=9 memory=1Gi")))

    def test_it_says_of_every_resource_what_is_asked_where_it_fits_and_what_is_free(self) -> None:
        assert rejected(make_rules(topology=SINGLE), self.BIG).message == (
            "the pod cannot be aligned as topology policy single-numa-node demands:"
            " 9 of cpu fits best on {0-1} (free: node 0: 7, node 1: 8);"
            " 1 GiB of memory fits best on {0} or {1} (free: node 0: 15 GiB, node 1: 15 GiB)"
        )

    def test_what_is_busy_on_the_best_nodes_fits_only_across_more(self) -> None:
        others = [
            pod(app("a", guaranteed("cpu=5 memory=1Gi")), uid="one"),
            pod(app("a", guaranteed("cpu=5 memory=1Gi")), uid="two"),
        ]
        desired = pod(app("a", guaranteed("cpu=4 memory=1Gi")))
        message = rejected(make_rules(topology=RESTRICTED), desired, *others).message
        assert "4 of cpu fits only across {0-1} (free: node 0: 2, node 1: 3)" in message

    def test_resources_that_fit_on_different_nodes_only_blame_none_of_them(self) -> None:
        rules = make_rules(topology=SINGLE, devices=DEVICES)
        one_of_each = resources(f"{GPU}=1 {NIC}=1", f"{GPU}=1 {NIC}=1")
        draft = draft_of(rules, pod(app("a", one_of_each)))
        offers = (("devices", {GPU: (Hint(1, preferred=True),), NIC: (Hint(2, preferred=True),)}),)
        found = affinity_rejection(draft, HintTrace(None, offers)).explain()
        assert (found.resource, found.asked, found.free) == (None, None, {})

    @pytest.mark.parametrize("policy", [RESTRICTED, SINGLE])
    def test_an_empty_pool_is_named_as_such(self, policy: TopologyManagerPolicy) -> None:
        full = pod(
            app("a", guaranteed("cpu=4 memory=1Gi")),
            app("b"),
            of_pod=guaranteed("cpu=4 memory=4Gi"),
        )
        found = rejected(make_rules(topology=policy), full)
        assert found.reason is Reason.TOPOLOGY_AFFINITY
        assert found.message.startswith("exclusive containers take all 4 CPUs")
        assert (found.resource, found.asked, found.free) == ("cpu", None, {})

    def test_many_nodes_are_not_all_listed(self) -> None:
        machine = Machine.of(regular_host(packages=8, nodes_per_package=2, cores_per_node=2))
        rules = make_rules(machine, SINGLE, memory=False)
        draft = draft_of(rules, pod(app("a", guaranteed("cpu=1 memory=1Gi"))))
        offers = (("cpu", {"cpu": [Hint(1 << node, preferred=True) for node in range(16)]}),)
        message = affinity_rejection(draft, HintTrace(None, offers)).explain().message
        assert "{2}" in message
        assert "{3}" not in message

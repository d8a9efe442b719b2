from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.admission import admit
from agent.managers.allocation import DEVICES
from agent.managers.decision import Reason, Rejected
from agent.managers.device.manager import DeviceManager, allocated_devices
from agent.managers.policy import PluginDevice, TopologyManagerPolicy
from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.pods.model import QosClass
from sysfs.mask import Mask
from tests.agent.managers.drafts import container, draft_of, with_pod
from tests.agent.managers.hosts import CONTAINER, POD, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.managers.policy import TopologyManagerScope
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Resources

GPU = "example.com/gpu"
#: Two devices on node 0, two on node 1.
GPUS = tuple(PluginDevice(f"gpu{number}", Mask.of(number // 2)) for number in range(4))
RULES = make_rules(scope=CONTAINER, devices={GPU: GPUS})
ON_NODE_1 = Hint(2, preferred=True)
MANAGER = DeviceManager()


def gpus(count: int) -> Resources:
    return resources(limits=f"{GPU}={count}")


def test_too_few_devices_are_a_rejection_with_what_is_free_where() -> None:
    ledger = with_pod(RULES, pod(app("c1", gpus(3)), uid="other"))
    draft = draft_of(RULES, pod(app("c1", gpus(2))), ledger)
    with pytest.raises(Rejected) as caught:
        MANAGER.allocate(draft, container(draft, "c1"), NO_AFFINITY)
    rejection = caught.value.cause.explain()
    assert (rejection.reason, rejection.resource, rejection.container) == (
        Reason.UNEXPECTED,
        GPU,
        "c1",
    )
    assert (rejection.asked, rejection.free) == (2, {1: 1})
    assert "Requested: 2, Available: 1" in rejection.message


# Shows in differences.md: budget-devices
def test_a_budgets_containers_get_devices_one_after_the_other_from_the_pods_nodes() -> None:
    rules = make_rules(scope=POD, devices={GPU: GPUS})
    budget = guaranteed("cpu=4 memory=4Gi")
    draft = draft_of(
        rules,
        pod(
            init("i", gpus(1)), sidecar("s", gpus(1)), app("c1", gpus(1)), app("c2"), of_pod=budget
        ),
    )
    MANAGER.allocate_pod(draft, ON_NODE_1)
    assert draft.parts[DEVICES].containers == {
        "i": {GPU: ("gpu2",)},
        "s": {GPU: ("gpu2",)},
        "c1": {GPU: ("gpu3",)},
    }


class TestPodsWithABudget:
    """The kubelet leaves their devices to the start of a container, when it may be too late."""

    BUDGET = guaranteed("cpu=2 memory=1Gi")

    def rules(self, policy: TopologyManagerPolicy) -> EffectivePolicy:
        return make_rules(topology=policy, scope=POD, devices={GPU: GPUS[:2]})

    # Shows in differences.md: budget-devices
    @pytest.mark.parametrize("policy", TopologyManagerPolicy)
    def test_of_three_pods_of_two_devices_a_host_of_two_admits_one(
        self, policy: TopologyManagerPolicy
    ) -> None:
        rules = self.rules(policy)
        ledger = rules.empty_ledger()
        admitted = []
        for number in range(3):
            asked = pod(app("a", gpus(2)), app("b"), of_pod=self.BUDGET, uid=f"u-{number}")
            decision = admit(rules, ledger, asked)
            ledger = decision.ledger
            admitted.append(decision.admitted)
        assert admitted == [True, False, False]
        assert allocated_devices(ledger) == {GPU: frozenset({"gpu0", "gpu1"})}
        given = list(ledger.allocations["u-0"].allocated_devices())
        assert given == [("a", GPU, "gpu0"), ("a", GPU, "gpu1")]


@pytest.mark.parametrize("scope", [CONTAINER, POD])
@pytest.mark.parametrize("policy", TopologyManagerPolicy)
def test_a_best_effort_pod_gets_devices_of_one_node_where_anything_is_aligned(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope
) -> None:
    on_both = tuple(PluginDevice(f"gpu{number}", Mask.of(number % 2)) for number in range(4))
    rules = make_rules(topology=policy, scope=scope, devices={GPU: on_both})
    allocation = with_pod(rules, pod(app("a", gpus(2)))).allocations["u-1"]
    assert allocation.qos is QosClass.BEST_EFFORT
    assert allocation.containers[0].cpus is None
    aligned = policy is not TopologyManagerPolicy.NONE
    assert allocation.containers[0].devices == {GPU: ("gpu0", "gpu2" if aligned else "gpu1")}

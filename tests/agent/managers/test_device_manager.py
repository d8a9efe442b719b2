from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.decision import Reason
from agent.managers.device_manager import DeviceManager
from agent.managers.hints import NO_AFFINITY, Hint
from agent.managers.policy import PluginDevice
from agent.managers.providers import Refused
from sysfs.mask import Mask
from tests.agent.managers.drafts import container, draft_of, with_pod
from tests.agent.managers.hosts import CONTAINER, POD, make_rules
from tests.agent.pods.pods import app, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.pods.model import Resources

GPU = "example.com/gpu"
#: Two devices on node 0, two on node 1.
GPUS = tuple(PluginDevice(f"gpu{number}", Mask.of(number // 2)) for number in range(4))
RULES = make_rules(scope=CONTAINER, devices={GPU: GPUS})
ON_NODE_0 = Hint(1, preferred=True)
ON_NODE_1 = Hint(2, preferred=True)
MANAGER = DeviceManager()


def gpus(count: int) -> Resources:
    return resources(limits=f"{GPU}={count}")


def test_hints_reach_free_devices_narrow_masks_first() -> None:
    draft = draft_of(RULES, pod(app("c1", gpus(2))))
    assert MANAGER.container_hints(draft, container(draft, "c1")) == {
        GPU: (ON_NODE_0, ON_NODE_1, Hint(3, preferred=False))
    }


def test_a_container_without_devices_has_no_preference() -> None:
    draft = draft_of(RULES, pod(app("c1")))
    assert MANAGER.container_hints(draft, container(draft, "c1")) == {}
    MANAGER.allocate(draft, container(draft, "c1"), ON_NODE_0)
    assert draft.devices == {}


def test_devices_of_other_pods_are_not_offered() -> None:
    ledger = with_pod(RULES, pod(app("c1", gpus(2)), uid="other"))
    draft = draft_of(RULES, pod(app("c1", gpus(2))), ledger)
    assert MANAGER.pod_hints(draft) == {GPU: (ON_NODE_1, Hint(3, preferred=False))}


def test_the_hints_nodes_serve_first() -> None:
    draft = draft_of(RULES, pod(app("c1", gpus(3))))
    MANAGER.allocate(draft, container(draft, "c1"), ON_NODE_1)
    assert draft.devices == {"c1": {GPU: ("gpu0", "gpu2", "gpu3")}}


def test_two_containers_of_a_pod_get_different_devices() -> None:
    draft = draft_of(RULES, pod(app("c1", gpus(1)), app("c2", gpus(1))))
    for name in ("c1", "c2"):
        MANAGER.allocate(draft, container(draft, name), NO_AFFINITY)
    assert draft.devices == {"c1": {GPU: ("gpu0",)}, "c2": {GPU: ("gpu1",)}}


def test_an_init_containers_devices_are_used_again_a_sidecars_are_not() -> None:
    draft = draft_of(RULES, pod(init("i", gpus(1)), sidecar("s", gpus(1)), app("c1", gpus(1))))
    for name in ("i", "s", "c1"):
        MANAGER.allocate(draft, container(draft, name), NO_AFFINITY)
    assert draft.devices == {"i": {GPU: ("gpu0",)}, "s": {GPU: ("gpu0",)}, "c1": {GPU: ("gpu1",)}}


def test_too_few_devices_are_a_refusal_with_what_is_free_where() -> None:
    ledger = with_pod(RULES, pod(app("c1", gpus(3)), uid="other"))
    draft = draft_of(RULES, pod(app("c1", gpus(2))), ledger)
    with pytest.raises(Refused) as caught:
        MANAGER.allocate(draft, container(draft, "c1"), NO_AFFINITY)
    refusal = caught.value.refusal
    assert (refusal.reason, refusal.resource, refusal.container) == (Reason.UNEXPECTED, GPU, "c1")
    assert (refusal.asked, refusal.free) == (2, {1: 1})
    assert "Requested: 2, Available: 1" in refusal.message


def test_a_budgets_devices_are_given_after_admission_not_with_it() -> None:
    rules = make_rules(scope=POD, devices={GPU: GPUS})
    draft = draft_of(rules, pod(app("c1", gpus(2))))
    MANAGER.allocate_pod(draft, ON_NODE_0)
    assert draft.devices == {}

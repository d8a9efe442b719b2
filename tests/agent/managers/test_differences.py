"""Where kubelet v1.36.2 decides otherwise, shown on whole pods (docs/differences.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents.document import encode
from agent.api.views import rejection_document
from agent.managers.admission import admit
from agent.managers.cpu.manager import exclusive_cpus, shared_pool
from agent.managers.cpu.topology import CpuTopology
from agent.managers.decision import Reason
from agent.managers.machine import Machine, MachineNode
from agent.managers.policy import NodeFit, PluginDevice
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, restored
from agent.managers.topology.hint import Hint
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, rejected, with_pod
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    GIB,
    NO_POLICY,
    PLAIN,
    POD,
    RESTRICTED,
    SINGLE,
    make_rules,
)
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.pods.model import Container, Resources

BUDGET = guaranteed("cpu=4 memory=4Gi")
#: One node: two cores of two threads (0-1, 2-3), then six cores without siblings.
HYBRID = Machine(
    CpuTopology.from_rows([(cpu, cpu // 2 * 2 if cpu < 4 else cpu, 0, 0, 0) for cpu in range(10)]),
    (MachineNode(0, 16 * GIB, {}, {0: 10}),),
)


class TestRestart:
    MIXED = pod(app("a", guaranteed("cpu=2 memory=2Gi")), app("b"), of_pod=BUDGET)

    # Shows in differences.md: restart-with-budget, other-policy
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (make_rules(topology=BEST_EFFORT), make_rules(topology=BEST_EFFORT)),
            (make_rules(), make_rules()),
            (make_rules(topology=SINGLE), make_rules(topology=SINGLE)),
            (make_rules(), make_rules(topology=NO_POLICY)),
            (make_rules(), make_rules(scope=CONTAINER, managed=False)),
        ],
    )
    def test_a_pod_with_a_budget_keeps_the_one_it_has(
        self, before: EffectivePolicy, after: EffectivePolicy
    ) -> None:
        """The kubelet takes a second budget, rejects the running pod, or rejects to start."""
        ledger = with_pod(before, self.MIXED)
        again = admit(after, ledger, self.MIXED)
        assert again.allocation == ledger.allocations["u-1"]
        assert again.ledger is ledger

    # Shows in differences.md: reserved-now
    def test_cpus_that_were_reserved_meanwhile_stay_with_their_pod_alone(self) -> None:
        """The kubelet rejects to start: not all reserved CPUs are in its default set."""
        ledger = with_pod(
            make_rules(scope=CONTAINER), pod(app("a", guaranteed("cpu=2 memory=1Gi")))
        )
        rules = make_rules(scope=CONTAINER, reserved="0-3")
        assert ledger.allocations["u-1"].exclusive_cpus == Mask.parse("1-2")
        assert shared_pool(rules, ledger) == Mask.parse("0,3-15")
        later = with_pod(rules, pod(app("a", guaranteed("cpu=2 memory=1Gi")), uid="u-2"), ledger)
        assert later.allocations["u-2"].exclusive_cpus == Mask.parse("4-5")

    # Shows in differences.md: strict-reservation
    def test_an_empty_shared_pool_does_not_prevent_a_start(self) -> None:
        """The kubelet rejects to start: its default set must not be empty."""
        rules = make_rules(topology=NO_POLICY, scope=CONTAINER, strict_cpu_reservation=True)
        everything = pod(app("a", guaranteed("cpu=15 memory=1Gi")))
        ledger = with_pod(rules, everything)
        assert not shared_pool(rules, ledger)
        again = restored(rules, ledger)
        assert admit(rules, again, everything).already_admitted
        assert admit(rules, again, pod(app("b"), uid="u-2")).admitted

    # Shows in differences.md: cpus-offline
    def test_cpus_that_went_offline_are_not_allocated(self) -> None:
        """The kubelet rejects to start: its CPUs are not those of the state."""
        before = make_rules(HYBRID, NO_POLICY, CONTAINER, memory=False)
        ledger = with_pod(before, pod(app("a", guaranteed("cpu=4 memory=1Gi"))))
        gone = exclusive_cpus(ledger).lowest
        rows = [tuple(row) for row in HYBRID.cpus.rows if row.cpu != gone]
        machine = replace(HYBRID, cpus=CpuTopology.from_rows(rows))  # type: ignore[arg-type]  # rows
        rules = make_rules(machine, NO_POLICY, CONTAINER, memory=False)
        assert gone not in shared_pool(rules, ledger)
        rest = len(rules.assignable_cpus - exclusive_cpus(ledger))
        later = with_pod(
            rules, pod(app("a", guaranteed(f"cpu={rest} memory=1Gi")), uid="u-2"), ledger
        )
        assert not later.allocations["u-2"].exclusive_cpus & exclusive_cpus(ledger)


# Shows in differences.md: shared-container-memory
@pytest.mark.parametrize(
    ("policy", "scope"),
    [
        *((policy, CONTAINER) for policy in (NO_POLICY, BEST_EFFORT, RESTRICTED, SINGLE)),
        (NO_POLICY, POD),
    ],
)
@pytest.mark.parametrize(
    "shared", [resources(), resources("cpu=500m memory=8Mi", "cpu=1 memory=8Mi")]
)
def test_a_shared_container_of_a_budget_needs_no_pinned_memory_in_container_scope(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope, shared: Resources
) -> None:
    """The kubelet rejects the KEP's own example: no memory is asked for, so no node serves it."""
    rules = make_rules(topology=policy, scope=scope)
    mixed = pod(app("a", guaranteed("cpu=2 memory=2Gi")), app("b", shared), of_pod=BUDGET)
    allocation = allocated(rules, mixed)
    assert [container.memory != () for container in allocation.containers] == [True, False]


# Shows in differences.md: node-distances
def test_distances_of_nodes_with_gaps_in_their_ids_are_their_own() -> None:
    """The kubelet looks them up by id: it crashes on these nodes, and errs on others."""
    rows = {0: (10, 32, 12), 2: (32, 10, 20), 3: (12, 20, 10)}
    machine = Machine(
        CpuTopology.from_rows([(n, n, n // 4, (0, 2, 3)[n // 2], n // 2) for n in range(6)]),
        tuple(
            MachineNode(node, 16 * GIB, {}, dict(zip(rows, row, strict=True)))
            for node, row in rows.items()
        ),
    )
    rules = make_rules(machine, BEST_EFFORT, CONTAINER, memory=False)
    topology = replace(rules.policy.topology, prefer_closest_numa_nodes=True)
    rules = EffectivePolicy(machine, replace(rules.policy, topology=topology), MANAGERS)
    allocation = allocated(rules, pod(app("a", guaranteed("cpu=3 memory=1Gi"))))
    assert allocation.containers[0].hint == Hint(Mask.of(0, 3).bits, preferred=True)
    assert allocation.exclusive_cpus == Mask.of(1, 4, 5)


# Shows in differences.md: rejected-pod
@pytest.mark.parametrize("scope", [CONTAINER, POD])
def test_a_rejected_pod_leaves_nothing_behind(scope: TopologyManagerScope) -> None:
    """The kubelet keeps what its earlier containers got until the next stale state is removed."""
    eight = guaranteed("cpu=8 memory=1Gi")
    asked = pod(init("i", guaranteed("cpu=2 memory=1Gi")), app("a", eight), app("b", eight))
    rejected(make_rules(topology=NO_POLICY, scope=scope), asked)


# Shows in differences.md: over-reserved-node
def test_a_node_with_more_reserved_than_it_has_gives_no_memory() -> None:
    """The kubelet subtracts unsigned numbers and sees 16 EiB free."""
    plain = make_rules(topology=SINGLE, scope=CONTAINER)
    reserved = {0: {"memory": 64 * GIB}, 1: {"memory": 64 * GIB}}
    memory = replace(plain.policy.memory, reserved=reserved)
    rules = EffectivePolicy(plain.machine, replace(plain.policy, memory=memory), MANAGERS)
    desired = pod(app("a", guaranteed("cpu=1 memory=1Gi")))
    rejection = rejected(rules, desired)
    assert rejection.reason is Reason.UNEXPECTED
    assert rejection.free == {0: 0, 1: 0}


# Shows in differences.md: room-first
def test_room_on_the_node_is_looked_at_before_alignment() -> None:
    """The kubelet asks its managers first, so its reason is that no nodes could be aligned."""
    asked = pod(app("a", guaranteed("cpu=17 memory=1Gi")))
    decision = admit(make_rules(fit=NodeFit()), make_rules().empty_ledger(), asked)
    assert decision.rejection is not None
    assert decision.rejection.reason == "OutOfcpu"
    assert decision.hints == ()
    assert decision.counters == {}
    assert rejected(make_rules(), asked).reason == Reason.TOPOLOGY_AFFINITY


# Shows in differences.md: unknown-resources
@pytest.mark.parametrize("name", ["example.com/gup", "kubernetes.io/x"])
def test_a_resource_that_the_node_does_not_offer_is_rejected(name: str) -> None:
    """The kubelet takes the first for one of the cluster's, not of its node, and admits the pod."""
    asked = pod(app("a", resources(f"{name}=1", f"{name}=1")))
    devices = {"example.com/gpu": (PluginDevice("0"),)}
    rejection = rejected(make_rules(devices=devices, fit=NodeFit()), asked)
    assert rejection.reason == f"OutOf{name}"
    assert ('did you mean "example.com/gpu"?' in rejection.message) is ("gup" in name)
    assert ("agent.devices" in rejection.remedy) is ("gup" in name)  # extended resources only
    assert "agent.ignoredResources" in rejection.remedy
    allocated(make_rules(devices=devices, fit=NodeFit(ignored=frozenset({name}))), asked)
    if "gup" in name:
        allocated(make_rules(devices=devices, fit=NodeFit(beside_kubelet=True)), asked)


# Shows in differences.md: milli-bytes
@pytest.mark.parametrize("scope", [CONTAINER, POD])
def test_memory_in_thousandths_of_bytes_is_rounded_up(scope: TopologyManagerScope) -> None:
    """The kubelet fails to represent such an amount and rejects Guaranteed pods."""
    rules = make_rules(scope=scope)
    small = guaranteed("cpu=1 memory=1500m")
    asked = pod(app("a", small), app("b", guaranteed("cpu=1 memory=2")))
    decision = admit(rules, rules.empty_ledger(), asked)
    assert decision.allocation is not None
    assert [block.size for c in decision.allocation.containers for block in c.memory] == [2, 2]
    assert decision.allocation.requests["memory"] == 4
    assert "1500m is not a whole number of bytes, it counts as 2" in decision.warnings[0]
    assert admit(rules, decision.ledger, asked).warnings == decision.warnings
    # Rounded up, containers may ask for some bytes more than their budget.
    allocated(rules, pod(app("a", small), app("b", small), of_pod=guaranteed("cpu=2 memory=3")))


# Shows in differences.md: large-amounts
@pytest.mark.parametrize("resource", ["cpu", "memory", "example.com/gpu", "kubernetes.io/x"])
@pytest.mark.parametrize("looks", [True, False])
def test_an_amount_that_no_host_has_is_rejected_for_want_of_room(
    resource: str, *, looks: bool
) -> None:
    """The kubelet counts on in 64 bits and arrives at any number."""
    amount = guaranteed(f"cpu=1 memory=1Gi {resource}=1e30")
    asked = pod(*(app(name, amount) for name in "abc"))
    rules = make_rules(
        devices={"example.com/gpu": (PluginDevice("0"),)}, fit=NodeFit() if looks else None
    )
    decision = admit(rules, rules.empty_ledger(), asked)
    if looks or resource != "kubernetes.io/x":
        assert decision.rejection is not None
        assert not looks or decision.rejection.reason == f"OutOf{resource}"
        assert encode(rejection_document(decision.rejection))


# Shows in differences.md: ephemeral-storage
def test_ephemeral_storage_is_not_looked_at() -> None:
    """The kubelet compares it with its image file system, of which the agent knows nothing."""
    rules = make_rules(fit=NodeFit())
    asked = pod(app("a", resources("ephemeral-storage=900Ti")))
    assert admit(rules, rules.empty_ledger(), asked).admitted


#: Two nodes; huge pages of 1 GiB are on node 1 only.
PAGES_ON_NODE_1 = replace(
    PLAIN, nodes=(PLAIN.nodes[0], replace(PLAIN.nodes[1], hugepages={GIB: 4}))
)


# Shows in differences.md: init-memory-types
@pytest.mark.parametrize("policy", [BEST_EFFORT, RESTRICTED, SINGLE])
@pytest.mark.parametrize("kind", [init, sidecar])
def test_huge_pages_that_only_an_init_container_asks_for_choose_the_pods_node(
    kind: Callable[[str, Resources], Container], policy: TopologyManagerPolicy
) -> None:
    """The kubelet aligns the pod to node 0, which has none of them, and then rejects it."""
    rules = make_rules(PAGES_ON_NODE_1, policy)
    desired = pod(
        kind("i", guaranteed("cpu=1 memory=1Gi hugepages-1Gi=2Gi")),
        app("a", guaranteed("cpu=2 memory=1Gi")),
    )
    allocation = allocated(rules, desired)
    assert {container.mems for container in allocation.containers} == {Mask.of(1)}
    assert allocation.exclusive_cpus <= Mask.parse("8-15")
    assert {container.hint for container in allocation.containers} == {Hint(2, preferred=True)}


# Shows in differences.md: shared-container-memory
@pytest.mark.parametrize("policy", [NO_POLICY, BEST_EFFORT, RESTRICTED, SINGLE])
def test_a_pod_whose_containers_all_share_is_admitted_beside_pinned_memory(
    policy: TopologyManagerPolicy,
) -> None:
    """The kubelet takes "no preference" for all nodes, of which one serves alone by now."""
    rules = make_rules(topology=policy, scope=CONTAINER)
    pinned = with_pod(rules, pod(app("a", guaranteed("cpu=1 memory=1Gi")), uid="other"))
    allocation = allocated(rules, pod(app("a"), app("b"), of_pod=BUDGET), pinned)
    assert not any(container.memory for container in allocation.containers)


# Shows in differences.md: metrics-gate
def test_resource_manager_metrics_count_without_the_gate() -> None:
    """KEP-5526 brings them with the gate; the kubelet counts them for every pod."""
    rules = make_rules(managed=False)
    desired = pod(app("a", guaranteed("cpu=1 memory=1Gi")))
    counters = admit(rules, rules.empty_ledger(), desired).counters
    assert counters["resource_manager_allocations_total", ("cpu", "node")] == 1
    assert counters["resource_manager_container_assignments", ("memory", "node_exclusive")] == 1


# Shows in differences.md: level-gate-off
def test_a_budget_that_the_feature_gate_drops_is_as_if_it_were_not_there() -> None:
    """An API server with PodLevelResources off drops the field."""
    rules = make_rules(managed=False, gates={"pod_level_resources": False})
    amount = guaranteed("cpu=2 memory=1Gi")
    dropped, without = (pod(app("a", amount), of_pod=of_pod) for of_pod in (amount, None))
    decision = admit(rules, rules.empty_ledger(), dropped)
    plain = admit(rules, rules.empty_ledger(), without)
    assert decision.allocation is not None
    assert plain.allocation is not None
    assert decision.allocation.containers == plain.allocation.containers
    assert decision.allocation.exclusive_cpus
    assert decision.warnings == (
        "spec.resources: the feature gate PodLevelResources is off, so it is left out",
    )
    assert plain.warnings == ()

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.managers.admission import admit
from agent.managers.cpu.manager import smt_misalignment
from agent.managers.cpu.topology import CpuTopology
from agent.managers.decision import Reason
from agent.managers.machine import Machine, MachineNode
from agent.managers.metrics import ALIGNED_COUNT, ALIGNED_FAILURE_COUNT
from agent.managers.quality import verdict
from agent.pods.model import Quality
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.cpu.cpu_hosts import TWO_SOCKETS
from tests.agent.managers.drafts import allocated, rejected
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    GIB,
    NO_POLICY,
    POD,
    RESTRICTED,
    SINGLE,
    make_rules,
)
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from agent.managers.decision import Decision
    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.managers.rules import EffectivePolicy


#: One node: a core of two threads (0-1) and two of one (2, 3).
UNEVEN = Machine(
    CpuTopology.from_rows([(cpu, 0 if cpu < 2 else cpu, 0, 0, 0) for cpu in range(4)]),
    (MachineNode(0, 16 * GIB, {}, {0: 10}),),
)


# Shows in differences.md: smt-total
@pytest.mark.parametrize(
    ("topology", "free", "count", "problem"),
    [
        (TWO_SOCKETS, "0-15", 5, "5 CPUs asked, not a multiple of the 2 CPUs of a core"),
        (TWO_SOCKETS, "0-3", 1, "1 CPU asked, not a multiple of the 2 CPUs of a core"),
        (TWO_SOCKETS, "1", 2, "2 CPUs asked, 1 is free in whole cores"),
        (UNEVEN.cpus, "0-3", 3, None),
        (UNEVEN.cpus, "0-3", 5, "5 CPUs asked, 4 are free in cores without reserved or"),
    ],
)
def test_half_a_core_is_rejected_and_of_uneven_ones_the_average_counts(
    topology: CpuTopology, free: str, count: int, problem: str | None
) -> None:
    found = smt_misalignment(topology, Mask.parse(free), count)
    assert found is None if problem is None else problem in (found or "")


#: Four nodes of two cores of two threads (n and n + 8); CPUs 0 and 1 are reserved, 8 and 9 are not.
HALVES = Machine.of(regular_host(packages=1, nodes_per_package=4, cores_per_node=2, threads=2))


def _counted(decision: Decision, rules: EffectivePolicy) -> tuple[int, int, list[bool]]:
    """Return how often cores count as whole and as torn, and what the verdict says."""
    assert decision.allocation is not None
    scope = "pod" if decision.allocation.has_budget else "container"
    whole, torn = (
        decision.counters.get((metric.name, (scope, "physical_cpu")), 0)
        for metric in (ALIGNED_COUNT, ALIGNED_FAILURE_COUNT)
    )
    judged = verdict(rules, decision.allocation)
    return whole, torn, [each.met for each in judged if each.quality is Quality.WHOLE_CORES]


# Shows in differences.md: halves-of-cores
@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize("scope", [CONTAINER, POD])
@pytest.mark.parametrize("policy", [NO_POLICY, BEST_EFFORT, RESTRICTED, SINGLE])
def test_halves_of_cores_are_no_room_while_whole_cores_are_free(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope, *, budget: bool
) -> None:
    rules = make_rules(HALVES, policy, scope, reserved="0-1", memory=False, full_pcpus_only=True)
    amount = guaranteed("cpu=2 memory=1Gi")
    desired = pod(app("a", amount), of_pod=amount if budget else None)
    decision = admit(rules, rules.empty_ledger(), desired)
    assert decision.allocation is not None
    assert decision.allocation.exclusive_cpus == Mask.parse("2,10")
    assert _counted(decision, rules) == (1, 0, [True])


# Shows in differences.md: halves-of-cores
@pytest.mark.parametrize("policy", [RESTRICTED, SINGLE])
def test_a_pod_is_not_aligned_to_a_node_of_half_cores(policy: TopologyManagerPolicy) -> None:
    rules = make_rules(HALVES, policy, CONTAINER, reserved="0,2,4,6", memory=False,
                       full_pcpus_only=True)  # fmt: skip
    rejection = rejected(rules, pod(app("a", guaranteed("cpu=4 memory=1Gi"))))
    assert rejection.reason is Reason.TOPOLOGY_AFFINITY
    free, whole = (", ".join(f"node {node}: {count}" for node in range(4)) for count in (3, 2))
    assert "4 of cpu fits only across {0-1} or" in rejection.message
    assert f" (free: {free}; in whole cores: {whole})" in rejection.message
    assert rejection.free == dict.fromkeys(range(4), 2)


# Shows in differences.md: init-cores
@pytest.mark.parametrize(("of_init", "of_app"), [(6, 6), (6, 2), (2, 6)])
@pytest.mark.parametrize("policy", [NO_POLICY, BEST_EFFORT, RESTRICTED, SINGLE])
@pytest.mark.parametrize("scope", [CONTAINER, POD])
def test_whole_cores_of_ended_init_containers_serve_again(
    scope: TopologyManagerScope, policy: TopologyManagerPolicy, of_init: int, of_app: int
) -> None:
    machine = Machine.of(regular_host(packages=1, cores_per_node=4, threads=2))
    rules = make_rules(machine, policy, scope, reserved="0,4", memory=False, full_pcpus_only=True)
    first = init("i", guaranteed(f"cpu={of_init} memory=1Gi"))
    desired = pod(first, app("a", guaranteed(f"cpu={of_app} memory=1Gi")))
    one, other = (each.cpus for each in allocated(rules, desired).containers)
    assert one is not None
    assert other is not None
    assert one <= other or other <= one
    second = app("b", guaranteed("cpu=2 memory=1Gi"))
    rejected(rules, pod(first, app("a", guaranteed("cpu=6 memory=1Gi")), second))


def test_a_torn_core_of_an_uneven_host_is_not_counted_as_whole() -> None:
    rules = make_rules(UNEVEN, NO_POLICY, CONTAINER, reserved="2", memory=False,
                       full_pcpus_only=True)  # fmt: skip
    first = admit(rules, rules.empty_ledger(), pod(app("a", guaranteed("cpu=1 memory=1Gi"))))
    assert _counted(first, rules) == (1, 0, [True])
    desired = pod(app("a", guaranteed("cpu=1 memory=1Gi")), uid="u-2")
    assert _counted(admit(rules, first.ledger, desired), rules) == (0, 1, [False])


#: Two nodes: cores 0+1, 2+3, 4+5, and four of one thread; CPU 0 is reserved.
TWO_KINDS = Machine(
    CpuTopology.from_rows(
        [(cpu, cpu // 2 if cpu < 6 else cpu, 0, int(cpu > 5), 0) for cpu in range(10)]
    ),
    tuple(MachineNode(each, 16 * GIB, {}, {each: 10, 1 - each: 20}) for each in (0, 1)),
)
#: One node with a core of two threads and one of one behind each cache; CPU 0 is reserved.
TWO_CACHES = Machine(
    CpuTopology.from_rows(
        [(cpu, core, 0, 0, int(cpu > 3)) for cpu, core in enumerate([0, 0, 1, 1, 2, 3, 3])]
    ),
    (MachineNode(0, 16 * GIB, {}, {0: 10}),),
)


# Shows in differences.md: whole-cores-add-up
@pytest.mark.parametrize("policy", [NO_POLICY, BEST_EFFORT, RESTRICTED, SINGLE])
@pytest.mark.parametrize(
    ("machine", "option", "count", "cpus"),
    [
        pytest.param(TWO_KINDS, {}, 3, "6-8", id="hints"),
        pytest.param(TWO_KINDS, {"distribute_cpus_across_numa": True}, 3, "6-8", id="distributed"),
        pytest.param(TWO_CACHES, {"prefer_align_cpus_by_uncorecache": True}, 1, "4", id="cache"),
    ],
)
def test_whole_cores_that_add_up_are_preferred_to_any_place(
    machine: Machine,
    option: dict[str, Any],
    count: int,
    cpus: str,
    policy: TopologyManagerPolicy,
) -> None:
    rules = make_rules(machine, policy, CONTAINER, memory=False, full_pcpus_only=True, **option)
    (container,) = allocated(rules, pod(app("a", guaranteed(f"cpu={count} memory=1Gi")))).containers
    assert container.cpus == Mask.parse(cpus)

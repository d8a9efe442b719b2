"""Pods that come and go on drawn hosts whose cores differ: on how many cores, and beside whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from agent.managers.admission import admit, remove
from agent.managers.allocation import Isolation
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.machine import Machine, MachineNode
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.cpu.hosts_of_uneven_cores import (
    cores_needed,
    cores_touched,
    draw_host,
    needlessly_shared,
)
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
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

HOSTS: Final = 60
STEPS: Final = 20
POLICIES: Final = [NO_POLICY, BEST_EFFORT, RESTRICTED, SINGLE]


@dataclass
class Allocated:
    """CPUs given to one container or budget: out of `free` ones, while others had `others`."""

    topology: CpuTopology
    free: Mask
    others: Mask
    cpus: Mask

    @property
    def needless_cores(self) -> int:
        near = self.free & self.topology.cpus_in_nodes(self.topology.nodes_of(self.cpus))
        needed = cores_needed(self.topology, near, len(self.cpus))
        return cores_touched(self.topology, self.cpus) - needed

    @property
    def needlessly_shared(self) -> Mask:
        return needlessly_shared(self.topology, self.free, self.others, self.cpus)


@dataclass
class Story:
    """One drawn host on which pods come and go."""

    random: Random
    rules: EffectivePolicy
    ledger: Ledger
    allocated: list[Allocated] = field(default_factory=list)

    @classmethod
    def drawn(cls, seed: int, *, full_pcpus_only: bool) -> Story:
        random = Random(seed)  # noqa: S311  # no secret
        topology = draw_host(random)
        nodes = [
            MachineNode(node.id, 16 * GIB, {}, {to.id: 10 + (to != node) for to in topology.nodes})
            for node in topology.nodes
        ]
        policy, scope = random.choice(POLICIES), random.choice([CONTAINER, POD])
        rules = make_rules(
            Machine(topology, tuple(nodes)), policy, scope, memory=False,
            reserved=str(topology.all.lowest), full_pcpus_only=full_pcpus_only,
        )  # fmt: skip
        story = cls(random, rules, rules.empty_ledger())
        for step in range(STEPS):
            story._step(f"u-{step}")
        return story

    def _step(self, uid: str) -> None:
        admitted = sorted(self.ledger.allocations)
        if admitted and self.random.random() < 0.3:
            self.ledger = remove(self.rules, self.ledger, self.random.choice(admitted))
            return
        before = self.ledger
        decision = admit(self.rules, before, self._pod(uid))
        self.ledger = decision.ledger
        if decision.allocation is not None:
            others = exclusive_cpus(before)
            self._note(decision.allocation, self.rules.assignable_cpus - others, others)

    def _pod(self, uid: str) -> Pod:
        """Draw a pod of one exclusive container, or a budget of several and a shared one."""
        if self.random.random() < 0.7:
            asked = guaranteed(f"cpu={self.random.randint(1, 8)} memory=64Mi")
            return pod(app("a", asked), uid=uid)
        sizes = [self.random.randint(1, 3) for _ in range(self.random.randint(1, 3))]
        budget = guaranteed(f"cpu={sum(sizes) + self.random.randint(1, 3)} memory=1Gi")
        slices = [
            app(f"a{place}", guaranteed(f"cpu={size} memory=64Mi"))
            for place, size in enumerate(sizes)
        ]
        return pod(*slices, app("z"), of_pod=budget, uid=uid)

    def _note(self, allocation: PodAllocation, free: Mask, others: Mask) -> None:
        topology = self.rules.machine.cpus
        if allocation.cpus is not None:
            near = self._near(free, allocation.cpus)
            self.allocated.append(Allocated(topology, near, others, allocation.cpus))
            free, others = allocation.cpus, EMPTY
        for container in allocation.containers:
            if container.cpus is not None and container.isolation is Isolation.CONTAINER:
                near = free if allocation.cpus is not None else self._near(free, container.cpus)
                self.allocated.append(Allocated(topology, near, others, container.cpus))
                free, others = free - container.cpus, others | container.cpus

    def _near(self, free: Mask, cpus: Mask) -> Mask:
        """Return the free CPUs of the same nodes; without a topology policy all nodes serve."""
        if self.rules.policy.topology.policy == NO_POLICY:
            return free
        topology = self.rules.machine.cpus
        return free & topology.cpus_in_nodes(topology.nodes_of(cpus))


@pytest.fixture(scope="module", params=[False, True], ids=["no options", "full-pcpus-only"])
def allocated(request: pytest.FixtureRequest) -> list[Allocated]:
    return [
        one
        for seed in range(HOSTS)
        for one in Story.drawn(seed, full_pcpus_only=request.param).allocated
    ]


# Shows in differences.md: uneven-cores
def test_of_twenty_allocations_at_most_one_lies_on_more_cores_than_needed(
    allocated: list[Allocated],
) -> None:
    """As on hosts whose cores are alike. The kubelet's average core makes it nine of twenty."""
    several = [one for one in allocated if len(one.cpus) > 1]
    needless = sum(1 for one in several if one.needless_cores)

    assert len(several) > 5 * HOSTS
    assert needless * 20 <= len(several)


# Shows in differences.md: uneven-cores
def test_no_core_is_shared_while_one_that_serves_is_free(allocated: list[Allocated]) -> None:
    shared = sum(1 for one in allocated if one.topology.cores_of(one.others) & one.cpus)

    assert shared > 25
    assert sum(1 for one in allocated if one.needlessly_shared) == 0


def test_only_free_cpus_are_given(allocated: list[Allocated]) -> None:
    assert all(one.cpus <= one.free and not one.cpus & one.others for one in allocated)

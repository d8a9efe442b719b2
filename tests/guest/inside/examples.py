"""The documents' pods, one after the other: admitted, started, checked, stopped, removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.guest.inside import machine, placements
from tests.guest.inside.pods import BACKGROUND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from tests.guest.inside.agent import Agent
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.kernel import Cgroup
    from tests.guest.inside.pods import Example
    from tests.guest.inside.starters import Starter
    from tests.guest.inside.workloads import Workload

    #: What is done to a pod's cgroup and its running containers.
    During: TypeAlias = Callable[[Cgroup, Mapping[str, Workload]], None]

#: A pod whose exclusive containers leave nothing for the others is rejected under each policy
#: with one of these: by the check itself, or because no hint is left (kubelet 1.36).
EMPTY_POOL: Final = ("EmptyPodSharedPoolError", "TopologyAffinityError")


@dataclass(slots=True)
class Host:
    """A guest with the agent, and one pod that always has what is left of the node."""

    checks: Checks
    agent: Agent
    background: Workload

    @classmethod
    def opened(cls, checks: Checks, agent: Agent, starter: Starter) -> Host:
        """Admit and start the background pod."""
        _, running = start(checks, agent, starter, BACKGROUND)
        return cls(checks, agent, running[BACKGROUND.containers[0]])

    def run(self, example: Example, starter: Starter, during: During | None = None) -> None:
        """Take one of the documents' pods through its life; `during` is done when it runs."""
        if example.placements is None:
            self._reject(example)
            return
        pod, running = start(self.checks, self.agent, starter, example)
        placements.check_pod(self.checks, example, running, pod, self.background)
        if during is not None:
            during(pod, running)
        starter.close()
        self.remove(example, pod)

    def remove(self, example: Example, pod: Cgroup) -> None:
        """Remove a pod whose containers are stopped; everything goes back."""
        self.agent.remove(example.uid)
        gone = f"{example.name}: the pod's cgroup is gone"
        self.checks.eventually(gone, lambda: pod.exists, expected=False, where=pod)
        others = self.background.cgroup
        back = f"{example.name}: its CPUs are in the shared pool again"
        self.checks.eventually(back, lambda: others.cpus, machine.cpus(), others)

    def _reject(self, example: Example) -> None:
        before = self.agent.pods()
        answer = self.agent.admit(example.manifest)
        rejection = answer.get("rejection") or {}
        self.checks.equal(f"{example.name}: rejected", answer["admitted"], expected=False)
        self.checks.check(
            f"{example.name}: the reason", rejection.get("reason") in EMPTY_POOL, rejection
        )
        message = str(rejection.get("message"))
        self.checks.check(f"{example.name}: says why", "share" in message, message)
        self.checks.equal(f"{example.name}: no allocation is left", self.agent.pods(), before)
        left = self.background.cgroup.cpus
        self.checks.equal(f"{example.name}: no other pod lost a CPU", left, machine.cpus())


def start(
    checks: Checks, agent: Agent, starter: Starter, example: Example
) -> tuple[Cgroup, dict[str, Workload]]:
    """Admit a pod and start its containers; stops the scenario if it is rejected."""
    answer = agent.admit(example.manifest)
    checks.require(f"{example.name}: admitted", answer["admitted"], answer.get("rejection") or "")
    pod = agent.cgroup_of(example.uid)
    checks.require(f"{example.name}: has a cgroup before any container", pod.exists, pod)
    starter.open(example, pod)
    running = {}
    for name in example.containers:
        running[name] = starter.start(name)
        if not starter.named:
            agent.bind(example.uid, name, running[name].pid)
    checks.eventually(f"{example.name}: the agent finds all enforced", agent.differences, [])
    return pod, running

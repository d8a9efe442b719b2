"""The examples of KEP-5526's documents as containers of containerd, made through CRI.

No binding names the container of a cgroup: the agent reads the runtime's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.guest.inside import containerd, kernel, snapshot
from tests.guest.inside.agent import BASE, Agent, samples
from tests.guest.inside.api import ask
from tests.guest.inside.cri_starter import Cri
from tests.guest.inside.examples import Host
from tests.guest.inside.pods import BACKGROUND, CONTAINER_SCOPE_EXAMPLES, POD_SCOPE_EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.guest.inside.guest import Guest
    from tests.guest.inside.workloads import Workload

#: The pod with containers on CPUs of their own and on shared ones, while which runs more is done.
MIXED: Final = "pod-scope-mixed"

#: How a change by a runtime is counted, by driver. crun keeps no record of what it was asked to
#: change; with the systemd driver the unit has one.
CAUSES: Final = {
    ("systemd", "runc"): "runtime update",
    ("systemd", "crun"): "reverted by systemd",
    ("cgroupfs", "runc"): "runtime update",
    ("cgroupfs", "crun"): "unknown",
}

DRIFT: Final = "numawarden_drift_found_total"


def run_with(guest: Guest, driver: str, runtime: str) -> None:
    """Run the pods of each scope with one cgroup driver and one OCI runtime.

    The background pod is another's, so that each driver meets both.
    """
    containerd.start(guest, driver, runtime)
    agent = Agent(guest, cgroupDriver=driver)
    agent.start()
    other = "crun" if runtime == "runc" else "runc"
    background, starter = Cri(driver, other), Cri(driver, runtime)
    host = Host.opened(guest.checks, agent, background)
    mixed = Mixed(host, background, starter)
    for scope, examples in (("pod", POD_SCOPE_EXAMPLES), ("container", CONTAINER_SCOPE_EXAMPLES)):
        if scope != BASE["topologyManagerScope"]:
            agent.configure(topologyManagerScope=scope, cgroupDriver=driver)
            agent.restart()
        for example in examples:
            host.run(example, starter, mixed.check if example.name == MIXED else None)


@dataclass(slots=True)
class Mixed:
    """What is looked at, and done by the runtime, while the mixed pod runs."""

    host: Host
    background: Cri
    starter: Cri

    def check(self, pod: kernel.Cgroup, running: Mapping[str, Workload]) -> None:
        """Check the pod's sandbox, and that the agent withstands its runtime."""
        first, second, *_ = running
        own, shared = running[first].cgroup.cpus, running[second].cgroup.cpus
        self._check_sandbox(pod, running, shared)
        workloads = [self.host.background, *running.values()]
        self._withstands(workloads, MIXED, self.starter, first, shared, cpu_quota=20_000)
        (theirs,) = BACKGROUND.containers
        self._withstands(workloads, BACKGROUND.name, self.background, theirs, own)

    def _check_sandbox(
        self, pod: kernel.Cgroup, running: Mapping[str, Workload], shared: frozenset[int]
    ) -> None:
        checks = self.host.checks
        containers = {workload.cgroup.path for workload in running.values()}
        inside = [kernel.Cgroup(path) for path in pod.path.iterdir() if path.is_dir()]
        others = [
            each for each in inside if not any(own.is_relative_to(each.path) for own in containers)
        ]
        checks.equal("one cgroup is the sandbox's", len(others), 1)
        found = [each.cpus for each in others]
        checks.equal("the sandbox runs in the pod's shared pool", found, [shared])
        notes = ask("POST", "reconcile")["notes"]
        checks.equal("no container has to be bound", notes, [])

    def _withstands(
        self,
        workloads: list[Workload],
        pod: str,
        cri: Cri,
        container: str,
        cpus: frozenset[int],
        **resources: int,
    ) -> None:
        """Have the runtime give a container other CPUs; one reconcile later they are its own."""
        checks, what = self.host.checks, f"{cri.handler} updates {pod}"
        within = self.host.background.cgroup.path.relative_to(kernel.CGROUPS)
        top = kernel.Cgroup(within.parts[0])
        good, before = snapshot.settings(top), self._drift()
        cri.update(container, cpuset_cpus=",".join(map(str, sorted(cpus))), **resources)
        answer = ask("POST", "reconcile")
        checks.equal(f"{what}: nothing is left to do", answer["differences"], [])
        changed = snapshot.differences(good, snapshot.settings(top))
        checks.equal(f"{what}: every setting is what it was", changed, {})
        risen = [cause for cause, count in self._drift().items() if count > before.get(cause, 0)]
        # While systemd has the value and the runtime's state does not yet, systemd is named too.
        cause = CAUSES[cri.driver, cri.handler]
        checks.check(f"{what}: the cause", cause in risen, risen)
        checks.equal(f"{what}: no workload was touched", snapshot.touched(workloads), [])
        checks.equal(f"{what}: it is over", ask("POST", "reconcile")["found"], {})

    def _drift(self) -> dict[str, float]:
        """Return how often something was found to differ, by cause."""
        found = samples(self.host.agent.metrics())
        return {
            name.partition('cause="')[2].removesuffix('"}'): value
            for name, value in found.items()
            if name.startswith(f"{DRIFT}{{")
        }

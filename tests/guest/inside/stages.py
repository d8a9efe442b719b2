"""Staged pods on the host: started as a runtime would, and looked at in each stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.guest.inside import machine, placements
from tests.guest.inside.pods import Exclusive, NodeShared, PodShared
from tests.guest.inside.staged import ALL_STAGES, IN_CONTAINER_SCOPE, INIT_REUSED, Kind
from tests.guest.inside.starters import SystemdRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.guest.inside.examples import Host
    from tests.guest.inside.kernel import Cgroup
    from tests.guest.inside.staged import Part, Staged
    from tests.guest.inside.workloads import Workload


@dataclass(slots=True)
class Run:
    """A staged pod whose containers run, but for the init containers, which have ended.

    `cpus` is what each container had when it had settled, `others` what the background pod had at
    that moment, both by container.
    """

    host: Host
    pod: Staged
    cgroup: Cgroup
    starter: SystemdRun
    running: dict[str, Workload]
    cpus: dict[str, frozenset[int]]
    others: dict[str, frozenset[int]]

    @classmethod
    def begin(cls, host: Host, pod: Staged) -> Run:
        """Admit a pod and start its containers in their order; stops the scenario if rejected."""
        answer = host.agent.admit(pod.manifest)
        rejection = answer.get("rejection") or ""
        host.checks.require(f"{pod.name}: admitted", answer["admitted"], rejection)
        run = cls(host, pod, host.agent.cgroup_of(pod.uid), SystemdRun(), {}, {}, {})
        run.starter.open(pod, run.cgroup)
        for part in pod.parts:
            run._start(part)
        return run

    def _start(self, part: Part) -> None:
        workload = self.starter.start(part.name)
        self.check(part, workload)
        self.cpus[part.name] = workload.cgroup.cpus
        self.others[part.name] = self.host.background.cgroup.cpus
        if part.kind is Kind.INIT:
            self.starter.stop(part.name)
        else:
            self.running[part.name] = workload

    def check(self, part: Part, workload: Workload) -> None:
        """Check where a container is."""
        checks, background = self.host.checks, self.host.background
        title = f"{self.pod.name} {part.name}"
        nodes = self.pod.nodes
        placements.check_container(checks, title, workload, part.placement, background, nodes)
        self._check_quota(title, part, workload)
        if isinstance(part.placement, (Exclusive, PodShared)):
            cpus, pod = workload.cgroup.cpus, self.cgroup.cpus
            checks.check(f"{title}: within the pod's set", cpus <= pod, f"{cpus}, pod {pod}")
            apart = cpus & background.cgroup.cpus
            checks.equal(f"{title}: no other pod's", apart, frozenset())

    def _check_quota(self, title: str, part: Part, workload: Workload) -> None:
        """Check a container's quota; one whose CPUs are the pod's may not have been seen yet."""
        limits = _quota_limits(part, self.pod.budget)

        def found() -> object:
            quota = workload.cgroup.millicores_within(self.cgroup)
            if quota is None or limits is None:
                return quota
            return limits if limits[0] <= quota <= limits[1] else quota

        self.host.checks.eventually(f"{title}: cpu.max", found, limits, workload.cgroup)

    @property
    def exclusive(self) -> frozenset[int]:
        """The CPUs that the pod's running containers have apart from the node's shared pool."""
        return frozenset().union(*(self.cpus[name] for name in self._apart()))

    def _apart(self) -> Iterator[str]:
        for part in self.pod.parts:
            if part.name in self.running and not isinstance(part.placement, NodeShared):
                yield part.name

    def check_still(self, when: str) -> None:
        """Check that each container is where it was, in the same process."""
        checks = self.host.checks
        now = {name: self.running[name].cgroup.cpus for name in self._apart()}
        before = {name: self.cpus[name] for name in self._apart()}
        checks.equal(f"{self.pod.name} {when}: the same CPUs", now, before)
        moved = [name for name, workload in self.running.items() if not workload.untouched]
        checks.equal(f"{self.pod.name} {when}: the same processes", moved, [])

    def end(self) -> None:
        """Stop the containers and remove the pod."""
        self.starter.close()
        self.host.agent.remove(self.pod.uid)
        gone = f"{self.pod.name}: the pod's cgroup is gone"
        self.host.checks.eventually(gone, lambda: self.cgroup.exists, expected=False)


def _quota_limits(part: Part, budget: int) -> tuple[int, int] | None:
    """Return the least and the most of a container's quota in millicores; None: no limit.

    A shared init container has enough for its CPUs; none has more than the budget.
    """
    if isinstance(part.placement, Exclusive):
        return None
    least = 1
    if part.kind is Kind.INIT and isinstance(part.placement, PodShared):
        least = part.placement.cpus * 1000
    return least, budget * 1000


def check_pod_scope(host: Host) -> None:
    """Check init containers and sidecars that divide one budget."""
    run = Run.begin(host, INIT_REUSED)
    _reused(run, "init", "app-1", "app-2")
    run.end()
    run = Run.begin(host, ALL_STAGES)
    had, checks, name = run.cpus, host.checks, run.pod.name
    _kept(run, "sidecar-exclusive")
    _reused(run, "init-exclusive", *run.running)
    checks.equal(
        f"{name}: init-shared has the budget less the exclusive sidecar",
        had["init-shared"],
        run.exclusive - had["sidecar-exclusive"],
    )
    for other in ("sidecar-exclusive", "app-exclusive"):
        checks.equal(
            f"{name}: sidecar-shared has no CPU of {other}",
            had["sidecar-shared"] & had[other],
            frozenset(),
        )
    checks.equal(f"{name}: one shared pool", had["app-shared"], had["sidecar-shared"])
    _end(run)


def check_container_scope(host: Host) -> None:
    """Check init containers and sidecars that are served one by one."""
    run = Run.begin(host, IN_CONTAINER_SCOPE)
    name, had = run.pod.name, run.cpus
    _kept(run, "sidecar-exclusive")
    host.checks.equal(
        f"{name}: app-exclusive has the CPUs that init-exclusive had",
        had["app-exclusive"],
        had["init-exclusive"],
    )
    _end(run)


def _reused(run: Run, init: str, *later: str) -> None:
    """Check that the CPUs of an init container that has ended are those of later containers."""
    used: frozenset[int] = frozenset().union(*(run.cpus[name] for name in later))
    lost = run.cpus[init] - used
    run.host.checks.equal(
        f"{run.pod.name}: CPUs of {init} that no container uses", lost, frozenset()
    )


def _kept(run: Run, sidecar: str) -> None:
    """Check that no container that started after an exclusive sidecar was given its CPUs."""
    own, names = run.cpus[sidecar], list(run.cpus)
    for name in names[names.index(sidecar) + 1 :]:
        title = f"{run.pod.name}: CPUs of {sidecar}"
        run.host.checks.equal(f"{title} that {name} has", run.cpus[name] & own, frozenset())
        run.host.checks.equal(
            f"{title} of others, with {name}", run.others[name] & own, frozenset()
        )


def _end(run: Run) -> None:
    """Check the pod as a whole once all of it runs, then end it."""
    checks, name = run.host.checks, run.pod.name
    run.check_still("when all run")
    others = run.host.background.cgroup
    checks.equal(f"{name}: all others have the rest", others.cpus, machine.cpus() - run.exclusive)
    limit = run.cgroup.millicores
    enough = limit is None or limit >= run.pod.budget * 1000
    checks.check(f"{name}: the pod's cpu.max leaves it its budget", enough, limit)
    checks.equal(f"{name}: the agent finds all enforced", run.host.agent.differences(), [])
    run.end()

"""Pods of every shape and each topology policy: what the documents' app containers leave out.

One host, and the agent started again with other configurations: init containers and sidecars in
both scopes, devices, the four policies, the whole host given away twice, `full-pcpus-only`, a pod
that wants more than its budget, and the gate PodLevelResourceManagers on, off and on again under a
running pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest.inside import load, machine, policies, stages
from tests.guest.inside.agent import Agent
from tests.guest.inside.examples import Host
from tests.guest.inside.pods import E2, P2, SHARED, PodShared
from tests.guest.inside.staged import Kind, Part, Staged, apps
from tests.guest.inside.stages import Run
from tests.guest.inside.starters import SystemdRun
from tests.guest.inside.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.guest.inside.guest import Guest

GATE_OFF: Final = {"featureGates": {"PodLevelResourceManagers": False}}
WHOLE_CORES_OF_ONE_NODE: Final = {
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "topologyManagerPolicy": "single-numa-node",
}

#: All that can be given of the host: 14 CPUs, and most of its memory.
ALL_CPUS: Final = 14
LARGE: Final = [
    Staged(f"large-{turn}", ALL_CPUS, apps(PodShared(ALL_CPUS), PodShared(ALL_CPUS)), 10, 2)
    for turn in (1, 2)
]

#: The pod that runs while the gate is changed, and those that come after each change.
RUNNING: Final = Staged("running", 4, apps(E2, P2))
UNDIVIDED: Final = Staged(
    "gate-off",
    4,
    (Part("app-1", Kind.APP, SHARED, asks=2), Part("app-2", Kind.APP, SHARED)),
)
ALONE: Final = Staged("gate-off-alone", 0, apps(E2))
DIVIDED: Final = Staged("gate-on-again", 4, apps(E2, P2))
HALF_A_CORE: Final = Staged("half-a-core", 5, apps(SHARED))


def run(guest: Guest) -> None:
    """Go through the configurations, each with a restart of the agent."""
    agent = Agent(guest, agent={"devices": policies.inventory()})
    agent.start()
    host = Host.opened(guest.checks, agent, SystemdRun())
    stages.check_pod_scope(host)
    policies.check_policy(host, "restricted")
    policies.check_budgets(host)
    _recycle(host)
    _gate(host)
    policies.check_policy(host, "single-numa-node")
    _configure(host, topologyManagerScope="container", topologyManagerPolicy="best-effort")
    stages.check_container_scope(host)
    load.check(host, load.write_program(guest.work / "busy"))
    policies.check_policy(host, "best-effort")
    _configure(host, topologyManagerPolicy="none")
    policies.check_policy(host, "none")


def _configure(host: Host, **changes: object) -> None:
    """Start the agent again with the configuration of the first start but for some changes."""
    host.agent.configure(agent={"devices": policies.inventory()}, **changes)
    host.agent.restart()


def _recycle(host: Host) -> None:
    """Run two pods of the whole host one after the other: the second has all that the first had."""
    first, second = (_lived(host, pod) for pod in LARGE)
    host.checks.equal("large: the first has all but what is reserved", len(first), ALL_CPUS)
    host.checks.equal("large: the second has the CPUs of the first", second, first)


def _lived(host: Host, pod: Staged) -> frozenset[int]:
    """Take a pod through its life; return the CPUs that were its own."""
    run = Run.begin(host, pod)
    host.checks.equal(f"{pod.name}: cpuset.mems.effective", run.cgroup.mems, machine.memory_nodes())
    rest = machine.cpus() - run.exclusive
    host.checks.equal(f"{pod.name}: others have the rest", host.background.cgroup.cpus, rest)
    run.end()
    return run.exclusive


def _gate(host: Host) -> None:
    """Switch the gate off and on under a running pod with a budget; new pods follow it."""
    running = Run.begin(host, RUNNING)
    _changed(host, running, "gate off", GATE_OFF)
    for pod in (UNDIVIDED, ALONE):
        run = Run.begin(host, pod)
        running.check_still(f"with {pod.name}")
        run.end()
    _changed(host, running, "gate on again", WHOLE_CORES_OF_ONE_NODE)
    _whole_cores(host, running)
    running.end()


def _changed(host: Host, running: Run, when: str, changes: Mapping[str, object]) -> None:
    """Restart the agent with another configuration; the running pod must notice nothing."""
    with Watch({one.name: one.pid for one in running.running.values()}) as watch:
        _configure(host, **changes)
        found = host.agent.differences()
    seen = {name: sorted(map(sorted, sets)) for name, sets in watch.seen.items()}
    own = {one.name: [sorted(running.cpus[part])] for part, one in running.running.items()}
    host.checks.check(f"{when}: looked at meanwhile", watch.looks > 1, watch.looks)
    host.checks.equal(f"{when}: where running processes were allowed", seen, own)
    running.check_still(when)
    host.checks.equal(f"{when}: the agent finds all enforced", found, [])


def _whole_cores(host: Host, running: Run) -> None:
    """Check budgets under full-pcpus-only: 4 CPUs are two cores, 5 are rejected."""
    run = Run.begin(host, DIVIDED)
    running.check_still(f"with {DIVIDED.name}")
    whole = machine.cores_of(run.exclusive)
    host.checks.equal("full-pcpus-only: 4 CPUs in whole cores", run.exclusive, whole)
    run.end()
    before = host.background.cgroup.cpus
    policies.check_rejected(host, "full-pcpus-only 5 CPUs", HALF_A_CORE, "SMTAlignmentError")
    host.checks.equal(
        "full-pcpus-only 5 CPUs: no other pod lost a CPU", host.background.cgroup.cpus, before
    )

"""The four topology policies: which pods each admits, and on which nodes they then run.

KEP-693, "Policies": `none` aligns nothing, `best-effort` aligns what it can and admits the rest,
`restricted` rejects what could be on fewer nodes than are left for it, `single-numa-node` whatever
does not fit one node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine
from tests.guest.inside.pods import E2, P2, Exclusive
from tests.guest.inside.staged import Kind, Part, Staged
from tests.guest.inside.stages import Run
from tests.guest.inside.starters import SystemdRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.guest.inside.examples import Host
    from tests.guest.inside.workloads import Workload

#: A card and a disk of node 1, which the guest has, and something of node 0, which only the
#: configuration knows.
CARD: Final = "example.com/card"
DISK: Final = "example.com/disk"
ACCELERATOR: Final = "example.com/accelerator"


def _guaranteed(name: str, cpus: int, *devices: str) -> Staged:
    """Return a pod of one container without a budget."""
    return Staged(name, 0, (Part("app", Kind.APP, Exclusive(cpus), devices=devices),))


ONE: Final = _guaranteed("one-node", 4)
TWO: Final = _guaranteed("two-nodes", 10)
NEAR: Final = _guaranteed("near-its-card", 2, CARD)
TORN: Final = _guaranteed("torn", 2, CARD, ACCELERATOR)

#: Pods with a budget: devices of one node, one of them a sharing container's, and of two nodes.
BUDGET: Final = Staged(
    "budget-near-its-devices",
    4,
    (Part("app-1", Kind.APP, E2, devices=(CARD,)), Part("app-2", Kind.APP, P2, devices=(DISK,))),
    gib=3,  # so that a pod that asks for the card again lacks nothing else on its node
)
TORN_BUDGET: Final = Staged(
    "torn-budget",
    4,
    (
        Part("app-1", Kind.APP, E2, devices=(CARD,)),
        Part("app-2", Kind.APP, P2, devices=(ACCELERATOR,)),
    ),
)

ON_0, ON_1, ON_BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Admitted without a promise about nodes."""


Outcome = frozenset[int] | Anywhere | None

#: For each policy and pod the nodes that its CPUs and its memory are of; None: rejected.
#: (What could be on one node as well as on the other is on the first.)
OUTCOMES: Final[Mapping[str, Mapping[Staged, Outcome]]] = {
    "none": {ONE: Anywhere(), TWO: ON_BOTH, TORN: Anywhere()},
    "best-effort": {ONE: ON_0, TWO: ON_BOTH, NEAR: ON_1, TORN: Anywhere()},
    "restricted": {ONE: ON_0, TWO: ON_BOTH, NEAR: ON_1, TORN: None},
    "single-numa-node": {ONE: ON_0, TWO: None, NEAR: ON_1, TORN: None},
}


def inventory() -> dict[str, list[dict[str, Any]]]:
    """Return `agent.devices` of the guest."""
    return {
        CARD: _listed(machine.local_devices("0x02")),
        DISK: _listed(machine.local_devices("0x01")),
        ACCELERATOR: _listed({"accelerator-0": 0}),
    }


def _listed(devices: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"id": address, "numaNodes": [node]} for address, node in devices.items()]


def check_budgets(host: Host) -> None:
    """Check devices of pods with a budget in pod scope: each container has those it asks for.

    The budget is on the node of all of its containers' devices, or the pod is rejected.
    """
    run = Run.begin(host, BUDGET)
    name, checks = BUDGET.name, host.checks
    checks.equal(f"{name}: nodes of the budget's CPUs", machine.nodes_of(run.exclusive), ON_1)
    shown = host.agent.show(BUDGET.uid)["containers"]
    found = {container["name"]: container["devices"] for container in shown}
    known = inventory()
    desired = {
        part.name: {one: [device["id"] for device in known[one]] for one in part.devices}
        for part in BUDGET.parts
    }
    checks.equal(f"{name}: each container's devices", found, desired)
    check_rejected(host, f"{name}: its card once more", NEAR, f"OutOf{CARD}")
    run.end()
    check_rejected(host, TORN_BUDGET.name, TORN_BUDGET, "TopologyAffinityError")


def check_policy(host: Host, policy: str) -> None:
    """Ask for each pod under the policy in force; those that are admitted are started."""
    in_force = host.agent.status()["policy"]["topologyManagerPolicy"]
    host.checks.equal(f"{policy}: in force", in_force, policy)
    for asked, outcome in OUTCOMES[policy].items():
        title = f"{policy} {asked.name}"
        if outcome is None:
            check_rejected(host, title, asked, "TopologyAffinityError")
            continue
        answer = host.agent.admit(asked.manifest)
        rejection = answer.get("rejection") or ""
        host.checks.require(f"{title}: admitted", answer["admitted"], rejection)
        _check_admitted(host, title, asked, outcome)
        host.agent.remove(asked.uid)


def check_rejected(host: Host, title: str, pod: Staged, reason: str) -> None:
    """Check that a pod is rejected for a reason; one that is not is removed again."""
    answer = host.agent.admit(pod.manifest)
    rejection = answer.get("rejection") or {}
    host.checks.equal(f"{title}: rejected", not answer["admitted"], expected=True)
    found = f"{rejection.get('reason')}: {rejection.get('message')}"
    host.checks.check(f"{title}: for {reason}", rejection.get("reason") == reason, found)
    if answer["admitted"]:
        host.agent.remove(pod.uid)


def _check_admitted(host: Host, title: str, asked: Staged, outcome: Outcome) -> None:
    checks, starter = host.checks, SystemdRun()
    starter.open(asked, host.agent.cgroup_of(asked.uid))
    workload = starter.start("app")
    cgroup = workload.cgroup
    (part,) = asked.parts
    checks.eventually(f"{title}: number of CPUs", lambda: len(cgroup.cpus), part.cpus, cgroup)
    if isinstance(outcome, frozenset):
        checks.equal(f"{title}: nodes of its CPUs", machine.nodes_of(cgroup.cpus), outcome, cgroup)
        checks.eventually(f"{title}: cpuset.mems.effective", lambda: cgroup.mems, outcome, cgroup)
    apart = cgroup.cpus & host.background.cgroup.cpus
    checks.equal(f"{title}: no other pod's CPUs", apart, frozenset(), cgroup)
    _check_as_decided(host, title, asked, workload)
    starter.close()


def _check_as_decided(host: Host, title: str, asked: Staged, workload: Workload) -> None:
    """Check that the kernel has what the agent says it decided, and each device is there."""
    (decided,) = host.agent.show(asked.uid)["containers"]
    checks, cgroup, pid = host.checks, workload.cgroup, workload.pid
    cpus, mems = kernel.ids(decided["cpus"]), kernel.ids(decided["mems"])
    runs, allowed = partial(kernel.affinity, pid), partial(kernel.memory_nodes, pid)
    checks.eventually(f"{title}: sched_getaffinity, as decided", runs, cpus, cgroup)
    checks.eventually(f"{title}: Mems_allowed, as decided", allowed, mems, cgroup)
    checks.eventually(f"{title}: no quota", lambda: cgroup.millicores, None, cgroup)
    known = {name: [device["id"] for device in found] for name, found in inventory().items()}
    desired = {name: known[name] for part in asked.parts for name in part.devices}
    checks.equal(f"{title}: its devices", decided["devices"], desired)

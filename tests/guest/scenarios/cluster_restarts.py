"""Kubelet, containerd and agent restart in every order beside running pods, which keep their CPUs.

A kubelet that restarts says that its list of pods is complete before it has any.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from tests.guest.inside import kernel
from tests.guest.inside.beside import MIXED, RUNNING, Node, facts
from tests.guest.inside.commands import run as command
from tests.guest.inside.snapshot import touched
from tests.guest.inside.workloads import Workload

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

PARTS = ("kubelet", "containerd", "agent")


def run(guest: Guest) -> None:
    """Restart them in each order; check after each restart."""
    node = Node.started(guest)
    checks = node.checks
    uid = node.runs(MIXED)
    node.check_mixed("started")
    cgroups = node.cgroups(uid, RUNNING)
    before = facts(cgroups)
    workloads = [_workload(node, name) for name in RUNNING]
    for order in permutations(PARTS):
        named = " > ".join(order)
        for part in order:
            when = f"{named}: {part}"
            node.restart(part, *(("--blind=3",) if part == "kubelet" else ()))
            checks.equal(f"{when}: nothing changes", facts(cgroups), before)
        checks.eventually(
            f"{named}: the kubelet has its pod", lambda: node.kubelet.phase(uid), "Running"
        )
        checks.eventually(f"{named}: so has the agent", node.allocations, {uid})
        checks.equal(f"{named}: as before", facts(cgroups), before)
    checks.equal("what starts and stops of the parts change is not drift", node.drift(), [])
    command("systemctl", "daemon-reload")
    node.check_mixed("after all of it")
    checks.equal("no container was touched", touched(workloads), [])
    created = node.kubelet.creations("mixed")
    checks.equal("none was started again", created, 1 + len(RUNNING))
    node.is_gone(MIXED)
    checks.equal("no sandbox was rejected", node.kubelet.rejected_sandboxes(), [])


def _workload(node: Node, name: str) -> Workload:
    """Return the process of a container, to see later that it is the same."""
    cgroup = node.kubelet.cgroup(node.kubelet.uid("mixed"), name)
    pid = kernel.only_process(cgroup, "sleep")
    return Workload(name, cgroup, pid, kernel.start_time(pid))

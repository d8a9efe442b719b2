"""Services with CPUAffinity= while the slices of the host are narrowed, and a pod's own threads.

Before 6.2 the kernel forgets what threads asked for by themselves when their set is written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tests.guest.inside import isolated, kernel, machine
from tests.guest.inside.agent import Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

BOUND: Final = frozenset(range(1, 6))
SLEEP: Final = ("/bin/busybox", "sleep", "1000000")


def run(guest: Guest) -> None:
    """Bind a service, admit a pod beside it, bind a process of the pod, and remove the pod."""
    checks, agent = guest.checks, Agent(guest)
    isolated.permit(guest, "isolation.conf")
    isolated.configure(agent, hostSlices=True)
    agent.start()
    _start("bound", "system.slice", f"--property=CPUAffinity={min(BOUND)}-{max(BOUND)}")
    checks.equal("a service has its CPUAffinity", _affinity("bound"), BOUND)
    own = kernel.ids(agent.admit(isolated.pod_of("alone", isolated.POD))["pod"]["exclusiveCpus"])
    free = machine.cpus() - own
    checks.equal("beside a pod: CPUs of its slice", isolated.effective("system.slice"), free)
    kept = kernel.version() >= (6, 2)
    checks.equal("beside a pod: its own", _affinity("bound"), BOUND - own if kept else free)
    _start("own", isolated.SLICE)
    ask("POST", "reconcile")
    checks.equal("a process of the pod has the pod's CPUs", _affinity("own"), own)
    os.sched_setaffinity(_pid("own"), {min(own)})
    agent.restart()
    ask("POST", "reconcile")
    checks.equal("a restart of the agent leaves what it set", _affinity("own"), {min(own)})
    checks.equal("no difference", agent.differences(), [])
    checks.equal("no condition", isolated.conditions(agent), [])
    agent.remove(isolated.POD)
    again = BOUND if kept else machine.cpus()
    checks.equal("once the pod is removed: the service's own", _affinity("bound"), again)
    command("systemctl", "restart", "bound")
    checks.equal("once the service starts again", _affinity("bound"), BOUND)


def _start(name: str, where: str, *options: str) -> None:
    command("systemd-run", "--quiet", f"--slice={where}", f"--unit={name}", *options, *SLEEP)


def _pid(name: str) -> int:
    return int(command("systemctl", "show", "--value", "--property=MainPID", name))


def _affinity(name: str) -> frozenset[int]:
    return kernel.affinity(_pid(name))

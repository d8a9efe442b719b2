"""A kernel that was booted with isolcpus=: exclusive pods run there first, shared ones never."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.guest.inside import kernel, machine, single
from tests.guest.inside.agent import Agent

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest


def run(guest: Guest) -> None:
    """Fill the isolated CPUs of node 1 beside a shared pod, then what is left of both nodes."""
    checks = guest.checks
    isolated = kernel.ids(Path("/sys/devices/system/cpu/isolated").read_text())
    checks.equal("the kernel isolates", isolated, frozenset({12, 13, 14, 15}))
    agent = Agent(guest, agent={"isolatedCPUs": "exclusive"})
    agent.start()
    shared = single.pod("shared", 1, "64Mi")
    shared["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    single.admit(checks, agent, shared)
    with single.running(agent, "shared") as other:
        left = machine.cpus() - isolated
        checks.eventually("a shared pod has the others", lambda: kernel.affinity(other.pid), left)
        answer = agent.admit(single.pod("first", 2, "64Mi"))
        checks.check("an admission warns", "isolcpus" in str(answer["explanation"]["warnings"]))
        with single.running(agent, "first") as own:
            checks.eventually("a pod has two CPUs", lambda: len(kernel.affinity(own.pid)), 2)
            first = kernel.affinity(own.pid)
            checks.check("which are isolated", first < isolated, first)
            checks.equal("its memory is beside them", kernel.memory_nodes(own.pid), {1})
            single.admit(checks, agent, single.pod("second", 4, "64Mi"))
            second = kernel.ids(agent.show(single.uid_of("second"))["exclusiveCpus"])
            checks.equal("a larger one has four", len(second - first), 4)
            checks.check("of all CPUs", not second <= isolated, second)
            checks.equal("the shared pod leaves", kernel.affinity(other.pid), left - second)
            checks.equal("no difference", agent.differences(), [])
            agent.remove(single.uid_of("second"))
        agent.remove(single.uid_of("first"))
        checks.equal("none comes back to it", kernel.affinity(other.pid), left)
    agent.remove(single.uid_of("shared"))

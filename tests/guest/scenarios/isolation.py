"""What belongs to no pod keeps off exclusive CPUs: all items on, others write, all is given back.

Services of the host wake all the time, and interrupts are bound to a pod's CPU; `numawarden
interference` counts both. Then systemd reloads, the agent is killed, another pod comes and goes,
and all is restored by the command and with the pod.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.guest.inside import isolated, kernel, machine
from tests.guest.inside.agent import CONFIG, PROGRAM, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

ISOLATION: Final[dict[str, object]] = {
    "hostSlices": True,
    "kernelThreads": True,
    "interrupts": "always",
    "powerClasses": {"awake": {"resumeLatency": "20"}},
    "power": "awake",
}


def run(guest: Guest) -> None:
    """Switch all on and count; then let others write, kill, and restore."""
    checks, host = guest.checks, isolated.Host.begun(guest)
    own, agent = host.own, host.agent
    checks.check("without: services may run on the pod's CPUs", own & isolated.allowed(), own)
    touching = isolated.touching(own)
    checks.check("without: interrupts may come there", touching, touching)
    isolated.permit(guest, "isolation.conf")
    isolated.switch_on(agent, ISOLATION)
    isolated.check_isolated(guest, agent, "with", own)
    checks.equal("with: no condition", isolated.conditions(agent), [])
    _probed(guest, agent)
    checks.equal("with: the pod keeps its CPUs", kernel.affinity(host.workload.pid), own)
    _others_write(guest, agent, own)
    _restored(guest, agent, own, host.before)


def _probed(guest: Guest, agent: Agent) -> None:
    """Let a probe spin on the pod's CPUs, while no task of the host runs there."""
    found = isolated.interference(agent, "--probe")
    guest.log("interference-probe", json.dumps(found, indent=1))
    longest = {each["cpu"]: each["longestSeconds"] for each in found["cpus"]}
    guest.checks.check("with: the probe saw every CPU", all(longest.values()), longest)
    of_host = [task for each in found["cpus"] for task in each["tasks"] if not task["kernel"]]
    guest.checks.equal("with: tasks of the host beside the probe", of_host, [])


def _others_write(guest: Guest, agent: Agent, own: frozenset[int]) -> None:
    """Let systemd write, kill the agent, and have another pod come and go."""
    checks = guest.checks
    command("systemctl", "daemon-reload")
    command("systemctl", "set-property", "--runtime", "system.slice", "CPUWeight=200")
    isolated.restless("system.slice", "late")
    isolated.check_isolated(guest, agent, "after a reload", own)
    agent.kill()
    ask("POST", "reconcile")
    isolated.check_isolated(guest, agent, "after a kill", own)
    answer = agent.admit(isolated.pod_of("beside", isolated.OTHER))
    both = own | kernel.ids(answer["pod"]["exclusiveCpus"])
    # Threads of the kernel are moved by the comparison.
    ask("POST", "reconcile")
    isolated.check_isolated(guest, agent, "beside another pod", both)
    agent.remove(isolated.OTHER)
    slices = {name: isolated.effective(name) for name in isolated.HOST}
    free = machine.cpus() - own
    checks.equal("once that is removed", slices, dict.fromkeys(isolated.HOST, free))


def _restored(guest: Guest, agent: Agent, own: frozenset[int], before: dict[str, str]) -> None:
    """Have all given back by the command, and by the agent when the pod is removed."""
    checks = guest.checks
    agent.stop()
    shown = attempt(PROGRAM, "isolation", "status", "--config", CONFIG)
    guest.log("isolation-status", shown.stdout)
    checks.check("isolation status names the slices", "system.slice" in shown.stdout, shown)
    restored = attempt(PROGRAM, "isolation", "restore", "--config", CONFIG)
    checks.check("isolation restore succeeds", restored.ok, restored)
    isolated.check_as_before(checks, "restored by command", before)
    agent.start()
    ask("POST", "reconcile")
    isolated.check_isolated(guest, agent, "after the next start", own)
    command("systemctl", "stop", "own.service")
    agent.remove(isolated.POD)
    isolated.check_as_before(checks, "once the pod is removed", before)

"""Each item of isolation alone, and what a container reads of its CPUs.

Counted on the pod's CPUs: without any item services and interrupts come there, with host slices
interrupts alone, with interrupts services alone.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import isolated, kernel, machine
from tests.guest.inside.api import ask
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from tests.guest.inside.agent import Agent
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

INFORMED: Final = "5526cafe-0000-4000-8000-0000000150a3"
INFORMED_SLICE: Final = "kubepods-pod5526cafe_0000_4000_8000_0000000150a3.slice"
#: Never waits, on the pod's CPUs wherever the kernel lets it.
STRESS: Final = "stress.service"
#: Where the container has its directory of what it was assigned.
INSIDE: Final = "etc/assigned/assigned.cpuset"


def run(guest: Guest) -> None:
    """Count without items and with one of two; then take a CPU of a container that reads them."""
    host = isolated.Host.begun(guest)
    _each_alone(guest, host.agent, host.own)
    _informed(guest.checks, host.agent)
    _late(guest.checks, host.agent, host.own)


def _late(checks: Checks, agent: Agent, own: frozenset[int]) -> None:
    """Have a slice appear while no comparison is due: it follows all the same."""
    agent.configure(cpuManagerReconcilePeriod="1h", agent={"isolation": {"hostSlices": True}})
    agent.restart()
    ask("POST", "reconcile")
    isolated.restless("late.slice")
    free = machine.cpus() - own
    checks.eventually("a late slice follows", lambda: isolated.effective("late.slice"), free)


def _each_alone(guest: Guest, agent: Agent, own: frozenset[int]) -> None:
    """Count who runs on the pod's CPUs and interrupts them: without items, and with one of two."""
    checks = guest.checks
    affinity = f"--property=CPUAffinity={' '.join(map(str, own))}"
    options = ("--quiet", "--slice=system.slice", f"--unit={STRESS}", affinity)
    command("systemd-run", *options, "/bin/busybox", "sh", "-c", "while :; do :; done")
    services, interrupts = isolated.count(guest, agent, "without")
    checks.check("without: services run there", len(services) > 1, services)
    checks.check("without: one never leaves", f"/system.slice/{STRESS}" in services, services)
    checks.check("without: interrupts come there", interrupts, interrupts)

    # The unit as it is may write cgroups: enough for the slices.
    isolated.switch_on(agent, {"hostSlices": True})
    checks.equal("slices alone: exclusive CPUs of services", own & isolated.allowed(), frozenset())
    checks.equal("slices alone: no condition", isolated.conditions(agent), [])
    services, interrupts = isolated.count(guest, agent, "slices")
    checks.equal("slices alone: services that ran there", services, {})
    checks.check("slices alone: interrupts come there", interrupts, interrupts)
    command("systemctl", "stop", STRESS)

    isolated.permit(guest, "isolation.conf")
    isolated.switch_on(agent, {"interrupts": "always"})
    services, interrupts = isolated.count(guest, agent, "interrupts")
    checks.check("interrupts alone: services run there", services, services)
    isolated.check_moved(checks, "interrupts alone", interrupts)


def _informed(checks: Checks, agent: Agent) -> None:
    """Let a container read its CPUs while one of them goes offline and comes back."""
    answer = agent.admit(isolated.pod_of("informed", INFORMED))
    own = kernel.ids(answer["pod"]["exclusiveCpus"])
    directory = isolated.ASSIGNED / INFORMED / "main"
    bind = f"--property=BindReadOnlyPaths={directory}:/{Path(INSIDE).parent}"
    options = ("--quiet", "--unit=informed", f"--slice={INFORMED_SLICE}", bind)
    command("systemd-run", *options, "/bin/busybox", "sleep", "1000000")
    pid = command("systemctl", "show", "--value", "--property=MainPID", "informed.service")
    file = Path(f"/proc/{pid.strip()}/root") / INSIDE
    ask("POST", "reconcile")
    checks.equal("the container reads its CPUs", _read_ids(file), own)
    switch = Path(f"/sys/devices/system/cpu/cpu{max(own)}/online")
    for text, left in (("0", own - {max(own)}), ("1", own)):
        switch.write_text(text)
        ask("POST", "reconcile")
        what = "offline" if text == "0" else "back"
        checks.eventually(f"CPU {what}: the container reads", partial(_read_ids, file), left)
    command("systemctl", "stop", "informed.service")
    agent.remove(INFORMED)


def _read_ids(file: Path) -> frozenset[int]:
    return kernel.ids(file.read_text())

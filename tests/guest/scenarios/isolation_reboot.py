"""Isolation across reboots: the guest boots three times from one disk, which stays.

The first boot isolates two pods, one of them bound to a service. In the second the agent starts as
an enabled service: all is as the configuration says. The third is without it: nothing is left.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import isolated, kernel, machine
from tests.guest.inside.agent import CONFIG, PROGRAM, SERVICE, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.checks import STUCK, Check, Stopped
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

#: What is known from the boots before.
KNOWN: Final = Path("/var/lib/isolation-reboot.json")
BOUND: Final = "bound.service"
UNIT: Final = "[Service]\nExecStart=/bin/busybox sleep 1000000\n"


def run(guest: Guest) -> None:
    """Go on where the last boot ended."""
    known: dict[str, Any] = {"boots": 0, "checks": []}
    if KNOWN.exists():
        known = json.loads(KNOWN.read_text())
    guest.checks.done += [Check(**each) for each in known["checks"]]
    known["boots"] += 1
    _keep(known)  # so that a guest that boots again by itself goes no further
    isolated.begin_restless("sleep 1000000")
    stage = (_isolate, _with_the_agent, _without)[known["boots"] - 1]
    stage(guest, known)
    if known["boots"] < 3:
        known["checks"] = [asdict(each) for each in guest.checks.done]
        _keep(known)
        command("systemctl", "reboot")
        time.sleep(STUCK)
        raise Stopped("a reboot")


def _keep(known: dict[str, Any]) -> None:
    KNOWN.write_text(json.dumps(known))
    os.sync()


def _isolate(guest: Guest, known: dict[str, Any]) -> None:
    # The numbers of interrupts change with each boot.
    shown, irqs = isolated.settings(), map(str, isolated.IRQS.glob("*/smp_affinity_list"))
    known["before"] = {name: shown[name] for name in shown.keys() - {*irqs}}
    known["interrupts"] = _interrupts()
    Path(f"/etc/systemd/system/{BOUND}").write_text(UNIT)
    agent = Agent(guest)
    isolated.permit(guest, "isolation.conf")
    items = {"hostSlices": True, "kernelThreads": True, "interrupts": "always"}
    agent.configure(agent={"isolation": items})
    agent.start()
    command("systemctl", "enable", SERVICE)
    for name, uid in (("alone", isolated.POD), ("bound", isolated.OTHER)):
        answer = agent.admit(isolated.pod_of(name, uid))
        known[name] = answer["pod"]["exclusiveCpus"]
    command("systemctl", "start", BOUND)
    agent.bind(isolated.OTHER, "main", _pid())
    ask("POST", "reconcile")
    _check_isolated(guest.checks, "before a reboot", known)


def _with_the_agent(guest: Guest, known: dict[str, Any]) -> None:
    checks, when = guest.checks, "after a reboot"
    checks.eventually(
        f"{when}: the agent is ready", lambda: ask("GET", "status")["ready"], expected=True
    )
    pods = {pod["name"]: pod["exclusiveCpus"] for pod in ask("GET", "pods")["pods"]}
    checks.equal(f"{when}: the pods", pods, {name: known[name] for name in ("alone", "bound")})
    checks.equal(f"{when}: what a unit has that was bound", _allowed(BOUND), "")
    command("systemctl", "start", BOUND)
    _check_isolated(checks, when, known)
    shown = [each["message"] for each in ask("GET", "status")["conditions"]]
    checks.equal(f"{when}: not isolated", [each for each in shown if "isolat" in each], [])
    command("systemctl", "disable", SERVICE)


def _without(guest: Guest, known: dict[str, Any]) -> None:
    checks, when = guest.checks, "without the agent"
    checks.check(f"{when}: it is stopped", not attempt("systemctl", "is-active", SERVICE).ok)
    isolated.check_as_before(checks, when, known["before"])
    checks.equal(f"{when}: interrupts", _interrupts(), known["interrupts"])
    units = {name: _allowed(name) for name in (*isolated.SLICES, "init.scope", BOUND)}
    checks.equal(f"{when}: CPUs on record", units, dict.fromkeys(units, ""))
    files = [
        str(file) for top in ("run", "etc") for file in Path(f"/{top}/systemd").rglob("*Allow*")
    ]
    checks.equal(f"{when}: drop-ins", files, [])
    checks.equal(f"{when}: cgroups of pods", list(isolated.CGROUPS.glob("kubepods*")), [])
    command("systemctl", "start", BOUND)
    checks.equal(f"{when}: a unit that was bound", kernel.affinity(_pid()), machine.cpus())
    restored = attempt(PROGRAM, "isolation", "restore", "--config", CONFIG)
    checks.check(
        f"{when}: nothing is to restore", "0 settings restored" in restored.stdout, restored
    )


def _check_isolated(checks: Checks, when: str, known: dict[str, Any]) -> None:
    bound = kernel.ids(known["bound"])
    own = kernel.ids(known["alone"]) | bound
    checks.eventually(f"{when}: a bound unit", lambda: kernel.affinity(_pid()), bound)
    slices = dict.fromkeys(isolated.HOST, machine.cpus() - own)
    slices["system.slice"] |= bound
    checks.eventually(
        f"{when}: the slices", lambda: {name: isolated.effective(name) for name in slices}, slices
    )
    checks.eventually(f"{when}: interrupts", lambda: isolated.touching(own), [])
    default = isolated.mask_of((isolated.IRQS / "default_smp_affinity").read_text())
    checks.equal(f"{when}: later interrupts", own & default, frozenset())
    of_kernel = {isolated.name_of(thread) for thread, cpus in isolated.threads() if own & cpus}
    checks.equal(f"{when}: threads of the kernel", of_kernel, set())


def _interrupts() -> dict[str, str]:
    """Return the CPUs of interrupts that can be moved, by what they are for."""
    return {
        Path(f"/sys/kernel/irq/{irq}/actions").read_text(): (
            isolated.IRQS / irq / "smp_affinity_list"
        ).read_text()
        for irq in isolated.touching(machine.cpus())
    }


def _allowed(unit: str) -> str:
    return command("systemctl", "show", "--value", "--property=AllowedCPUs", unit).strip()


def _pid() -> int:
    return int(command("systemctl", "show", "--value", "--property=MainPID", BOUND))

"""An administrator's sets of host slices, bytes before and after, and a CPU that goes offline.

`systemctl set-property` before, during and after an exclusive pod stays as far as it has no
exclusive CPU, and is in force in full when the pod has ended. What slices had is given back while
a CPU is offline, too, by the command and with threads of the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import isolated, kernel, machine
from tests.guest.inside.agent import CONFIG, PROGRAM, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

SYSTEM: Final = "system.slice"
USER: Final = "user.slice"
#: What systemd keeps until a reboot of a property that was set until then and is set no longer.
EMPTIED: Final = "AllowedCPUs=\n"


def run(guest: Guest) -> None:
    """Admit a pod and remove it, while an administrator sets slices and a CPU is offline."""
    checks, agent = guest.checks, Agent(guest)
    isolated.begin_restless()
    isolated.permit(guest, "isolation.conf")
    isolated.configure(agent, hostSlices=True, kernelThreads=True)
    agent.start()
    _bytes(guest, agent)
    _administrator(checks, agent)
    _offline(checks, agent)


def _admitted(agent: Agent) -> frozenset[int]:
    own = kernel.ids(agent.admit(isolated.pod_of("alone", isolated.POD))["pod"]["exclusiveCpus"])
    ask("POST", "reconcile")
    return own


def _removed(agent: Agent) -> None:
    agent.remove(isolated.POD)
    ask("POST", "reconcile")


def _bytes(guest: Guest, agent: Agent) -> None:
    """Compare the files of cgroups and of systemd before a pod and after it."""
    checks, before = guest.checks, _shown()
    guest.log("before", str(before))
    own = _admitted(agent)
    checks.equal("with a pod: CPUs of the host", own & isolated.allowed(), frozenset())
    _removed(agent)
    after = _shown()
    guest.log("after", str(after))
    for name, (cpus, record, drop_ins) in before.items():
        found = after[name]
        # The kernel clears no set in use: all CPUs are the same as none.
        same = cpus if found[0] == cpus else _all_cpus()
        checks.equal(f"after: the set of {name}", found[0], same)
        checks.equal(f"after: what systemd has on record of {name}", found[1], record)
        kept = {
            file: text
            for file, text in found[2].items()
            if not (file.startswith("/run/systemd/") and text.endswith(EMPTIED))
        }
        checks.equal(f"after: drop-ins of {name} but emptied ones in /run", kept, drop_ins)
    checks.equal("after: nothing is the agent's", isolated.originals(), [])


def _administrator(checks: Checks, agent: Agent) -> None:
    """Set slices before, during and after a pod."""
    first = kernel.ids("0-11")
    _set(SYSTEM, "0-11")
    for _ in range(2):
        ask("POST", "reconcile")
    checks.equal("before a pod: the administrator's set", _cpus(SYSTEM), first)
    own = _admitted(agent)
    checks.equal("with a pod: less its CPUs", _cpus(SYSTEM), first - own)
    agent.restart()
    ask("POST", "reconcile")
    checks.equal("after a restart: less its CPUs", _cpus(SYSTEM), first - own)

    second = kernel.ids("0-5,8-13")
    _set(SYSTEM, "0-5,8-13")
    ask("POST", "reconcile")
    checks.equal("set with a pod: less its CPUs", _cpus(SYSTEM), second - own)
    some = min(machine.cpus() - own)
    _set(USER, str(some))
    ask("POST", "reconcile")
    checks.equal("set beside its CPUs: as it is", _cpus(USER), {some})
    # systemd reads its files again, among them the administrator's with exclusive CPUs.
    command("systemctl", "daemon-reload")
    isolated.restless(SYSTEM, "reloaded")
    ask("POST", "reconcile")
    checks.equal("after a reload: less its CPUs", _cpus(SYSTEM), second - own)
    checks.equal("CPUs of the host", own & isolated.allowed(), frozenset())

    _removed(agent)
    checks.equal("once the pod is removed: in full", (_cpus(SYSTEM), _cpus(USER)), (second, {some}))
    checks.equal("once the pod is removed: nothing is the agent's", isolated.originals(), [])
    third = kernel.ids("0-3")
    _set(SYSTEM, "0-3")
    for _ in range(2):
        ask("POST", "reconcile")
    agent.restart()
    ask("POST", "reconcile")
    checks.equal("set after the pod: the administrator's set", _cpus(SYSTEM), third)
    recorded = kernel.ids(_property(SYSTEM, "AllowedCPUs").replace(" ", ","))
    checks.equal("set after the pod: on record", recorded, third)
    for name in (SYSTEM, USER):
        _set(name, _all_cpus())


def _offline(checks: Checks, agent: Agent) -> None:
    """Have all given back by the command while a CPU is offline, of which the slices had none."""
    before, threads = machine.cpus(), _threads()
    own = _admitted(agent)
    gone = max(before - own)
    switch = Path(f"/sys/devices/system/cpu/cpu{gone}/online")
    switch.write_text("0")
    ask("POST", "reconcile")
    agent.stop()
    restored = attempt(PROGRAM, "isolation", "restore", "--config", CONFIG)
    checks.check("a CPU offline: isolation restore succeeds", restored.ok, restored)
    checks.equal("a CPU offline: nothing is the agent's", isolated.originals(), [])
    switch.write_text("1")
    expected = dict.fromkeys(isolated.HOST, before)

    def effective() -> dict[str, frozenset[int]]:
        return {name: isolated.effective(name) for name in isolated.HOST}

    checks.eventually("online again: the slices", effective, expected)
    checks.eventually("online again: threads of the kernel", _threads, threads)

    agent.start()
    ask("POST", "reconcile")
    narrowed = dict.fromkeys(isolated.HOST, before - own)
    checks.equal("after the next start: the slices", effective(), narrowed)
    switch.write_text("0")
    _removed(agent)
    switch.write_text("1")
    ask("POST", "reconcile")
    checks.eventually("removed while it is offline: the slices", effective, expected)
    checks.eventually("removed while it is offline: threads of the kernel", _threads, threads)


def _shown() -> dict[str, tuple[str, str, dict[str, str]]]:
    """Return, by cgroup of the host, its set, what systemd has on record, and its drop-ins."""
    shown = {}
    for name in isolated.HOST:
        record, drop_ins = "", {}
        if "." in name:
            record = _property(name, "AllowedCPUs")
            files = _property(name, "DropInPaths").split()
            drop_ins = {file: Path(file).read_text() for file in files}
        shown[name] = kernel.Cgroup(name).read("cpuset.cpus"), record, drop_ins
    return shown


def _property(unit: str, name: str) -> str:
    return command("systemctl", "show", "--value", f"--property={name}", unit).strip()


def _set(unit: str, cpus: str) -> None:
    command("systemctl", "set-property", unit, f"AllowedCPUs={cpus}")


def _cpus(cgroup: str) -> frozenset[int]:
    return kernel.ids(kernel.Cgroup(cgroup).read("cpuset.cpus"))


def _all_cpus() -> str:
    return Path("/sys/devices/system/cpu/possible").read_text().strip()


def _threads() -> dict[str, str]:
    """Return the CPUs of lasting threads of the kernel, offline ones too, by name."""
    lasting = ("kswapd", "kcompactd", "khugepaged", "oom_reaper", "kauditd")
    return {
        name: next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:"))
        for thread, _ in isolated.threads()
        if (name := isolated.name_of(thread)).startswith(lasting)
        and (status := Path(f"/proc/{thread}/status").read_text().splitlines())
    }

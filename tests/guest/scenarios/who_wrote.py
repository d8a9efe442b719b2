"""A shell and systemd write a container's cgroup: the history says who, where the unit may know."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside.agent import SERVICE, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import run as command
from tests.guest.inside.examples import start
from tests.guest.inside.pods import POD_SCOPE
from tests.guest.inside.starters import SystemdRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.workloads import Workload

MIXED: Final = {example.name: example for example in POD_SCOPE}["pod-scope-mixed"]
DROP_IN: Final = Path(f"/etc/systemd/system/{SERVICE}.d/writers.conf")
CPUS: Final = "cpuset.cpus"


def run(guest: Guest) -> None:
    """Write without the drop-in, and with it; then restart and read all of it again."""
    checks, agent = guest.checks, Agent(guest)
    agent.start()
    _, workloads = start(checks, agent, SystemdRun(), MIXED)
    own = workloads[MIXED.containers[0]]
    _who_asked(checks)
    with _shell_writes(own, "0-15"):
        found = _difference(checks, "without the drop-in", "0-15")
    checks.equal("without the drop-in: no writer", found.get("writer"), None)

    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(guest.job / "deploy/writers.conf", DROP_IN)
    command("systemctl", "daemon-reload")
    agent.restart()
    with _shell_writes(own, "0-14") as shell:
        found = _difference(checks, "with the drop-in", "0-14")
    _check_writer(checks, "a shell", found, shell.pid, "sh")
    unit = own.cgroup.path.name
    command("systemctl", "set-property", "--runtime", unit, "AllowedCPUs=0-13")
    found = _difference(checks, "systemd", "0-13")
    _check_writer(checks, "systemd", found, 1, "systemd")
    _own_writes(checks, own)
    before = _types()
    agent.restart()
    expected = ["AgentStarted", "AgentStopped", *before]
    checks.equal("after a restart: all is there", _types(), expected)
    shown = agent.cli("history", MIXED.uid, "--since", "1h")
    checks.equal("numawarden history exits with", shown.status, 0)
    checks.check("numawarden history names the shell", f'"pid": {shell.pid}' in shown.stdout, shown)


def _who_asked(checks: Checks) -> None:
    """Check that the admission names this process, which asked for it."""
    (entry,) = (each for each in _history() if each["type"] == "PodAdmitted")
    asked = entry["requester"]
    checks.equal("who asked", (asked["uid"], asked["pid"]), (os.getuid(), os.getpid()))
    name = Path("/proc/self/comm").read_text().strip()
    checks.equal("who asked, by name", asked["command"], name)


@contextmanager
def _shell_writes(workload: Workload, cpus: str) -> Iterator[subprocess.Popen[str]]:
    """Let a shell write a container's CPUs, and keep the shell until the block ends."""
    # While the containers are new, systemd writes their files too, and may undo what the shell did.
    ask("POST", "reconcile")
    file = workload.cgroup.path / CPUS
    script = f"echo {cpus} > {file}; read line"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, text=True) as shell:
        yield shell
        shell.communicate("\n")


def _difference(checks: Checks, what: str, observed: str) -> dict[str, Any]:
    """Return the difference of the history that shows a value of the container's CPUs."""

    def found() -> list[dict[str, Any]]:
        return [
            each
            for entry in _history()
            for each in entry["differences"]
            if (each["file"], each["observed"]) == (CPUS, observed)
        ]

    checks.eventually(f"{what}: the history has it", lambda: bool(found()), expected=True)
    checks.require(f"{what}: it is in the history", found(), _history())
    difference = found()[0]
    checks.check(f"{what}: repaired", difference["repaired"], difference)
    checks.equal(f"{what}: of the container", difference["container"], MIXED.containers[0])
    return difference


def _check_writer(
    checks: Checks, what: str, difference: dict[str, Any], pid: int, name: str
) -> None:
    writer = difference.get("writer") or {}
    named = (writer.get("pid"), writer.get("command"), writer.get("uid"))
    checks.equal(f"{what}: the writer", named, (pid, name, 0))
    lines = Path(f"/proc/{pid}/cgroup").read_text() if Path(f"/proc/{pid}").exists() else ""
    if lines:
        expected = lines.strip().partition("0::")[2]
        checks.equal(f"{what}: its cgroup", writer.get("cgroup"), expected)


def _own_writes(checks: Checks, own: Workload) -> None:
    """Check that the agent does not take its own repairs for those of another process."""
    settled = partial(ask, "POST", "reconcile")
    checks.equal("own writes: nothing is left to do", settled()["found"], {})
    text = (own.cgroup.path / CPUS).read_text().strip()
    checks.check("own writes: the container has its CPUs", text not in ("0-13", "0-14"), text)


def _history() -> list[dict[str, Any]]:
    entries = ask("GET", "history?limit=1000")["entries"]
    assert isinstance(entries, list)
    return entries


def _types() -> list[str]:
    return [entry["type"] for entry in _history()]

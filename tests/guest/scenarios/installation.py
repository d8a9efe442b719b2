"""The agent installed from its wheel as its users do, its unit, and how it starts or does not."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests.guest.inside.agent import CONFIG, INSTALLED, PROGRAM, SERVICE, Agent
from tests.guest.inside.commands import Outcome, attempt
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

#: What `systemd-analyze security` may give the unit at most, in its points.
EXPOSURE: Final = 3.0
UNPRIVILEGED: Final = 65534

PREFIX: Final = Path("/opt/numawarden")
#: Where Debian has the wheels that venv installs.
WHEELS: Final = Path("/usr/share/python-wheels")
UID: Final = "6f1a1c2e-0000-4000-8000-000000000015"
_AMOUNTS: Final = {"cpu": "1", "memory": "64Mi"}
POD: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "journal", "namespace": "default", "uid": UID},
    "spec": {
        "containers": [
            {"name": "main", "image": "x", "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS}}
        ]
    },
}

Rejection: TypeAlias = tuple[str, str, dict[str, Any]]

#: What is wrong, what the one line must name, and how the configuration differs from a good one.
WRONG: Final[tuple[Rejection, ...]] = (
    ("unknown cgroup driver", "cgroupDriver", {"cgroupDriver": "cgroup"}),
    ("no state directory", "/proc/none", {"agent": {"stateDirectory": "/proc/none"}}),
    ("no cgroup v2", "/tmp", {"agent": {"cgroupMount": "/tmp"}}),
    ("reserved CPUs that are not there", "99", {"reservedSystemCPUs": "0,99"}),
)
#: A second agent with everything of its own but the cgroup tree.
TAKEN: Final[Rejection] = ("cgroup tree in use", "belongs to another agent, process", {})


def run(guest: Guest) -> None:
    """Install, look at the unit, start wrongly, start with the configuration that is shipped."""
    _install(guest.job)
    agent = Agent(guest)
    _check_unit(guest.checks)
    own = _own_places(guest)
    # First, for the service may not keep what Python compiles, and a start by hand does.
    for rejection in WRONG:
        _check_rejection(guest, agent, own, rejection)
    _check_user(guest, agent, own)
    shutil.copy(guest.job / "deploy/config.yaml", CONFIG)
    started = attempt("systemctl", "start", SERVICE)
    guest.checks.require("it starts with the configuration that is shipped", started.ok, started)
    guest.checks.check("it says that it is ready", agent.is_ready())
    _check_journal(guest, agent)
    _check_rejection(guest, agent, own, TAKEN)
    guest.checks.check("the first one is as it was", agent.is_ready())
    agent.stop()


def _install(job: Path) -> None:
    """Install as the README says, but for pip's own installation.

    `venv` would unpack the same wheel, and compile all of pip, which takes half a minute here.
    """
    command("python3", "-m", "venv", "--without-pip", PREFIX)
    (site,) = PREFIX.glob("lib/python3*/site-packages")
    (wheel,) = WHEELS.glob("pip-*.whl")
    command("python3", "-m", "zipfile", "--extract", wheel, site)
    pip = (
        *(PREFIX / "bin/python3", "-m", "pip", "install", "--quiet"),
        *("--no-index", "--no-compile", "--find-links=/job/wheels"),
    )
    lock = job / "deploy/requirements/run.txt"
    command(*pip, "--require-hashes", "--requirement", lock)
    command(*pip, "--no-deps", *sorted((job / "wheels").glob("numawarden-*.whl")))


def _check_unit(checks: Checks) -> None:
    verified = attempt("systemd-analyze", "verify", INSTALLED[SERVICE])
    said = (verified.status, verified.stdout + verified.stderr)
    checks.equal("systemd-analyze verify has nothing to say", said, (0, ""))
    judged = attempt("systemd-analyze", "security", "--no-pager", SERVICE)
    found = re.search(r"exposure level for \S+: ([\d.]+)", judged.stdout)
    level = float(found[1]) if found else 10.0
    checks.check(f"exposure at most {EXPOSURE}", level <= EXPOSURE, f"{level}\n{judged}")


def _check_journal(guest: Guest, agent: Agent) -> None:
    """Search the journal by the fields of its entries, before and after journald was restarted."""
    checks = guest.checks
    admitted = agent.cli("admit", agent.manifest(POD))
    checks.check("a pod is admitted", admitted.status in (0, 7), admitted)

    def entries(*fields: str) -> list[dict[str, Any]]:
        found = attempt("journalctl", "--no-pager", "--boot", "-o", "json", *fields)
        return [json.loads(line) for line in found.stdout.splitlines()]

    def shown(*fields: str) -> list[tuple[str, str]]:
        return [(each["EVENT"], each["PRIORITY"]) for each in entries(*fields)]

    decided = ("pod admitted", "6")
    by_uid, by_name = f"POD_UID={UID}", "POD=default/journal"
    checks.eventually("an entry has the pod's uid", lambda: decided in shown(by_uid), expected=True)
    checks.check("and its name", decided in shown(by_name), shown(by_name))
    found = [each for each in entries(by_uid) if each["EVENT"] == decided[0]]
    operation = f"OPERATION={found[0]['OPERATION']}" if found else "OPERATION=none"
    checks.check("and its operation", decided in shown(operation), shown(operation))
    units = {each.get("_SYSTEMD_UNIT") for each in found}
    checks.equal("it is the unit's", units, {SERVICE})
    text = json.loads(str(found[0]["MESSAGE"])) if found else {}
    checks.equal("its text is the line of JSON", text.get("message"), decided[0])
    command("systemctl", "restart", "systemd-journald")
    agent.remove(UID)
    removed = ("pod removed", "6")
    checks.eventually("journald may be restarted", lambda: removed in shown(by_name), expected=True)


def _own_places(guest: Guest) -> dict[str, Any]:
    """Return the settings of a second agent that has everything to itself."""
    guest.work.chmod(0o755)
    state = guest.work / "state"
    state.mkdir(mode=0o700)
    socket = str(state / "agent.sock")
    return {"stateDirectory": str(state), "socketPath": socket, "metrics": {"port": 9465}}


def _check_rejection(guest: Guest, agent: Agent, own: dict[str, Any], rejection: Rejection) -> None:
    """Start a second agent in a way that cannot work: it is said in one line."""
    name, said, changes = rejection
    settings = {key: value for key, value in changes.items() if key != "agent"}
    second = {**own, **changes.get("agent", {})}
    file = agent.write_config(guest.work / "second.yaml", agent=second, **settings)
    outcome = attempt(PROGRAM, "agent", "--config", file)
    _check_outcome(guest.checks, name, said, outcome)


def _check_user(guest: Guest, agent: Agent, own: dict[str, Any]) -> None:
    """Start one as a user who may not write cgroups."""
    theirs = guest.work / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, UNPRIVILEGED, UNPRIVILEGED)
    places = {"stateDirectory": str(theirs), "socketPath": str(theirs / "agent.sock")}
    file = agent.write_config(guest.work / "second.yaml", agent={**own, **places})
    ids = (f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups")
    outcome = attempt("setpriv", *ids, PROGRAM, "agent", "--config", file)
    _check_outcome(guest.checks, "not root", "root", outcome)


def _check_outcome(checks: Checks, name: str, said: str, outcome: Outcome) -> None:
    """Check for exit code 2 or more, and one line for people after the log's (JSON) lines."""
    lines = [line for line in outcome.stderr.splitlines() if not line.startswith("{")]
    checks.check(f"{name}: rejected", outcome.status not in (0, 1, 124), outcome)
    checks.check(f"{name}: in one line", len(lines) == 1 and said in lines[0], lines)

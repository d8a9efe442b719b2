"""The agent installed from its wheel as its users do, its unit, and how it starts or does not."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside.agent import CONFIG, INSTALLED, PROGRAM, SERVICE, Agent
from tests.guest.inside.commands import Outcome, attempt
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

#: What `systemd-analyze security` may give the unit at most, in its points.
EXPOSURE: Final = 3.0
NOBODY: Final = 65534

#: What is wrong, what the one line must name, and how the configuration differs from a good one.
REFUSALS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("unknown cgroup driver", "cgroupDriver", {"cgroupDriver": "cgroup"}),
    ("socket in use", "agent.sock", {"agent": {"socketPath": "/run/numawarden/agent.sock"}}),
    ("port in use", "9464", {"agent": {"metrics": {"port": 9464}}}),
    ("no state directory", "/proc/none", {"agent": {"stateDirectory": "/proc/none"}}),
    ("no cgroup v2", "/tmp", {"agent": {"cgroupMount": "/tmp"}}),
    ("reserved CPUs that are not there", "99", {"reservedSystemCPUs": "0,99"}),
)


def run(guest: Guest) -> None:
    """Install, look at the unit, start with the configuration that is shipped, start wrongly."""
    _install(guest.job)
    agent = Agent(guest)
    _check_unit(guest.checks)
    shutil.copy(guest.job / "deploy/config.yaml", CONFIG)
    started = attempt("systemctl", "start", SERVICE, timeout=180)
    guest.checks.require("it starts with the configuration that is shipped", started.ok, started)
    guest.checks.check("it says that it is ready", agent.is_ready())
    _check_refusals(guest, agent)
    agent.stop()


def _install(job: Path) -> None:
    command("python3", "-m", "venv", "/opt/numawarden", timeout=240)
    pip = (
        "/opt/numawarden/bin/pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-compile",
        "--find-links=/job/wheels",
    )
    lock = job / "deploy/requirements/run.txt"
    command(*pip, "--require-hashes", "--requirement", lock, timeout=240)
    command(*pip, "--no-deps", *sorted((job / "wheels").glob("numawarden-*.whl")), timeout=240)


def _check_unit(checks: Checks) -> None:
    verified = attempt("systemd-analyze", "verify", INSTALLED[SERVICE])
    said = (verified.status, verified.stdout + verified.stderr)
    checks.equal("systemd-analyze verify has nothing to say", said, (0, ""))
    judged = attempt("systemd-analyze", "security", "--no-pager", SERVICE)
    found = re.search(r"exposure level for \S+: ([\d.]+)", judged.stdout)
    level = float(found[1]) if found else 10.0
    checks.check(f"exposure at most {EXPOSURE}", level <= EXPOSURE, f"{level}\n{judged}")


def _check_refusals(guest: Guest, agent: Agent) -> None:
    """Start a second agent in ways that cannot work: each is said in one line."""
    guest.work.chmod(0o755)
    state = guest.work / "state"
    state.mkdir(mode=0o700)
    own = {
        "stateDirectory": str(state),
        "socketPath": str(state / "agent.sock"),
        "metrics": {"port": 9465},
    }
    for name, said, changes in REFUSALS:
        settings = {key: value for key, value in changes.items() if key != "agent"}
        second = {**own, **changes.get("agent", {})}
        file = agent.write_config(guest.work / "second.yaml", agent=second, **settings)
        outcome = attempt(PROGRAM, "run", "--config", file, timeout=240)
        _check_refusal(guest.checks, name, said, outcome)
    theirs = guest.work / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, NOBODY, NOBODY)
    own |= {"stateDirectory": str(theirs), "socketPath": str(theirs / "agent.sock")}
    file = agent.write_config(guest.work / "second.yaml", agent=own)
    ids = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    outcome = attempt("setpriv", *ids, PROGRAM, "run", "--config", file, timeout=240)
    _check_refusal(guest.checks, "not root", "root", outcome)
    guest.checks.check("the first one is as it was", agent.is_ready())


def _check_refusal(checks: Checks, name: str, said: str, outcome: Outcome) -> None:
    """Check for exit code 2 or more, and one line for people after the log's (JSON) lines."""
    lines = [line for line in outcome.stderr.splitlines() if not line.startswith("{")]
    checks.check(f"{name}: refused", outcome.status not in (0, 1, 124), outcome)
    checks.check(f"{name}: in one line", len(lines) == 1 and said in lines[0], lines)

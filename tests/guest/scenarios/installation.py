"""The Debian package beside running pods, its unit, and how the agent starts or does not."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests.guest.inside import kernel, snapshot
from tests.guest.inside.agent import CONFIG, PROGRAM, SERVICE, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import Outcome, attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.examples import start
from tests.guest.inside.pods import BACKGROUND, POD_SCOPE
from tests.guest.inside.starters import SystemdRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.workloads import Workload

#: What `systemd-analyze security` may give the unit at most, in its points.
EXPOSURE: Final = 3.0
UNPRIVILEGED: Final = 65534

UNIT: Final = Path("/usr/lib/systemd/system") / SERVICE
ENABLED: Final = Path("/etc/systemd/system/multi-user.target.wants") / SERVICE
STATE: Final = Path("/var/lib/numawarden")
MANIFESTS: Final = Path("/etc/numawarden/manifests")
#: On the search path, as a user types it.
COMMAND: Final = "numawarden"
#: Where a package's files could be left over.
SYSTEM: Final = ("/etc", "/opt", "/usr", "/var/lib", "/run/cdi")
#: What a purge leaves: what the package did not bring.
KEPT: Final = "/etc/numawarden/manifests/of-the-host.yaml"

#: What a pod with devices had delivered.
DELIVERED: Final = "/run/cdi/numawarden-5526cafe-0000-4000-8000-000000000000.json"

#: As in a script: no questions, a changed configuration stays. No file is waited for, see `run`.
APT: Final = (
    *("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "--quiet"),
    *("-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Options::=--force-unsafe-io"),
)
#: The guests' dpkg leaves out documentation (recipe/excluded), which is then missing.
EXCLUDED: Final = re.compile(r"(?m)^missing +/usr/share/(?:doc|man)/.*\n")

MIXED: Final = next(example for example in POD_SCOPE if example.name == "pod-scope-mixed")

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


class PackagedAgent(Agent):
    """The agent whose files a Debian package brings."""

    def install(self) -> None:
        """Leave it to the package."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """The package files, and the pods that run whatever is done with them."""

    checks: Checks
    agent: Agent
    previous: Path
    present: Path
    running: tuple[Workload, ...]

    def leaves_pods_alone(self, what: str, act: Callable[[], object]) -> None:
        """Check that an act changes no cgroup of a pod and ends none of their processes."""
        pods = kernel.Cgroup("kubepods.slice")
        before = snapshot.settings(pods)
        self.checks.check(f"{what}: there are settings to change", before, len(before))
        act()
        changes = snapshot.differences(before, snapshot.settings(pods))
        self.checks.equal(f"{what}: no cgroup changed", changes, {})
        self.checks.equal(f"{what}: no process was touched", snapshot.touched(self.running), [])


def run(guest: Guest) -> None:
    """Install, look at the unit, start wrongly and as shipped; change and remove it beside pods."""
    checks = guest.checks
    previous, present = (_package(guest, name) for name in ("previous", "present"))
    # The guest's disk is thrown away: a file that replaces another one need not be on it at once.
    command("mount", "-o", "remount,noauto_da_alloc", "/")
    _install(present)
    checks.equal("installed: not started", _state(), "inactive")
    checks.check("installed: not enabled", not ENABLED.exists())
    _check_files(checks, present)
    _check_unit(checks)
    agent = _check_starts(guest)
    command("systemctl", "enable", "--now", SERVICE)
    packaged = Packaged(checks, agent, previous, present, _start_pods(checks, agent))
    allocations = agent.pods()
    # Back first: what is upgraded then was written by the version that is upgraded.
    for what, package in (("back", previous), ("upgrade", present)):
        _check_change(packaged, what, package, allocations)
    _check_stopped_stays_stopped(packaged)
    _check_removal(packaged, allocations)
    _check_purge(packaged)


def _package(guest: Guest, name: str) -> Path:
    [file] = (guest.job / "packages" / name).glob("*.deb")
    return file


def _install(package: Path) -> None:
    """Install as the README says: one command, and no network."""
    command(*APT, "install", "--allow-downgrades", "--reinstall", package)


def _state() -> str:
    shown = command("systemctl", "show", "--value", "--property=ActiveState", SERVICE)
    return shown.strip()


def _version(package: Path) -> str:
    return command("dpkg-deb", "--field", package, "Version").strip()


def _installed() -> str:
    return command("dpkg-query", "--show", "--showformat=${Version}", COMMAND)


def _check_files(checks: Checks, package: Path) -> None:
    """Check that the package's version is installed, and that no file differs from it."""
    checks.equal("installed: the version", _installed(), _version(package))
    verified = EXCLUDED.sub("", attempt("dpkg", "--verify", COMMAND).stdout)
    checks.equal("installed: every file is as it was packed", verified, "")
    said = attempt(COMMAND, "--version")
    checks.check("installed: the command is on the search path", said.ok, said)
    completed = attempt(
        "env",
        "_NUMAWARDEN_COMPLETE=bash_complete",
        "COMP_WORDS=numawarden doc",
        "COMP_CWORD=1",
        COMMAND,
    )
    checks.equal("installed: it completes commands", completed.stdout.strip(), "plain,doctor")


def _start_pods(checks: Checks, agent: Agent) -> tuple[Workload, ...]:
    """Start a pod of the shared pool and one with exclusive CPUs."""
    starters = {example.name: SystemdRun() for example in (BACKGROUND, MIXED)}
    started = [
        start(checks, agent, starters[example.name], example)[1] for example in (BACKGROUND, MIXED)
    ]
    checks.check("what pods have is enforced", *_verified())
    return tuple(workload for pod in started for workload in pod.values())


def _check_change(
    packaged: Packaged, what: str, package: Path, allocations: list[dict[str, Any]]
) -> None:
    """Check that another version runs afterwards, with the same allocations."""
    checks, agent = packaged.checks, packaged.agent
    configured, before = CONFIG.read_bytes(), agent.pid
    packaged.leaves_pods_alone(what, partial(_install, package))
    checks.equal(f"{what}: the version", _installed(), _version(package))
    checks.check(f"{what}: the agent is ready", agent.is_ready())
    checks.check(f"{what}: by a process of this version", agent.pid not in (0, before), agent.pid)
    checks.equal(f"{what}: the same allocations", _summary(agent.pods()), _summary(allocations))
    checks.equal(f"{what}: the changed configuration is kept", CONFIG.read_bytes(), configured)
    checks.check(f"{what}: still enabled", ENABLED.exists())
    checks.check(f"{what}: what pods have is enforced", *_verified())


def _verified() -> tuple[bool, dict[str, Any]]:
    document = ask("GET", "verify")
    return document["agrees"], document


def _summary(pods: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return sorted((pod["uid"], pod["cpus"], pod["memory"]) for pod in pods)


def _check_stopped_stays_stopped(packaged: Packaged) -> None:
    """Check that an agent that an administrator stopped is not started by an upgrade."""
    packaged.agent.stop()
    packaged.leaves_pods_alone("stopped", partial(_install, packaged.present))
    packaged.checks.equal("stopped: still after an upgrade", _state(), "inactive")
    packaged.agent.start()


def _check_removal(packaged: Packaged, allocations: list[dict[str, Any]]) -> None:
    """Remove the package beside its pods, and install it again: nothing is forgotten."""
    checks, agent = packaged.checks, packaged.agent
    packaged.leaves_pods_alone("removed", partial(command, *APT, "remove", COMMAND))
    checks.equal("removed: no process", _state(), "inactive")
    checks.check("removed: no unit", not UNIT.exists())
    checks.check("removed: no environment", not Path(PROGRAM).parents[1].exists())
    kept = [path.exists() for path in (CONFIG, STATE / "checkpoint.json")]
    checks.equal("removed: configuration and checkpoint stay", kept, [True, True])
    _install(packaged.present)
    agent.start()
    checks.equal("installed again: the allocations", _summary(agent.pods()), _summary(allocations))
    checks.check("installed again: what pods have is enforced", *_verified())


def _check_purge(packaged: Packaged) -> None:
    """Purge the package beside its pods: only what others brought stays."""
    Path(KEPT).write_text("# a manifest of the host's administrator\n")
    Path(DELIVERED).write_text("{}\n")
    command("systemctl", "enable", SERVICE)
    packaged.leaves_pods_alone("purged", partial(command, *APT, "purge", COMMAND))
    places = [place for place in SYSTEM if Path(place).exists()]  # dpkg removes an empty /opt
    left = command("find", *places, "-xdev", "-iname", "*numawarden*")
    expected = [str(Path(KEPT).parents[1])]
    packaged.checks.equal("purged: what is left over", left.split(), expected)
    inside = [str(path) for path in Path(expected[0]).rglob("*") if path.is_file()]
    packaged.checks.equal("purged: the host's manifests stay", inside, [KEPT])


def _check_unit(checks: Checks) -> None:
    verified = attempt("systemd-analyze", "verify", UNIT)
    said = (verified.status, verified.stdout + verified.stderr)
    checks.equal("systemd-analyze verify has nothing to say", said, (0, ""))
    judged = attempt("systemd-analyze", "security", "--no-pager", SERVICE)
    found = re.search(r"exposure level for \S+: ([\d.]+)", judged.stdout)
    level = float(found[1]) if found else 10.0
    checks.check(f"exposure at most {EXPOSURE}", level <= EXPOSURE, f"{level}\n{judged}")


def _check_starts(guest: Guest) -> Agent:
    """Start wrongly, then as shipped; return the agent, stopped, with the scenarios' configuration.

    Nothing runs yet: beside pods an agent starts where it otherwise would not.
    """
    shipped = CONFIG.read_bytes()
    agent = PackagedAgent(guest)
    own = _own_places(guest)
    for rejection in WRONG:
        _check_rejection(guest, agent, own, rejection)
    _check_user(guest, agent, own)
    CONFIG.write_bytes(shipped)
    started = attempt("systemctl", "start", SERVICE)
    guest.checks.require("it starts with the configuration that is shipped", started.ok, started)
    guest.checks.check("it says that it is ready", agent.is_ready())
    _check_journal(guest, agent)
    _check_rejection(guest, agent, own, TAKEN)
    guest.checks.check("the first one is as it was", agent.is_ready())
    agent.stop()
    agent.configure()
    return agent


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

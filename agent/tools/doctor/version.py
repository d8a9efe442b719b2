"""Which version the kubelet of this host is, and by whose rules the agent goes beside it.

The kubelet's sockets do not say its version, so its program is asked (`kubelet --version`): the one
that runs as root, else the one that its unit would start.
"""

from __future__ import annotations

import shlex
from os import read
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Final

from agent.config.model import VERSION_KEY
from agent.files import risk_above, risk_of
from agent.managers.versions import OLDEST, KubernetesVersion
from agent.tools.doctor.facts import HostCheck, Verdict
from agent.versions import ReportedVersion, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agent.config.model import Config
    from agent.tools.doctor.facts import GatheredFacts, HostFile

#: How long the program may take, in seconds.
PATIENCE: Final = 5.0
#: In bytes; the answer is one line, such as `Kubernetes v1.37.2`.
_LONGEST_ANSWER: Final = 4096
_ANSWER: Final = "Kubernetes "
_EXEC: Final = "ExecStart="
#: What systemd takes before the path of a program (systemd.service(5), "Command lines").
_PREFIXES: Final = "@-:+!"


def reported_version(
    facts: GatheredFacts, root: Path, seconds: float = PATIENCE
) -> ReportedVersion:
    """Return what the kubelet's program says, or why it does not; raises nothing."""
    program = program_of(facts)
    if not program.startswith("/"):
        return ReportedVersion(problem="no process or unit here names the program of a kubelet")
    asked = f"{program} --version"
    path = root / program.lstrip("/")
    try:
        risk = risk_above(path) or risk_of(path, path.stat())
        if risk is not None:
            return ReportedVersion(problem=f"{asked} is not run: {risk}")
        answer = _answer(path, seconds)
    except TimeoutExpired:
        return ReportedVersion(problem=f"{asked} does not end within {seconds:g} s")
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        why = getattr(error, "strerror", None) or str(error)
        return ReportedVersion(problem=f"{asked}: {why.lower()}")
    version = answer.removeprefix(_ANSWER)
    if answer == version or version_of(version) is None:
        return ReportedVersion(problem=f"{asked} prints no version of Kubernetes")
    return ReportedVersion("kubelet", version, asked)


def program_of(facts: GatheredFacts) -> str:
    """Return the path of the kubelet that runs, else of the one that its unit starts, or ""."""
    process = facts.kubelet.process
    return process.program if process is not None else _started_by(facts.kubelet_unit)


def _answer(program: Path, seconds: float) -> str:
    """Return the first line that a program prints; raises `OSError`, `TimeoutExpired`."""
    # What the program prints beyond a pipe's room keeps it from ending within the deadline.
    with Popen(  # noqa: S603  # root's program, in which no other user can write
        [program, "--version"], stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env={}, cwd="/"
    ) as process:
        try:
            process.wait(seconds)
        except TimeoutExpired:
            process.kill()
            raise
        printed = b"" if process.stdout is None else read(process.stdout.fileno(), _LONGEST_ANSWER)
    return printed.decode(errors="replace").partition("\n")[0].strip()


def _started_by(unit: Iterable[HostFile]) -> str:
    """Return the program of a unit, "" where the unit names none; the last line counts."""
    lines = (line for file in unit for line in (file.text or "").splitlines())
    commands = [line.removeprefix(_EXEC) for line in lines if line.startswith(_EXEC)]
    try:
        words = shlex.split(commands[-1]) if commands else []
    except ValueError:
        return ""
    return words[0].lstrip(_PREFIXES) if words else ""


def rules_of(version: str) -> KubernetesVersion | None:
    """Return whose rules hold beside a kubelet of a version: of one that is not known the nearest.

    None: there is no version.
    """
    numbers = version_of(version)
    if numbers is None:
        return None
    # By numbers: v1.100 is later than v1.38.
    older = [each for each in KubernetesVersion if (version_of(each) or ())[:2] <= numbers[:2]]
    return older[-1] if older else OLDEST


def _is_known(version: str) -> bool:
    """Return whether the rules of a version of Kubernetes are known."""
    rules = rules_of(version)
    return rules is not None and (version_of(rules) or ())[:2] == (version_of(version) or ())[:2]


def rules_check(config: Config, reported: ReportedVersion | None) -> HostCheck:
    """Return whether the agent goes by the rules of the version of which the kubelet is.

    `reported` None: neither the kubelet's program nor its package says anything.
    """
    own, verdict, change = config.kubernetes_version, Verdict.WARNING, ""
    if reported is None:
        found = f"{own or 'not set'}; the kubelet's program was not asked here"
        return HostCheck(VERSION_KEY, Verdict.OK, found)
    right, says = rules_of(reported.version), f"{reported.source} says {reported.version}"
    if right is None:
        found = f"{own or 'not set'}; the kubelet's version is not known: {reported.problem}"
        change = "write `kubernetesVersion:` with the kubelet's in the agent's configuration"
    elif own not in (None, right):
        found = f"{own}, and {says}"
        change = f"remove `kubernetesVersion` from the agent's configuration, or write {right}"
    elif own is None and not _is_known(reported.version):
        found = f"{right}, the nearest of which the rules are known; {says}"
        change = f"look for a newer numawarden, or write `kubernetesVersion: {right}`"
    else:
        found = f"{right}, and {says}"
    if not change or (right is None and own is not None):
        verdict, change = Verdict.OK, ""
    return HostCheck(VERSION_KEY, verdict, found, change)

"""`numawarden check`: one verdict on the agent, the kernel, the disk and the configuration.

Every part of the verdict has an exit code. If several parts fail, the command exits with the first
of their codes in `_GRAVEST`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from agent.api.client import Unreachable
from agent.api.documents.checks import CheckDocument, CheckedDocument
from agent.cli.common import agent_at
from agent.cli.errors import CommandError, ExitCode, counted, text_of
from agent.cli.options import VERDICT_TIMEOUT, Output, output_option, socket_option_within
from agent.cli.output import print_answer
from agent.cli.verification import verification_lines
from agent.config.document import config_keys, differing_keys, yaml_text
from agent.config.load import load_config_file
from agent.config.model import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.api.documents.status import ConfigurationDocument, StatusDocument
    from agent.api.documents.verification import VerificationDocument

#: Bytes for the checkpoint below which the disk counts as full.
LEAST_SPACE: Final = 16 << 20
#: Differences, tasks or keys that are listed at most.
_LISTED: Final = 16
#: The type of the condition of absent containers, which have lines of their own.
_FOUND: Final = "ContainersFound"
_GRAVEST: Final = (
    ExitCode.UNREACHABLE,
    ExitCode.NOT_ENFORCED,
    ExitCode.ENVIRONMENT,
    ExitCode.BAD_INPUT,
    ExitCode.REJECTED,
)


class _Line(NamedTuple):
    """One line of the verdict."""

    subject: str
    #: OK where all is well.
    code: ExitCode
    message: str


@click.command()
@click.option("--quiet", "-q", is_flag=True, help="Print nothing: the exit code says it.")
@click.option(
    "--cgroups",
    "each",
    is_flag=True,
    help="List each cgroup, too: what the ledger allocates, and what the kernel has.",
)
@output_option
@socket_option_within(VERDICT_TIMEOUT)
def check(output: Output, socket_path: str, *, quiet: bool, each: bool) -> ExitCode:
    """Compare the kernel with the ledger now, and say in one verdict whether all is well.

    For monitoring and for scripts. Looked at are the conditions of the agent, whether the
    containers of the pods run in their cgroups (60 s after they were admitted or ended), every
    cgroup, tasks that intrude on exclusive CPUs, the space for the checkpoint, and whether the
    configuration file is still that of the running agent. Each line that is not OK says what to do.
    Nothing is written.

    A task intrudes if it is confined and may run on exclusive CPUs of a pod that it does not belong
    to. Tasks that may run on every CPU (all of the system, unless AllowedCPUs= keeps it away) and
    kernel threads are counted beside, with --cgroups; those bound to one CPU are not.

    Exits with 0 if all is well. Otherwise with the first of these that applies: 4 the agent does
    not answer, 7 cgroups differ, tasks intrude or containers are not found, 5 the disk is full, 3
    the configuration file changed or is wrong, 1 there are other conditions.
    """
    try:
        lines, verification = _examine(socket_path)
    except Unreachable as error:
        lines, verification = [_Line("agent", ExitCode.UNREACHABLE, str(error))], None
    codes = {line.code for line in lines}
    code = next((code for code in _GRAVEST if code in codes), ExitCode.OK)
    if not quiet:
        print_answer(_document(lines, code, verification if each else None), output, _lines)
    return code


def _lines(document: CheckDocument) -> Iterator[str]:
    yield document.summary()
    for check in document.checks:
        yield f"  {'ok' if check.ok else 'NOT OK':8}{check.subject:16}{check.message}"
    if document.verification is not None:
        yield from verification_lines(document.verification)


def _document(
    lines: list[_Line], code: ExitCode, verification: VerificationDocument | None
) -> CheckDocument:
    checks = (
        CheckedDocument(
            subject=line.subject,
            ok=line.code is ExitCode.OK,
            message=" ".join(line.message.split()),  # on one line
        )
        for line in lines
    )
    return CheckDocument(code is ExitCode.OK, code, tuple(checks), verification)


def _examine(socket_path: str) -> tuple[list[_Line], VerificationDocument | None]:
    """Return the lines of every part, and the comparison with the kernel if there is one.

    Raises `Unreachable` and `CommandError`.
    """
    with agent_at(socket_path) as agent:
        status = agent.status()
    lines = [*_agent(status), *_disk(status)]
    if status.configuration is not None:
        lines.extend(_configuration(status.configuration))
    try:
        with agent_at(socket_path) as agent:
            answer = agent.verify()
    except CommandError as error:
        return [*lines, _Line("cgroups", ExitCode.NOT_ENFORCED, str(error))], None
    return [*lines, *_cgroups(answer), *_exclusive(answer), *_intruding(answer)], answer


def _agent(status: StatusDocument) -> Iterator[_Line]:
    pods = f"{counted(status.pods, 'pod')} with {counted(status.containers, 'container')}"
    if status.ready:
        yield _Line("agent", ExitCode.OK, f"ready, {pods}")
    else:
        listed = any(condition.line == status.unready for condition in status.conditions)
        why = "a condition below says why" if listed else status.unready
        yield _Line("agent", ExitCode.REJECTED, f"not ready, {pods}: {why}")
    for condition in status.conditions:
        if condition.type == _FOUND:
            continue
        full = condition.type == "CheckpointSaved"
        code = ExitCode.ENVIRONMENT if full else ExitCode.REJECTED
        line = f"{condition.line} ({condition.type}: {condition.reason})"
        yield _Line("condition", code, line)
    absent = [condition for condition in status.conditions if condition.type == _FOUND]
    if len(absent) == len(status.conditions):
        none = "none but those of containers, below" if absent else "none"
        yield _Line("conditions", ExitCode.OK, none)
    more = "and of {} more pods; see 'numawarden list'"
    if len(absent) == 1:
        yield _Line("containers", ExitCode.NOT_ENFORCED, absent[0].line)
    elif absent:
        lines = [condition.message for condition in absent]
        yield from _listed("containers", ExitCode.NOT_ENFORCED, lines, more)
        remedies = (condition.remedy.replace(condition.uid, "POD") for condition in absent)
        for remedy in dict.fromkeys(remedies):
            yield _Line("containers", ExitCode.NOT_ENFORCED, remedy)
    else:
        yield _Line("containers", ExitCode.OK, "none is missing in its pod")


def _listed(subject: str, code: ExitCode, lines: Sequence[str], more: str = "") -> Iterator[_Line]:
    """Yield the first lines of a subject; `more` is the line that counts the others, if any."""
    yield from (_Line(subject, code, line) for line in lines[:_LISTED])
    if more and len(lines) > _LISTED:
        yield _Line(subject, code, more.format(len(lines) - _LISTED))


def _disk(status: StatusDocument) -> Iterator[_Line]:
    state = status.state
    if state is None or state.free is None:
        return
    mib = state.free >> 20
    if state.free < LEAST_SPACE:
        message = f"{mib} MiB are free in {state.directory}; free space on that file system"
        yield _Line("disk", ExitCode.ENVIRONMENT, message)
    else:
        yield _Line("disk", ExitCode.OK, f"{mib} MiB are free in {state.directory}")


def _configuration(running: ConfigurationDocument) -> Iterator[_Line]:
    """Yield how the configuration file differs from the agent's, or why it cannot be read."""
    subject, wrong = "configuration", ExitCode.BAD_INPUT
    try:
        written = config_keys(load_config_file(Path(running.file), running.settings))
    except PermissionError:
        yield _Line(subject, ExitCode.OK, f"{running.file} is not readable for this user")
        return
    except (OSError, ConfigError) as error:
        effect = "the agent would not start again; restore or correct the file"
        yield _Line(subject, wrong, f"{text_of(error)}; {effect}")
        return
    differing = [
        f"{path} is {_shown(new)} in the file and {_shown(old)} in the running agent"
        for path, new, old in differing_keys(written, running.keys)
    ]
    yield from _listed(subject, wrong, differing, "and {} more keys")
    if differing:
        advice = f"try it with 'numawarden config check {running.file}', then restart the agent"
        yield _Line(subject, wrong, f"the file changed since the agent was started; {advice}")
    else:
        yield _Line(subject, ExitCode.OK, f"the agent runs with {running.file}")


def changed_configuration(running: ConfigurationDocument) -> list[str]:
    """Read the configuration file; return how it differs from the agent's, a line each.

    A file that is wrong has a line that says why.
    """
    lines = _configuration(running)
    return [" ".join(line.message.split()) for line in lines if line.code is not ExitCode.OK]


def _shown(value: object) -> str:
    return "empty" if value in (None, "", {}, []) else yaml_text(value, one_line=True)  # type: ignore[arg-type]  # a plain value of JSON


def _cgroups(answer: VerificationDocument) -> Iterator[_Line]:
    differing = [
        *(
            f"{difference.detail} ({difference.cause})"
            for cgroup in answer.cgroups
            for difference in cgroup.differences
        ),
        *(
            f"{above.cgroup} does not pass on {' '.join(above.lacking)}"
            for above in answer.ancestors
            if above.lacking
        ),
        *answer.differences,
    ]
    yield from _listed("cgroups", ExitCode.NOT_ENFORCED, differing)
    if differing:
        count = counted(len(differing), "difference")
        more = f"{count}; see 'numawarden check --cgroups', which names every cgroup"
        yield _Line("cgroups", ExitCode.NOT_ENFORCED, more)
    else:
        yield _Line("cgroups", ExitCode.OK, f"{len(answer.cgroups)} as allocated")


def _exclusive(answer: VerificationDocument) -> Iterator[_Line]:
    lines = [
        f"pod {name} is not exclusive: {intrusion.message}"
        for name, intrusions in answer.intruding_cgroups.items()
        for intrusion in intrusions
    ]
    more = "and {} more; see 'numawarden check --cgroups'"
    yield from _listed("exclusive CPUs", ExitCode.NOT_ENFORCED, lines, more)
    if not lines:
        yield _Line("exclusive CPUs", ExitCode.OK, "no cgroup of others may use them")


def _intruding(answer: VerificationDocument) -> Iterator[_Line]:
    lines = [
        f"process {task.pid} ({task.name}) may run on CPUs {task.cpus} of {', '.join(task.pods)}; "
        f"end it, or move it: taskset -apc CPUS {task.pid}"
        for task in answer.intruding
    ]
    more = "and {} more; see 'numawarden check --cgroups'"
    yield from _listed("intruding tasks", ExitCode.NOT_ENFORCED, lines, more)
    if not lines:
        yield _Line("intruding tasks", ExitCode.OK, "none")

"""`numawarden check`: one verdict on the agent, the kernel, the disk and the configuration.

Each part of it has an exit code of its own; of several that fail the gravest is returned, in the
order of `_GRAVEST`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from agent.api.client import Unreachable
from agent.api.documents import (
    CheckDocument,
    CheckedDocument,
    ConfigurationDocument,
    StatusDocument,
)
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

    from agent.api.documents import VerificationDocument

#: With less space for the checkpoint the disk counts as full, in bytes.
LEAST_SPACE: Final = 16 << 20
#: How many differences, tasks or keys are listed.
_LISTED: Final = 16
#: The condition that containers do not run in their pod's cgroup, which has a line of its own.
_FOUND: Final = "ContainersFound"
_GRAVEST: Final = (
    ExitCode.UNREACHABLE,
    ExitCode.NOT_ENFORCED,
    ExitCode.ENVIRONMENT,
    ExitCode.BAD_INPUT,
    ExitCode.REJECTED,
)


class _Checked(NamedTuple):
    """One line of the verdict; `code` is OK where all is well."""

    subject: str
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
        found, verification = _examined(socket_path)
    except Unreachable as error:
        found, verification = [_Checked("agent", ExitCode.UNREACHABLE, str(error))], None
    codes = {checked.code for checked in found}
    code = next((code for code in _GRAVEST if code in codes), ExitCode.OK)
    if not quiet:
        print_answer(_document(found, code, verification if each else None), output, _lines)
    return code


def _lines(document: CheckDocument) -> Iterator[str]:
    yield document.summary()
    for each in document.checks:
        yield f"  {'ok' if each.ok else 'NOT OK':8}{each.subject:16}{each.message}"
    if document.verification is not None:
        yield from verification_lines(document.verification)


def _document(
    found: list[_Checked], code: ExitCode, verification: VerificationDocument | None
) -> CheckDocument:
    checks = (
        CheckedDocument(
            subject=each.subject,
            ok=each.code is ExitCode.OK,
            message=" ".join(each.message.split()),  # on one line
        )
        for each in found
    )
    return CheckDocument(code is ExitCode.OK, code, tuple(checks), verification)


def _examined(socket_path: str) -> tuple[list[_Checked], VerificationDocument | None]:
    """Return what is found of every part, and the comparison with the kernel if there is one.

    Raises `Unreachable` and `CommandError`.
    """
    with agent_at(socket_path) as agent:
        status = agent.status()
    found = [*_agent(status), *_disk(status)]
    if status.configuration is not None:
        found.extend(_configuration(status.configuration))
    try:
        with agent_at(socket_path) as agent:
            answer = agent.verify()
    except CommandError as error:
        return [*found, _Checked("cgroups", ExitCode.NOT_ENFORCED, str(error))], None
    return [*found, *_cgroups(answer), *_exclusive(answer), *_intruding(answer)], answer


def _agent(status: StatusDocument) -> Iterator[_Checked]:
    pods = f"{counted(status.pods, 'pod')} with {counted(status.containers, 'container')}"
    if status.ready:
        yield _Checked("agent", ExitCode.OK, f"ready, {pods}")
    else:
        listed = any(each.line == status.unready for each in status.conditions)
        why = "a condition below says why" if listed else status.unready
        yield _Checked("agent", ExitCode.REJECTED, f"not ready, {pods}: {why}")
    for condition in status.conditions:
        if condition.type == _FOUND:
            continue
        full = condition.type == "CheckpointSaved"
        code = ExitCode.ENVIRONMENT if full else ExitCode.REJECTED
        line = f"{condition.line} ({condition.type}: {condition.reason})"
        yield _Checked("condition", code, line)
    absent = [each for each in status.conditions if each.type == _FOUND]
    if len(absent) == len(status.conditions):
        none = "none but those of containers, below" if absent else "none"
        yield _Checked("conditions", ExitCode.OK, none)
    more = "and of {} more pods; see 'numawarden list'"
    if len(absent) == 1:
        yield _Checked("containers", ExitCode.NOT_ENFORCED, absent[0].line)
    elif absent:
        lines = [each.message for each in absent]
        yield from _listed("containers", ExitCode.NOT_ENFORCED, lines, more)
        for remedy in dict.fromkeys(each.remedy.replace(each.uid, "POD") for each in absent):
            yield _Checked("containers", ExitCode.NOT_ENFORCED, remedy)
    else:
        yield _Checked("containers", ExitCode.OK, "none is missing in its pod")


def _listed(
    subject: str, code: ExitCode, lines: Sequence[str], more: str = ""
) -> Iterator[_Checked]:
    """Yield the first lines of a subject, and with `more` how many others there are."""
    yield from (_Checked(subject, code, line) for line in lines[:_LISTED])
    if more and len(lines) > _LISTED:
        yield _Checked(subject, code, more.format(len(lines) - _LISTED))


def _disk(status: StatusDocument) -> Iterator[_Checked]:
    state = status.state
    if state is None or state.free is None:
        return
    mib = state.free >> 20
    if state.free < LEAST_SPACE:
        message = f"{mib} MiB are free in {state.directory}; free space on that file system"
        yield _Checked("disk", ExitCode.ENVIRONMENT, message)
    else:
        yield _Checked("disk", ExitCode.OK, f"{mib} MiB are free in {state.directory}")


def _configuration(running: ConfigurationDocument) -> Iterator[_Checked]:
    """Yield how the file differs from what the agent runs with, or that it cannot be used."""
    subject, wrong = "configuration", ExitCode.BAD_INPUT
    try:
        written = config_keys(load_config_file(Path(running.file), running.settings))
    except PermissionError:
        yield _Checked(subject, ExitCode.OK, f"{running.file} is not readable for this user")
        return
    except (OSError, ConfigError) as error:
        effect = "the agent would not start again; restore or correct the file"
        yield _Checked(subject, wrong, f"{text_of(error)}; {effect}")
        return
    differing = [
        f"{path} is {_shown(new)} in the file and {_shown(old)} in the running agent"
        for path, new, old in differing_keys(written, running.keys)
    ]
    yield from _listed(subject, wrong, differing, "and {} more keys")
    if differing:
        advice = f"try it with 'numawarden config check {running.file}', then restart the agent"
        yield _Checked(subject, wrong, f"the file changed since the agent was started; {advice}")
    else:
        yield _Checked(subject, ExitCode.OK, f"the agent runs with {running.file}")


def changed_configuration(running: ConfigurationDocument) -> list[str]:
    """Return how the file differs from what the agent runs with, or that it is wrong; a line each.

    Reads the file.
    """
    found = _configuration(running)
    return [
        " ".join(checked.message.split()) for checked in found if checked.code is not ExitCode.OK
    ]


def _shown(value: object) -> str:
    return "empty" if value in (None, "", {}, []) else yaml_text(value, one_line=True)  # type: ignore[arg-type]  # a plain value of JSON


def _cgroups(answer: VerificationDocument) -> Iterator[_Checked]:
    differing = [
        *(f"{each.detail} ({each.cause})" for one in answer.cgroups for each in one.differences),
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
        yield _Checked("cgroups", ExitCode.NOT_ENFORCED, more)
    else:
        yield _Checked("cgroups", ExitCode.OK, f"{len(answer.cgroups)} as allocated")


def _exclusive(answer: VerificationDocument) -> Iterator[_Checked]:
    lines = [
        f"pod {name} is not exclusive: {each.message}"
        for name, found in answer.intruding_cgroups.items()
        for each in found
    ]
    more = "and {} more; see 'numawarden check --cgroups'"
    yield from _listed("exclusive CPUs", ExitCode.NOT_ENFORCED, lines, more)
    if not lines:
        yield _Checked("exclusive CPUs", ExitCode.OK, "no cgroup of others may use them")


def _intruding(answer: VerificationDocument) -> Iterator[_Checked]:
    lines = [
        f"process {task.pid} ({task.name}) may run on CPUs {task.cpus} of {', '.join(task.pods)}; "
        f"end it, or move it: taskset -apc CPUS {task.pid}"
        for task in answer.intruding
    ]
    more = "and {} more; see 'numawarden check --cgroups'"
    yield from _listed("intruding tasks", ExitCode.NOT_ENFORCED, lines, more)
    if not lines:
        yield _Checked("intruding tasks", ExitCode.OK, "none")

"""`numawarden verify`: compares the kernel with the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent.cli.access import agent_at, output_option, print_json, print_lines, socket_option
from agent.cli.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.verification import IntrudingTaskDocument, VerificationDocument, VerifiedDocument


@click.command()
@output_option
@socket_option
def verify(output: str, socket_path: str) -> ExitCode:
    """Compare the kernel with the ledger, cgroup by cgroup, and look for intruding tasks.

    Nothing is written. The exit code is 1 when a file differs from what the ledger wants, when a
    cgroup above lacks a controller, or when a confined task may run on
    exclusive CPUs of a pod that it does not belong to.

    Tasks that may run on every CPU (all of the system, unless AllowedCPUs= keeps it away) and
    kernel threads are counted beside; those bound to one CPU are not.
    """
    with agent_at(socket_path) as agent:
        answer = agent.verify()
    if output == "json":
        print_json(answer)
    else:
        print_lines(_lines(answer))
    return ExitCode.OK if answer.agrees else ExitCode.REJECTED


def _lines(answer: VerificationDocument) -> Iterator[str]:
    pod = None
    for cgroup in answer.cgroups:
        if cgroup.uid != pod:
            pod = cgroup.uid
            yield f"{cgroup.pod} (uid {cgroup.uid})" if pod else "of no admitted pod"
        yield from _cgroup(cgroup)
    for above in answer.ancestors:
        if above.lacking:
            yield f"DIFFERS   {above.cgroup} does not pass on {' '.join(above.lacking)}"
    yield from (f"DIFFERS   {problem}" for problem in answer.problems)
    yield from (f"FOREIGN   {_intruding(task)}" for task in answer.foreign)
    yield from (f"note: {note}" for note in answer.notes)
    if answer.unconfined_tasks:
        names = ", ".join(dict.fromkeys(task.name for task in answer.unconfined[:5]))
        yield (
            f"note: {answer.unconfined_tasks} threads may run on every CPU, exclusive ones too "
            f"({names}, ...); AllowedCPUs= on system.slice, user.slice, init.scope keeps them off"
        )
    if answer.kernel_threads:
        yield (
            f"note: {answer.kernel_threads} kernel threads are not bound to one CPU; only "
            "isolcpus= keeps them off exclusive ones"
        )
    count = f"{len(answer.cgroups)} cgroups, {len(answer.ancestors)} above them"
    yield f"the kernel {'agrees with' if answer.agrees else 'DIFFERS from'} the ledger: {count}"


def _cgroup(cgroup: VerifiedDocument) -> Iterator[str]:
    kernel = cgroup.kernel
    what = cgroup.container or cgroup.role
    yield f"  {what}  {kernel.cgroup}"
    for name, desired, shown, effective in (
        ("cpuset.cpus", cgroup.cpus, kernel.cpus, kernel.cpus_effective),
        ("cpuset.mems", cgroup.mems, kernel.mems, kernel.mems_effective),
        ("cpu.max", cgroup.cpu_max, kernel.cpu_max, None),
    ):
        there = "is not there" if shown is None else shown or "unset"
        now = f", effective {effective}" if effective is not None else ""
        yield f"    {name:11}  ledger {desired or 'any'}; kernel {there}{now}"
    for difference in cgroup.differences:
        yield f"    DIFFERS   {difference.detail} ({difference.cause})"


def _intruding(task: IntrudingTaskDocument) -> str:
    where = task.cgroup or "no known cgroup"
    return (
        f"process {task.pid} ({task.name}, {task.threads} threads in {where}) may run on CPUs "
        f"{task.cpus} of {', '.join(task.pods)}; its affinity is {task.affinity}"
    )

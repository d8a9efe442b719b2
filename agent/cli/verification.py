"""The kernel compared with the ledger as text, cgroup by cgroup: `VerificationDocument`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cli.errors import counted
from agent.cli.lines import labelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.verification import (
        IntrudingTaskDocument,
        VerificationDocument,
        VerifiedDocument,
    )


def verification_lines(answer: VerificationDocument) -> Iterator[str]:
    """Yield each cgroup with what the ledger allocates and what the kernel has, then the rest."""
    pod = None
    for cgroup in answer.cgroups:
        if cgroup.uid != pod:
            pod = cgroup.uid
            yield f"{cgroup.pod} (uid {cgroup.uid})" if pod else "of no admitted pod"
        yield from _cgroup_lines(cgroup)
    for above in answer.ancestors:
        if above.lacking:
            yield f"DIFFERS   {above.cgroup} does not pass on {' '.join(above.lacking)}"
    yield from labelled("DIFFERS   ", answer.differences)
    for name, intrusions in answer.intruding_cgroups.items():
        messages = (intrusion.message for intrusion in intrusions)
        yield from labelled(f"INTRUDES  pod {name} is not exclusive: ", messages)
    yield from labelled("INTRUDES  ", map(_task_text, answer.intruding))
    yield from labelled("note: ", answer.notes)
    if answer.unconfined_tasks:
        names = ", ".join(dict.fromkeys(task.name for task in answer.unconfined[:5]))
        yield (
            f"note: {answer.unconfined_tasks} threads may run on every CPU, exclusive ones too "
            f"({names}, ...); agent.isolation.hostSlices keeps them off"
        )
    if answer.kernel_threads:
        yield (
            f"note: {answer.kernel_threads} kernel threads are not bound to one CPU; "
            "agent.isolation.kernelThreads keeps them off exclusive ones, and so does a partition"
        )
    count = f"{counted(len(answer.cgroups), 'cgroup')}, {len(answer.ancestors)} above them"
    yield f"the kernel {'agrees with' if answer.agrees else 'DIFFERS from'} the ledger: {count}"


def _cgroup_lines(cgroup: VerifiedDocument) -> Iterator[str]:
    kernel = cgroup.kernel
    yield f"  {cgroup.container or cgroup.role}  {kernel.cgroup}"
    cpus = f"{cgroup.cpus} (inherited)" if cgroup.inherits and cgroup.cpus else cgroup.cpus
    for name, desired, text, effective in (
        ("cpuset.cpus", cpus, kernel.cpus, kernel.cpus_effective),
        ("cpuset.mems", cgroup.mems, kernel.mems, kernel.mems_effective),
        ("cpu.max", cgroup.cpu_max, kernel.cpu_max, None),
    ):
        observed = "has no such file" if text is None else text or "unset"
        result = f", effective {effective}" if effective is not None else ""
        yield f"    {name:11}  ledger {desired or 'any'}; kernel {observed}{result}"
    for difference in cgroup.differences:
        writer = "" if difference.writer is None else f", {difference.writer.line()}"
        yield f"    DIFFERS   {difference.detail} ({difference.cause}{writer})"


def _task_text(task: IntrudingTaskDocument) -> str:
    cgroup = task.cgroup or "no known cgroup"
    return (
        f"process {task.pid} ({task.name}, {task.threads} threads in {cgroup}) may run on CPUs "
        f"{task.cpus} of {', '.join(task.pods)}; its affinity is {task.affinity}"
    )

"""The document of a comparison of the kernel with the ledger, as `check --cgroups` shows it.

In go a report of the enforcer and the tasks of the host; nothing is read but the controllers that
the cgroups above pods pass on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.api.documents.kernel import KernelDocument
from agent.api.documents.verification import (
    AncestorDocument,
    DifferenceDocument,
    IntrudingTaskDocument,
    VerificationDocument,
    VerifiedDocument,
)
from agent.api.views import intrusion_document
from agent.pods.model import full_name
from agent.reconcile.desired import Role
from agent.reconcile.exclusivity import intrusions
from agent.reconcile.tasks import IntruderKind, count_threads, intruding_tasks
from agent.server.intruders import territories
from cgroupfs.apply import HUGETLB, NEEDED, enabled
from cgroupfs.settings import CPU_MAX, PARTITIONS, VALUES
from cgroupfs.tree import ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.reconcile.diff import Difference
    from agent.reconcile.report import CgroupReport, EnforcementReport
    from agent.reconcile.target import Desired
    from agent.reconcile.tasks import IntrudingTask, Task
    from cgroupfs.tree import CgroupTree
    from sysfs.mask import Mask

#: How many unconfined tasks are listed; the rest is counted.
_NAMED: Final = 20


def verification(
    tree: CgroupTree,
    target: Desired,
    report: EnforcementReport,
    tasks: Iterable[Task],
    unconfined: Mask,
) -> VerificationDocument:
    """Return the document of a comparison.

    `agrees` is true if no setting differs, no cgroup above lacks a controller, and no confined task
    may run on another pod's exclusive CPUs. Some of the tasks that may use all of `unconfined` are
    listed; they do not affect it.
    """
    found_tasks = intruding_tasks(tasks, territories(target, report), unconfined)
    intruders = [found for found in found_tasks if found.kind is IntruderKind.CONFINED]
    of_host = [found for found in found_tasks if found.kind is IntruderKind.UNCONFINED]
    threads = count_threads(found_tasks)
    above = tuple(_ancestors(tree, report))
    differences = tuple(difference.detail for difference in report.differences)
    differs = differences or intruders or any(each.differences for each in report.cgroups)
    return VerificationDocument(
        agrees=not differs and not any(each.lacking for each in above),
        cgroups=tuple(_cgroup(target, each) for each in report.cgroups if _matters(each)),
        ancestors=above,
        intruding=tuple(map(_intruding, intruders)),
        unconfined=tuple(map(_intruding, of_host[:_NAMED])),
        unconfined_tasks=threads[IntruderKind.UNCONFINED],
        kernel_threads=threads[IntruderKind.KERNEL],
        differences=differences,
        notes=report.notes,
        intruding_cgroups={
            full_name(target.ledger.allocations[uid]): tuple(map(intrusion_document, found))
            for uid, found in intrusions(target.ledger.allocations, report.remaining).items()
        },
    )


def kernel_document(report: CgroupReport) -> KernelDocument:
    """Return the files of one cgroup as they were read."""
    cgroup, state = f"/{report.desired.setting.cgroup}", report.state
    if state is None:
        return KernelDocument(cgroup=cgroup)
    sets = (state.cpus, state.cpus_effective, state.mems, state.mems_effective)
    cpus, cpus_effective, mems, mems_effective = (
        None if mask is None else str(mask) for mask in sets
    )
    values: dict[str, Any] = {
        row.field: state.values.get(row.file) for row in (*VALUES, *PARTITIONS)
    }
    values[HUGETLB] = {f: text for f, text in state.values.items() if f.startswith(HUGETLB)}
    return KernelDocument(
        cgroup=cgroup,
        cpus=cpus,
        cpus_effective=cpus_effective,
        mems=mems,
        mems_effective=mems_effective,
        **values,
    )


def _ancestors(tree: CgroupTree, report: EnforcementReport) -> Iterator[AncestorDocument]:
    needed: dict[str, set[str]] = {}
    for each in report.cgroups:
        names = each.desired.needed(NEEDED)
        for above in ancestors(each.desired.setting.cgroup):
            needed.setdefault(above, set()).update(names)
    for path, wanting in needed.items():
        on = enabled(tree, path)
        yield AncestorDocument(
            cgroup=f"/{path}",
            enabled=tuple(sorted(on)),
            lacking=tuple(name for name in NEEDED if name in wanting and name not in on),
        )


def _matters(report: CgroupReport) -> bool:
    """Return whether a cgroup is to be listed: not the unset cgroup of all pods."""
    state = report.state
    unset = state is not None and not state.cpus and not state.mems
    return bool(report.differences) or not (report.desired.role is Role.ALL_PODS and unset)


def _cgroup(target: Desired, report: CgroupReport) -> VerifiedDocument:
    desired, state = report.desired, report.state
    setting = desired.setting
    values = dict(setting.values_beside({} if state is None else state.values))
    shown = (None, None) if state is None else (state.cpus, state.mems)
    cpus, mems = setting.sets_beside(*shown)
    if setting.whole_cpus and setting.cpus is not None:
        cpus = setting.cpus
    allocation = target.ledger.allocations.get(desired.pod)
    return VerifiedDocument(
        uid=desired.pod,
        pod="" if allocation is None else full_name(allocation),
        container=desired.container,
        role=str(desired.role),
        cpus=None if cpus is None else str(cpus),
        mems=None if mems is None else str(mems),
        cpu_max=values.pop(CPU_MAX, None),
        kernel=kernel_document(report),
        values=values,
        differences=tuple(map(_difference, report.differences)),
        inherits=bool(setting.whole_cpus),
    )


def _difference(difference: Difference) -> DifferenceDocument:
    writer = difference.writer
    return DifferenceDocument(
        file=difference.file,
        cause=str(difference.cause),
        detail=difference.detail,
        writer=writer,
    )


def _intruding(found: IntrudingTask) -> IntrudingTaskDocument:
    task = found.task
    return IntrudingTaskDocument(
        pid=task.pid,
        name=task.name,
        threads=task.threads,
        cgroup=None if task.cgroup is None else f"/{task.cgroup}",
        affinity=str(task.affinity),
        cpus=str(found.cpus),
        pods=found.pods,
    )

"""The keeper's view of enforcement: what it asks of the enforcer, and what it makes of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.enforcement.binding import cgroup_named, cgroup_of_pid, make_binding
from agent.enforcement.desired import Role
from agent.enforcement.report import count_causes, repaired
from agent.service.ports import Outcome
from agent.wire import KernelDocument
from cgroupfs.errors import CgroupError
from systemd.errors import SystemdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from agent.enforcement.bindings import Binding
    from agent.enforcement.desired import Target
    from agent.enforcement.enforcer import Enforcer
    from agent.enforcement.report import CgroupReport, EnforcementReport
    from agent.ledger import PodGrant
    from agent.wire import BindRequest
    from cgroupfs.names import Layout
    from cgroupfs.tree import Tree
    from sysfs.mask import Mask


class EnforcedKernel:
    """The cgroup tree behind the enforcer (`agent.service.ports.Kernel`).

    `mount` is where the hierarchy is mounted, `proc` where procfs is, `own` the agent's cgroup.
    """

    def __init__(
        self,
        enforcer: Enforcer,
        tree: Tree,
        layout: Layout,
        mount: Path,
        proc: Path,
        own: str = "",
    ) -> None:
        self._enforcer = enforcer
        self._tree = tree
        self._layout = layout
        self._mount = mount
        self._proc = proc
        self._own = own

    def admitted(self, target: Target, uid: str) -> Outcome:
        """Make the kernel honour a ledger to which a pod was added or in which it changed."""

        def enforce() -> Outcome:
            report = self._enforcer.enforce(target)
            return _outcome(report, found={}, repaired={})

        return _guarded(enforce, uid)

    def removed(self, target: Target, grant: PodGrant) -> Outcome:
        """Release a pod that is no longer in the ledger, and give others what it held."""

        def release() -> Outcome:
            released = self._enforcer.release(grant)
            report = self._enforcer.enforce(target)
            notes = () if released.removed else (released.problem,)
            return _outcome(report, found={}, repaired={}, notes=notes)

        return _guarded(release)

    def reconcile(self, target: Target) -> Outcome:
        """Compare the kernel with the ledger and put right what differs."""

        def repair() -> Outcome:
            report = self._enforcer.repair(target)
            kept = self._enforcer.release_leftovers(target)
            return _outcome(
                report,
                found=count_causes(report.found),
                repaired=repaired(report),
                notes=tuple(left.problem for left in kept if not left.removed),
            )

        return _guarded(repair)

    def observe(
        self, target: Target, grant: PodGrant
    ) -> Mapping[str | None, tuple[KernelDocument, ...]]:
        """Return what the kernel says of a pod's cgroups, by container (None: the pod's own)."""
        seen: dict[str | None, tuple[KernelDocument, ...]] = {}
        for report in self._enforcer.cgroups_of(target, grant.uid):
            container = report.wanted.container
            seen[container] = (*seen.get(container, ()), _kernel_document(report))
        return seen

    def locate(
        self, target: Target, grant: PodGrant, container: str, request: BindRequest
    ) -> Binding:
        """Return the binding that was asked for, checked; raises `BindingError`."""
        if request.pid is not None:
            cgroup = cgroup_of_pid(self._proc, request.pid)
        else:
            cgroup = cgroup_named(request.cgroup or "", self._mount)
        return make_binding(
            self._tree,
            self._layout,
            grant,
            container,
            cgroup,
            bindings=target.bindings,
            own=self._own,
        )


def _guarded(action: Callable[[], Outcome], uid: str | None = None) -> Outcome:
    """Do something to the tree; what makes it fail altogether becomes a problem of the outcome."""
    try:
        return action()
    except (OSError, CgroupError, SystemdError) as error:
        problem = f"the cgroup tree failed: {error}"
        if uid is not None:
            return Outcome(unenforced={uid: (problem,)})
        return Outcome(problems=(problem,))


def _outcome(
    report: EnforcementReport,
    found: Mapping[str, int],
    repaired: Mapping[str, int],
    notes: tuple[str, ...] = (),
) -> Outcome:
    by_pod = report.by_pod()
    return Outcome(
        found=found,
        repaired=repaired,
        unenforced={uid: lines for uid, lines in by_pod.items() if uid},
        problems=by_pod.get("", ()),
        notes=(*report.notes, *notes),
        cgroups=tuple(cgroup.wanted.setting.cgroup for cgroup in report.cgroups),
        running=tuple(_running(report)),
    )


def _running(report: EnforcementReport) -> Iterator[tuple[str, str]]:
    for cgroup in report.cgroups:
        wanted, state = cgroup.wanted, cgroup.state
        if wanted.role is Role.CONTAINER and wanted.container and state and state.populated:
            yield wanted.pod, wanted.container


def _kernel_document(report: CgroupReport) -> KernelDocument:
    cgroup, state = f"/{report.wanted.setting.cgroup}", report.state
    if state is None:
        return KernelDocument(cgroup=cgroup)
    return KernelDocument(
        cgroup=cgroup,
        cpus=_text(state.cpus),
        cpus_effective=_text(state.cpus_effective),
        mems=_text(state.mems),
        mems_effective=_text(state.mems_effective),
        cpu_max=None if state.cpu_max is None else str(state.cpu_max),
    )


def _text(mask: Mask | None) -> str | None:
    return None if mask is None else str(mask)

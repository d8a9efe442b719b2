"""The kernel as the controller sees it: enforce, compare, and answer questions about it.

Calls read and write the kernel, so they are made in the worker thread. The enforcer writes cgroups;
this module adds what belongs to no single cgroup: the files by which containers know what they
have, the settings of the host, pauses for other writers, and which differences count as drift.

In go the ledger with what is derived from it (`Desired`) and the uids of pods that changed. The
commands `enforce`, `release` and `reconcile` return an `EnforcementReport`, in which a tree or bus
that fails is a difference. Questions write nothing. Those that read the kernel raise what
`agent.server.errors.readable` says if they cannot; `count_intruders` returns None instead.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.managers.available import (
    Lack,
    availability,
    blocks_of,
    left_to_take,
    pods_lacking,
)
from agent.managers.memory.state import hugepages_type
from agent.pods.model import MEMORY
from agent.reconcile.binding import OtherBindings, cgroup_named, cgroup_of_pid, make_binding
from agent.reconcile.contests import Contests
from agent.reconcile.desired import Role
from agent.reconcile.diff import NO_DRIFT, Cause, Difference
from agent.reconcile.drivers import Lives
from agent.reconcile.placement import pod_cgroup
from agent.reconcile.report import EnforcementReport
from agent.server.errors import readable
from agent.server.intruders import IntruderCount, read_tasks
from agent.server.slowness import PodReading
from agent.server.verification import kernel_document, verification
from cgroupfs.errors import CgroupError
from cgroupfs.load import HELD, MOVABLE, PROCESSES, read_load, read_node_memory
from cgroupfs.settings import CPUS, EFFECTIVE, MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, MEMS, huge_pages
from cgroupfs.state import is_populated
from cgroupfs.tree import all_ancestors
from sysfs.available import read_available
from sysfs.mask import Mask
from sysfs.speeds import read_speeds
from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.api.documents.admissions import BindRequest
    from agent.api.documents.kernel import KernelDocument
    from agent.api.documents.verification import VerificationDocument
    from agent.isolation.host import HostIsolation
    from agent.managers.allocation import PodAllocation
    from agent.managers.bindings import Binding
    from agent.managers.machine import MachineNode
    from agent.managers.numa_policy import NumaPolicy
    from agent.pods.model import Availability
    from agent.reconcile.assigned import AssignedFiles
    from agent.reconcile.drivers import UnitState
    from agent.reconcile.enforcer import Enforcer
    from agent.reconcile.report import PlannedChange, ReleaseReport
    from agent.reconcile.target import Desired
    from agent.reconcile.tasks import Intruders, Task
    from cgroupfs.load import CgroupLoad
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree

log = structlog.get_logger(__name__)

#: The files of sets, desired and effective.
_SETS: Final = frozenset({*EFFECTIVE, *EFFECTIVE.values()})
#: What is written as `memoryReservationPolicy` and `memoryThrottlingFactor` say.
_MEMORY_QOS: Final = frozenset({MEMORY_MIN, MEMORY_LOW, MEMORY_HIGH})


class HostProbes(Struct, frozen=True):
    """What is read and written beside the cgroup tree."""

    #: The tasks of the host.
    tasks: Callable[[], Iterable[Task]] = tuple
    #: A clock in seconds.
    monotonic: Callable[[], float] = time.monotonic
    #: The files of containers, None where none are written.
    assigned: AssignedFiles | None = None
    #: The root of the tree that describes the host, None where no CPU is read.
    host_root: Path | None = None


ALONE: Final = HostProbes()


class KernelEnforcement:
    """The kernel behind the enforcer.

    `mount` is where the cgroup hierarchy is mounted, `proc` where procfs is, `own` the agent's
    cgroup; `isolation` has the settings of the host.
    """

    def __init__(  # noqa: PLR0913  # what the kernel is to the agent
        self,
        enforcer: Enforcer,
        tree: CgroupTree,
        layout: Layout,
        mount: Path,
        proc: Path,
        own: str = "",
        probes: HostProbes = ALONE,
        *,
        isolation: HostIsolation | None = None,
    ) -> None:
        self._enforcer = enforcer
        self._tree = tree
        self._layout = layout
        self._mount = mount
        self._proc = proc
        self._own = own
        self._probes = probes
        self._isolation = isolation
        self._intruders = IntruderCount(probes.monotonic)
        self._contests = Contests(mount)
        #: Whether all cgroups were observed since the agent's start. If `enforce` or `release` was
        #: first, what changed while the agent was stopped is repaired and not reported as drift:
        #: nothing tells it from what their own change made differ.
        self._compared = False

    def enforce(self, target: Desired, *uids: str, move_memory: bool = False) -> EnforcementReport:
        """Enforce a ledger after pods were added or changed, or after the shared pool changed.

        With `move_memory` also the memory nodes of containers that run, as a comparison does.
        """
        act = partial(self._enforcer.enforce_change, target, *uids, move_memory=move_memory)
        return self._with_files_and_host(target, act, *uids)

    def release(self, target: Desired, allocation: PodAllocation) -> EnforcementReport:
        """Release a pod that is no longer in the ledger and enforce what changes for others."""

        def act() -> EnforcementReport:
            released = self._enforcer.releaser.pod(allocation)
            # A unit that was bound may be started again at once, on what it had before. Which
            # bindings can be dropped is returned by the next comparison (`ended`).
            self._enforcer.releaser.bound(target)
            return _noted(self._enforcer.enforce_change(target), released.reason)

        return self._with_files_and_host(target, act)

    def reconcile(self, target: Desired, *, insist: bool = False) -> EnforcementReport:
        """Compare the kernel with the ledger and repair what differs.

        Cgroups that another writer keeps modifying are left alone during their pauses, unless
        `insist` is set. The enforcer repairs those all the same whose sets name exclusive CPUs of
        other pods.
        """
        if self._isolation is not None:
            self._isolation.try_again()

        def act() -> EnforcementReport:
            now = self._probes.monotonic()
            paused = {} if insist else self._contests.paused(now)
            left_alone = {path: contest.setting for path, contest in paused.items()}
            report = self._enforcer.repair(target, left_alone)
            releases = self._enforcer.releaser.orphaned(report.cgroups.orphaned)
            ended = self._enforcer.releaser.bound(target)
            drift = report.drift if self._compared else drift_before_start(report, self._layout)
            return replace(
                _noted(
                    self._contests.judge(report, drift, paused, now),
                    *(release.reason for release in releases),
                ),
                drift=drift,
                ended=ended,
                orphaned=frozenset(self._uids_left(releases)),
            )

        return self._with_files_and_host(target, act, thorough=True)

    def _with_files_and_host(
        self,
        target: Desired,
        action: Callable[[], EnforcementReport],
        *uids: str,
        thorough: bool = False,
    ) -> EnforcementReport:
        """Run an action on the tree, with the files of containers and the settings of the host.

        The files lose CPUs before the action and gain them after it. `thorough`: compare every
        setting of the host, not only those that the pods now ask to be otherwise.
        """
        allocations = target.ledger.allocations
        assigned, isolation = self._probes.assigned, self._isolation
        if assigned is not None:
            assigned.before(allocations)
        report = _guarded(action, *uids)
        self._compared = self._compared or (report.compared and report.pods is None)
        if assigned is not None:
            assigned.after(allocations, report)
        if isolation is not None and (thorough or isolation.active):
            # None: all pods were observed; none was where the tree could not be read.
            isolation.partitions.note_invalid(
                report.pods if report.compared else (),
                {(lost.pod, lost.cgroup): lost.detail for lost in report.unpartitioned},
            )
            isolation.apply(
                allocations.values(),
                frozenset(binding.cgroup for binding in target.bindings),
                thorough=thorough,
                started=uids,
                cgroups_of=partial(self._cgroups_of, target),
            )
        return report

    def _cgroups_of(self, target: Desired, allocation: PodAllocation) -> tuple[str, ...]:
        """Return the cgroup of a pod, whether it exists or not, and those bound to the pod."""
        bound = (binding.cgroup for binding in target.bindings.of_pod(allocation.uid))
        return (pod_cgroup(self._tree, self._layout, allocation), *bound)

    def _uids_left(self, releases: Iterable[ReleaseReport]) -> Iterator[str]:
        """Yield the uids of the pods whose cgroups still exist."""
        for release in releases:
            pod = None if release.removed else self._layout.parse_pod(release.cgroup)
            if pod is not None:
                yield pod.uid

    def plan(self, target: Desired, uid: str) -> PlannedChange:
        """Return what `enforce` would create and write for a pod, without writing."""
        with readable():
            return self._enforcer.plan(target, uid)

    def verify(self, target: Desired, online: Mask) -> VerificationDocument:
        """Compare the kernel with the ledger and look for intruding tasks, without writing."""
        with readable():
            report = self._enforcer.verify(target)
            tasks, unconfined = read_tasks(self._tree, self._probes.tasks, online)
            return verification(self._tree, target, report, tasks, unconfined)

    def count_intruders(
        self, target: Desired, outcome: EnforcementReport, online: Mask
    ) -> Intruders | None:
        """Return what intrudes, None if it is too early to count or the tree cannot be read.

        `outcome` is that of `reconcile`; one that could not read the tree names no cgroups, and
        the pods' own tasks would seem to intrude.
        """
        if not outcome.compared:
            return None
        read = partial(read_tasks, self._tree, self._probes.tasks, online)
        try:
            return self._intruders.count(target, outcome, read)
        except (OSError, CgroupError) as error:
            # The next comparison reports a failure that lasts; the next count is due as usual.
            log.info("intruding tasks not counted", why=str(error))
            return None

    def observe(
        self, target: Desired, allocation: PodAllocation, policy: NumaPolicy | None = None
    ) -> PodReading:
        """Return the settings and loads of a pod's cgroups, and how fast its CPUs may run.

        With the NUMA policy that its processes are to have, also where their memory is.
        """
        memory: list[tuple[str, Mapping[int, int]]] = []
        settings: dict[str | None, tuple[KernelDocument, ...]] = {}
        loads: list[tuple[str | None, CgroupLoad]] = []
        with readable():
            reports = self._enforcer.cgroups_of(target, allocation.uid)
        for report in reports:
            container, cgroup = report.desired.container, report.desired.setting.cgroup
            shown = kernel_document(report)
            settings[container] = (*settings.get(container, ()), shown)
            if report.desired.role is Role.POD:
                loads.append((None, read_load(self._tree, cgroup, own_events=True)))
            elif report.desired.role is Role.CONTAINER:
                name = container or cgroup.rpartition("/")[2]  # one of several that are alike
                loads.append((name, read_load(self._tree, cgroup)))
                held = None if policy is None else read_node_memory(self._tree, cgroup, PROCESSES)
                if held is not None and shown.mems_effective:
                    nodes = Mask.parse(shown.mems_effective)
                    memory.append((name, {node: held.get(node, 0) for node in nodes}))
        root, cpus = self._probes.host_root, allocation.exclusive_cpus
        speeds = () if root is None else read_speeds(root, cpus)
        return PodReading(settings, tuple(loads), speeds, tuple(memory))

    def available(self, nodes: Iterable[int]) -> Availability:
        """Return what the nodes could give now, nothing where no host is described."""
        root = self._probes.host_root
        return {} if root is None else availability(read_available(root, nodes))

    def lacking_memory(
        self, target: Desired, nodes: Iterable[MachineNode]
    ) -> Mapping[str, tuple[Lack, ...]] | None:
        """Return by uid the memory that pods have yet to take and that is not there.

        None where the tree cannot be read. Without pods with pinned memory nothing is read.
        """
        by_node = {node.id: node.hugepages for node in nodes}
        sizes = {hugepages_type(size): size for pages in by_node.values() for size in pages}
        left = {}
        try:
            for uid, allocation in target.ledger.allocations.items():
                types = {block.type for block in blocks_of(allocation)} & {MEMORY, *sizes}
                if types:
                    cgroups = list(filter(self._tree.exists, self._cgroups_of(target, allocation)))
                    used = {name: self._used(cgroups, sizes.get(name)) for name in types}
                    known = {name: size for name, size in used.items() if size is not None}
                    left[uid] = left_to_take(allocation, known)
        except (OSError, CgroupError) as error:
            # As with intruders: a failure that lasts is reported by the next comparison.
            log.info("memory not compared", why=str(error))
            return None
        return pods_lacking(left, self.available(by_node)) if left else {}

    def _used(self, cgroups: Iterable[str], page: int | None) -> int | None:
        """Return the bytes that some cgroups use of huge pages, or of memory that stays in use.

        `page` is the size of the huge pages. None where a cgroup does not show it.
        """
        used = 0
        for cgroup in cgroups:
            if page is None:
                by_node = read_node_memory(self._tree, cgroup, HELD)
                found = None if by_node is None else sum(by_node.values())
            else:
                (text,) = self._tree.read_many(cgroup, (huge_pages(page).use,))
                shown = (text or "").strip()
                found = int(shown) if shown.isdecimal() else None
            if found is None:
                return None
            used += found
        return used

    def memory_on(self, target: Desired, nodes: Mask, allocation: PodAllocation) -> int | None:
        """Return the bytes that a pod's cgroups have on some nodes, None where none says so."""
        cgroups = self._cgroups_of(target, allocation)
        found = [read_node_memory(self._tree, path, MOVABLE) for path in cgroups]
        known = [sum(each.get(node, 0) for node in nodes) for each in found if each is not None]
        return sum(known) if known else None

    def pods_around(self, target: Desired, cgroups: Collection[str]) -> frozenset[str]:
        """Return the uids of the pods in whose cgroups any of these lie, or that are bound to one.

        A pod is bound to a cgroup with all cgroups inside.
        """
        above = all_ancestors(cgroups)
        names = map(self._layout.parse_pod, above)
        own = (name.uid for name in names if name is not None)
        around = above.union(cgroups)
        bound = (binding.pod_uid for binding in target.bindings if binding.cgroup in around)
        return frozenset((*own, *bound))

    def are_beside_pods(self, cgroups: Iterable[str]) -> bool:
        """Return whether one of these belongs to no pod and must keep off exclusive CPUs."""
        return self._isolation is not None and self._isolation.concerns(cgroups)

    def locate(
        self, target: Desired, allocation: PodAllocation, container: str, request: BindRequest
    ) -> Binding:
        """Return the binding that was asked for, checked; raises `BindingError`."""
        if request.pid is not None:
            cgroup = cgroup_of_pid(self._proc, request.pid)
        else:
            cgroup = cgroup_named(request.cgroup or "", self._mount)
        with readable():
            return make_binding(
                self._tree,
                self._layout,
                allocation,
                container,
                cgroup,
                others=OtherBindings(target.bindings, target.ledger.allocations.keys()),
                own=self._own,
            )

    def lives(self, target: Desired, allocations: Iterable[PodAllocation]) -> Lives:
        """Return which of some pods have processes, and the states of units of the others.

        A unit about which systemd does not answer is left out; comparisons report that. `restarted`
        are the pods whose unit runs in a cgroup without their sets.
        """
        inhabited: set[str] = set()
        restarted: set[str] = set()
        units: dict[str, UnitState] = {}
        for allocation in allocations:
            uid, unit = allocation.uid, allocation.lifetime.unit
            if unit:
                with suppress(SystemdError):
                    state = self._enforcer.unit(unit)
                    if state is not None:
                        units[unit] = state
                        if state.running and self._lacks_sets(target, uid):
                            restarted.add(uid)
            elif self._has_processes(target, allocation):
                inhabited.add(uid)
        return Lives(frozenset(inhabited), units, frozenset(restarted))

    def _has_processes(self, target: Desired, allocation: PodAllocation) -> bool:
        with readable():
            cgroups = self._cgroups_of(target, allocation)
            return any(is_populated(self._tree, path) for path in cgroups)

    def _lacks_sets(self, target: Desired, uid: str) -> bool:
        """Return whether a cgroup of a pod lacks the set it should have: it is a new one."""
        with readable():
            reports = self._enforcer.cgroups_of(target, uid)
        differences = (difference for report in reports for difference in report.differences)
        return any(
            difference.file in (CPUS, MEMS) and not difference.observed
            for difference in differences
        )


def drift_before_start(report: EnforcementReport, layout: Layout) -> tuple[Difference, ...]:
    """Return which differences of the first comparison arose while the agent was stopped.

    These are no drift:

    - what was never enforced: containers that started meanwhile have no set yet, nor have
      cgroups of no pod;
    - what follows from the configuration and the host alone: these may have changed meanwhile;
    - memory that is in use, and what the kubelet did.
    """
    unset = {difference.cgroup for difference in report.found if difference.observed == ""}

    def is_drift(difference: Difference) -> bool:
        never_enforced = difference.cgroup in unset or (
            not difference.pod and difference.cause is Cause.CONTROLLER_LOST
        )
        of_node = difference.cgroup == layout.pods() and difference.file not in _SETS
        by_configuration = of_node or difference.file in _MEMORY_QOS
        by_others = difference.cause in {Cause.IN_USE, *NO_DRIFT}
        return not (never_enforced or by_configuration or by_others)

    return tuple(filter(is_drift, report.found))


def _guarded(action: Callable[[], EnforcementReport], *uids: str) -> EnforcementReport:
    """Run an action on the tree; an error becomes a difference of each pod that it is for."""
    try:
        return action()
    except SystemdError as error:
        detail = f"systemd failed: {error}"
    except (OSError, CgroupError) as error:
        detail = f"the cgroup tree failed: {error}"
    failures = (Difference("", detail, Cause.UNKNOWN, uid) for uid in uids or ("",))
    return EnforcementReport(differences=tuple(failures), compared=False)


def _noted(report: EnforcementReport, *further: str) -> EnforcementReport:
    """Return a report with further notes, without empty ones."""
    return replace(report, notes=(*report.notes, *filter(None, further)))

"""Pods, hosts and a service manager for the tests of enforcement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from agent.managers.allocation import (
    ContainerAllocation,
    CpuLimits,
    Isolation,
    MemoryBlock,
    PodAllocation,
)
from agent.managers.cpu.manager import exclusive_cpus
from agent.pods.model import ContainerKind, QosClass
from agent.reconcile.desired import DesiredCgroup, Role
from agent.reconcile.diff import Cause, Difference
from agent.reconcile.drivers import DirectoryCgroups, SliceCgroups, read_record
from agent.reconcile.enforced import EVERYTHING, EnforcedControllers
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.report import CgroupReport, CgroupReports
from agent.reconcile.target import Desired
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Driver, Layout, Tier
from cgroupfs.plan import Setting
from cgroupfs.state import CgroupState
from cgroupfs.tree import ancestors
from sysfs.mask import Mask
from systemd.bus import ActiveState
from systemd.units import INFINITY, BusUnavailableError, NoSuchUnitError, Property, UnitExistsError
from tests.agent.managers.ledgers import ledger_with
from tests.fakes.one_by_one import OneByOne

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.managers.ledger import Ledger
    from agent.reconcile.report import EnforcementReport, ReleaseReport
    from cgroupfs.tree import CgroupTree

ONLINE: Final = Mask.parse("0-15")
UID: Final = "11111111-2222-3333-4444-555555555555"
OTHER: Final = "99999999-8888-7777-6666-555555555555"


def exclusive(name: str, cpus: str, *, node: int | None = None, quota: bool = False,
              kind: ContainerKind = ContainerKind.APP) -> ContainerAllocation:  # fmt: skip
    own = Mask.parse(cpus)
    limit = len(own) * 1000
    return ContainerAllocation(
        name,
        kind,
        Isolation.CONTAINER,
        own,
        memory_on(node),
        cpu=CpuLimits(limit, limit),
        quota_disabled=not quota,
    )


def pod_shared(name: str, cpus: str, *, node: int | None = None, limit: int | None = None,
               kind: ContainerKind = ContainerKind.APP) -> ContainerAllocation:  # fmt: skip
    cpu = CpuLimits(limit, limit)
    return ContainerAllocation(
        name, kind, Isolation.POD, Mask.parse(cpus), memory_on(node), cpu=cpu
    )


def on_host(name: str, *, limit: int | None = None, request: int | None = None,
            kind: ContainerKind = ContainerKind.APP) -> ContainerAllocation:  # fmt: skip
    return ContainerAllocation(name, kind, cpu=CpuLimits(request, limit))


def memory_on(node: int | None) -> tuple[MemoryBlock, ...]:
    return () if node is None else (MemoryBlock("memory", 1 << 30, Mask.of(node)),)


def pod(*containers: ContainerAllocation, uid: str = UID, cpus: str | None = None,
        node: int | None = None, limit: int | None = None,
        qos: QosClass = QosClass.GUARANTEED) -> PodAllocation:  # fmt: skip
    return PodAllocation(
        uid=uid,
        name=f"pod-{uid[:4]}",
        namespace="default",
        qos=qos,
        spec_digest="decided",
        containers=containers,
        cpus=None if cpus is None else Mask.parse(cpus),
        memory=memory_on(node),
        cpu=CpuLimits(limit, limit),
    )


def mixed(uid: str = UID) -> PodAllocation:
    """Return the pod of KEP-5526's first example: a database, two helpers that share the rest."""
    return pod(
        exclusive("db", "2-5", node=0),
        pod_shared("backup", "6-7", node=0),
        pod_shared("metrics", "6-7", node=0, limit=500),
        uid=uid,
        cpus="2-7",
        node=0,
        limit=6000,
    )


def ledger(*pods: PodAllocation) -> Ledger:
    return ledger_with(*pods)


def target(*pods: PodAllocation) -> Desired:
    allocated = ledger(*pods)
    return Desired(allocated, ONLINE - exclusive_cpus(allocated))


def layout(driver: Driver = Driver.CGROUPFS) -> Layout:
    return Layout(driver)


def path_of(allocation: PodAllocation, driver: Driver = Driver.CGROUPFS) -> str:
    return layout(driver).pod(allocation.uid, Tier(str(allocation.qos)))


def kernel() -> EmulatedKernel:
    return EmulatedKernel(ONLINE, Mask.parse("0-1"))


def directories(
    tree: CgroupTree,
    enforced: EnforcedControllers = EVERYTHING,
    of: Layout = Layout(Driver.CGROUPFS),  # noqa: B008  # frozen
) -> Enforcer:
    """Return a prepared enforcer of the cgroupfs driver."""
    enforcer = Enforcer(tree, of, DirectoryCgroups(tree), enforced=enforced)
    assert enforcer.prepare().ok
    return enforcer


def run(tree: EmulatedKernel, cgroup: str, pid: int) -> str:
    """Start a process in a new cgroup, as a runtime does."""
    tree.mkdir(cgroup)
    tree.spawn(cgroup, pid)
    return cgroup


@dataclass
class FakeSystemd(OneByOne):
    """`systemd.bus.Systemd` over an emulated kernel: keeps properties and writes them.

    `calls` is what changed something; `broken` makes every call fail. `realize` writes a unit's
    files from its properties, as systemd does to all units of a slice after a reload.
    """

    tree: EmulatedKernel
    active: dict[str, str] = field(default_factory=dict)
    properties: dict[str, dict[str, object]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        self._call("start", unit)
        if unit in self.active:
            raise UnitExistsError("StartTransientUnit", "org.freedesktop.systemd1.UnitExists", unit)
        path = slice_path(unit)
        for above in (*ancestors(path)[1:], path):
            if not self.tree.exists(above):
                self.tree.mkdir(above)
            self.active[above.rpartition("/")[2]] = above
        self._hold(unit, properties)

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        self._call("set", unit)
        self._hold(unit, properties)

    def stop(self, unit: str) -> None:
        self._call("stop", unit)
        path = self.active.pop(unit)
        for pid in self.tree.procs(path):
            self.tree.exit(pid)
        for child in self.tree.children(path):
            self.active.pop(child, None)
            self.tree.rmdir(f"{path}/{child}")
        self.tree.rmdir(path)

    def active_state(self, unit: str) -> ActiveState:
        self._answer()
        return ActiveState.ACTIVE if unit in self.active else ActiveState.INACTIVE

    def control_group(self, unit: str) -> str:
        self._answer()
        if unit not in self.active:
            raise NoSuchUnitError("GetUnit", "org.freedesktop.systemd1.NoSuchUnit", unit)
        return self.active[unit]

    def unit_of(self, pid: int) -> str:
        raise NotImplementedError(pid)

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        self._answer()
        if unit not in self.active:
            raise NoSuchUnitError("GetUnit", "org.freedesktop.systemd1.NoSuchUnit", unit)
        known = {"ControlGroup": f"/{self.active[unit]}", **self.properties.get(unit, {})}
        return tuple(
            known.get(name, b"" if name.startswith("Allowed") else INFINITY) for name in names
        )

    def start_scope(self, parent: str, name: str, pid: int) -> str:
        """Start a scope with one process, as a runtime does."""
        cgroup = run(self.tree, f"{parent}/{name}", pid)
        self.active[name] = cgroup
        return cgroup

    def realize(self, unit: str) -> None:
        path = self.active[unit]
        record = read_record(self, unit)
        for file, value in (
            ("cpuset.cpus", record.cpus),
            ("cpuset.mems", record.mems),
            *record.values.items(),
        ):
            if value is not None and self.tree.read_many(path, (file,)) != (None,):
                self.tree.write(path, file, str(value))

    def _hold(self, unit: str, properties: Sequence[Property]) -> None:
        known = self.properties.setdefault(unit, {})
        for prop in properties:
            known[prop.name] = prop.value
        self.realize(unit)

    def _call(self, name: str, unit: str) -> None:
        self._answer()
        self.calls.append((name, unit))

    def _answer(self) -> None:
        if self.broken:
            raise BusUnavailableError("unix:path=/nowhere", "it is gone")


def slice_path(unit: str) -> str:
    """Return the cgroup of a slice."""
    parts = unit.removesuffix(".slice").split("-")
    return "/".join("-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts)))


def slices(
    tree: EmulatedKernel, enforced: EnforcedControllers = EVERYTHING
) -> tuple[Enforcer, FakeSystemd]:
    """Return a prepared enforcer of the systemd driver, and its service manager."""
    systemd = FakeSystemd(tree)
    enforcer = Enforcer(
        tree, layout(Driver.SYSTEMD), SliceCgroups(tree, systemd), enforced=enforced
    )
    assert enforcer.prepare().ok
    return enforcer, systemd


def release_orphaned(enforcer: Enforcer, aim: Desired) -> tuple[ReleaseReport, ...]:
    """Remove the empty cgroups of pods that are not in the ledger; return what was done."""
    return enforcer.releaser.orphaned(enforcer.verify(aim).cgroups.orphaned)


def by_pod(report: EnforcementReport) -> dict[str, tuple[str, ...]]:
    """Return the details of what remains by pod uid ("" for no single pod)."""
    lines: dict[str, tuple[str, ...]] = {}
    for each in report.remaining:
        lines[each.pod] = (*lines.get(each.pod, ()), each.detail)
    return lines


def unenforced(detail: str, uid: str = "") -> Difference:
    """Return a difference that remains, of a pod or outside of single pods."""
    return Difference("", detail, Cause.UNKNOWN, uid)


def observed_cgroups(*paths: str, uid: str = "", container: str | None = None) -> CgroupReports:
    """Return the reports of cgroups of a pod, with processes and without differences."""
    role = Role.POD if container is None else Role.CONTAINER
    state = CgroupState(None, None, None, None, populated=True)
    return CgroupReports(
        CgroupReport(DesiredCgroup(Setting(path), role, uid, container), state) for path in paths
    )

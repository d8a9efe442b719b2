"""Pods, hosts and a service manager for the tests of enforcement."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.enforcement.desired import Target
from agent.enforcement.enforcer import Enforcer
from agent.enforcement.pod_cgroups import DirectoryCgroups, SliceCgroups
from agent.enforcement.units import UnitError
from agent.ledger import ContainerGrant, CpuLimits, Isolation, Ledger, MemoryBlock, PodGrant
from agent.pods.model import ContainerKind, QosClass
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Driver, Layout, Tier
from cgroupfs.verify import Record
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from cgroupfs.tree import Tree

ONLINE: Final = Mask.parse("0-15")
UID: Final = "11111111-2222-3333-4444-555555555555"
OTHER: Final = "99999999-8888-7777-6666-555555555555"


def exclusive(name: str, cpus: str, *, node: int | None = None, quota: bool = False,
              kind: ContainerKind = ContainerKind.APP) -> ContainerGrant:  # fmt: skip
    held = Mask.parse(cpus)
    limit = len(held) * 1000
    return ContainerGrant(
        name,
        kind,
        Isolation.CONTAINER,
        held,
        memory_on(node),
        cpu=CpuLimits(limit, limit),
        quota_disabled=not quota,
    )


def pod_shared(name: str, cpus: str, *, node: int | None = None, limit: int | None = None,
               kind: ContainerKind = ContainerKind.APP) -> ContainerGrant:  # fmt: skip
    cpu = CpuLimits(limit, limit)
    return ContainerGrant(name, kind, Isolation.POD, Mask.parse(cpus), memory_on(node), cpu=cpu)


def on_host(name: str, *, limit: int | None = None) -> ContainerGrant:
    return ContainerGrant(name, ContainerKind.APP, cpu=CpuLimits(None, limit))


def memory_on(node: int | None) -> tuple[MemoryBlock, ...]:
    return () if node is None else (MemoryBlock("memory", 1 << 30, Mask.of(node)),)


def pod(*containers: ContainerGrant, uid: str = UID, cpus: str | None = None,
        node: int | None = None, limit: int | None = None,
        qos: QosClass = QosClass.GUARANTEED) -> PodGrant:  # fmt: skip
    return PodGrant(
        uid=uid,
        name=f"pod-{uid[:4]}",
        namespace="default",
        qos=qos,
        spec_digest="",
        containers=containers,
        cpus=None if cpus is None else Mask.parse(cpus),
        memory=memory_on(node),
        cpu=CpuLimits(limit, limit),
    )


def mixed(uid: str = UID) -> PodGrant:
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


def ledger(*pods: PodGrant) -> Ledger:
    union = EMPTY
    for grant in pods:
        union |= grant.exclusive_cpus
    return Ledger(MappingProxyType({grant.uid: grant for grant in pods}), union)


def target(*pods: PodGrant) -> Target:
    held = ledger(*pods)
    return Target(held, ONLINE - held.exclusive_cpus)


def layout(driver: Driver = Driver.CGROUPFS) -> Layout:
    return Layout(driver)


def path_of(grant: PodGrant, driver: Driver = Driver.CGROUPFS) -> str:
    return layout(driver).pod(grant.uid, Tier(str(grant.qos)))


def kernel() -> EmulatedKernel:
    return EmulatedKernel(ONLINE, Mask.parse("0-1"))


def directories(tree: Tree) -> Enforcer:
    """Return a prepared enforcer of the cgroupfs driver."""
    enforcer = Enforcer(tree, layout(), DirectoryCgroups(tree))
    assert enforcer.prepare().ok
    return enforcer


def run(tree: EmulatedKernel, cgroup: str, pid: int) -> str:
    """Start a process in a new cgroup, as a runtime does."""
    tree.mkdir(cgroup)
    tree.spawn(cgroup, pid)
    return cgroup


@dataclass
class FakeSystemd:
    """Units over an emulated kernel: keeps properties, writes them, and can undo what others wrote.

    `calls` is what was asked; `broken` makes every call fail.
    """

    tree: EmulatedKernel
    active: dict[str, str] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False

    def check(self) -> None:
        self._call("check", "")

    def cgroup_of(self, unit: str) -> str | None:
        self._call("cgroup_of", unit)
        return self.active.get(unit)

    def start_slice(self, slice_unit: str) -> None:
        self._call("start_slice", slice_unit)
        parts = slice_unit.removesuffix(".slice").split("-")
        path = ""
        for depth in range(1, len(parts) + 1):
            name = "-".join(parts[:depth]) + ".slice"
            path = f"{path}/{name}" if path else name
            if not self.tree.exists(path):
                self.tree.mkdir(path)
            self.active[name] = path

    def start_scope(self, parent: str, name: str, pid: int) -> str:
        """Start a scope with one process, as a runtime does."""
        cgroup = run(self.tree, f"{parent}/{name}", pid)
        self.active[name] = cgroup
        return cgroup

    def properties(self, unit: str) -> Record:
        self._call("properties", unit)
        return self.records.get(unit, Record())

    def set_properties(self, unit: str, record: Record) -> None:
        self._call("set_properties", unit)
        self.records[unit] = record
        self.realize(unit)

    def stop(self, unit: str) -> None:
        self._call("stop", unit)
        path = self.active.pop(unit)
        for pid in self.tree.procs(path):
            self.tree.exit(pid)
        self.tree.rmdir(path)

    def realize(self, unit: str) -> None:
        """Write a unit's files from its properties, as systemd does after a reload."""
        path, record = self.active[unit], self.records.get(unit, Record())
        for file, value in (
            ("cpuset.cpus", record.cpus),
            ("cpuset.mems", record.mems),
            ("cpu.max", record.cpu_max or "max"),
        ):
            if value is not None and file in self._files(path):
                self.tree.write(path, file, str(value))

    def _files(self, path: str) -> set[str]:
        shown = ("cpuset.cpus", "cpuset.mems", "cpu.max")
        return {f for f, t in zip(shown, self.tree.read_many(path, shown), strict=True) if t}

    def _call(self, name: str, unit: str) -> None:
        self.calls.append((name, unit))
        if self.broken:
            raise UnitError("the bus is gone")


def slices(tree: EmulatedKernel) -> tuple[Enforcer, FakeSystemd]:
    """Return a prepared enforcer of the systemd driver, and its service manager."""
    systemd = FakeSystemd(tree)
    enforcer = Enforcer(tree, layout(Driver.SYSTEMD), SliceCgroups(tree, systemd))
    assert enforcer.prepare().ok
    return enforcer, systemd

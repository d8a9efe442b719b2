"""Figures of enforcing alone: a pod comes or goes beside many others, on an emulated kernel.

Counted beside the time: what is written to cgroups, and which calls systemd gets. The bus is a
fake, so its time is not systemd's.
"""

from __future__ import annotations

import dataclasses
import gc
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.admission import admit, remove
from agent.managers.cpu.manager import shared_cpus
from agent.reconcile.drivers import DirectoryCgroups, SliceCgroups
from agent.reconcile.enforcer import Enforcer
from agent.reconcile.placement import pod_cgroup
from agent.reconcile.target import Desired
from agent.server.memory import settle_memory
from cgroupfs.names import Driver, Layout
from sysfs.mask import Mask
from tests.agent.pods.pods import app, guaranteed, pod, resources
from tests.agent.reconcile.pods import FakeSystemd
from tests.bench import hosts
from tests.bench.agents import CountingKernel
from tests.bench.measure import of_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.managers.ledger import Ledger
    from agent.pods.model import Container, Pod, Resources
    from tests.bench.measure import Figure

ADMITTED: Final = (10, 500, 2500)
_HOSTS: Final = ("2n128c", "8n256c")
_UID: Final = "00000000-0000-4000-8000-{:012d}"
_CONTAINERS: Final = 5
#: Admissions and removals of one figure: so many, or after the fewest until the time is used up.
_TIMES: Final = 30
_FEWEST: Final = 5
_SECONDS: Final = 3.0


def enforcing() -> Iterator[Figure]:
    """Admit and remove an exclusive and a shared pod beside 10, 500 and 2,500 others.

    The others are burstable pods of five containers, or (`guaranteed` in the name) Guaranteed ones
    without exclusive CPUs, in the cgroup that carries the pool for them or, as beside a kubelet,
    each with a set of its own (`guaranteed-each`).
    """
    for name in _HOSTS:
        for driver in Driver:
            for variant, make in _OTHERS.items():
                for number in ADMITTED:
                    yield from _beside(name, driver, variant, make, number)


def _burstable(uid: str) -> Pod:
    return pod(*_members(resources("cpu=1m", "cpu=2m")), uid=uid)


def _pool_only(uid: str) -> Pod:
    """Return a Guaranteed pod without exclusive CPUs."""
    return pod(*_members(guaranteed("cpu=1m memory=1Mi")), uid=uid)


def _members(asked: Resources) -> Iterator[Container]:
    return (app(f"c{place}", asked) for place in range(_CONTAINERS))


#: What is beside the pod of a figure, by what the figure's name says of it.
_OTHERS: Final = {"": _burstable, "-guaranteed": _pool_only, "-guaranteed-each": _pool_only}


class CountingBus(FakeSystemd):
    """A bus that counts every call, the questions included; what systemd writes does not count."""

    asked = 0

    def _answer(self) -> None:
        self.asked += 1
        super()._answer()

    def realize(self, unit: str) -> None:
        kernel = self.tree
        assert isinstance(kernel, CountingKernel)
        before = kernel.writes, self.asked
        super().realize(unit)
        kernel.writes, self.asked = before


class _EnforcedHost:
    """A host on which pods are admitted and enforced, each with five containers that run."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        make: Callable[[str], Pod],
        pods: int,
        *,
        shares: bool = True,
    ) -> None:
        host = hosts.host(name)
        self.kernel = CountingKernel(host.online, Mask.from_ids(node.id for node in host.nodes))
        self.rules = hosts.rules(name, memory=False)
        self.layout = Layout(driver, shares=shares)
        self.bus = CountingBus(self.kernel)
        cgroups = (
            SliceCgroups(self.kernel, self.bus)
            if driver is Driver.SYSTEMD
            else DirectoryCgroups(self.kernel)
        )
        self.enforcer = Enforcer(self.kernel, self.layout, cgroups)
        self.enforcer.prepare()
        self.ledger = self.rules.empty_ledger()
        for number in range(pods):
            self.ledger = admit(self.rules, self.ledger, make(_UID.format(number))).ledger
        # So that there is a cgroup of each QoS class.
        best_effort = pod(app("c"), uid=_UID.format(99_997))
        self.ledger = admit(self.rules, self.ledger, best_effort).ledger
        self._settled()
        for number, allocation in enumerate(self.ledger.allocations.values()):
            path = pod_cgroup(self.kernel, self.layout, allocation)
            for place in range(_CONTAINERS):
                self._run(f"{path}/c{place}", number * _CONTAINERS + place + 1)
        self._settled()
        self._settled()

    def _desired(self, ledger: Ledger) -> Desired:
        return Desired(ledger, shared_cpus(self.rules, ledger))

    def change(self, ledger: Ledger, uid: str | None) -> Sample:
        """Enforce a ledger in which the pod `uid` is new, or one is missing (None)."""
        gone = [a for u, a in self.ledger.allocations.items() if u not in ledger.allocations] if (
            uid is None
        ) else []  # fmt: skip
        desired = self._desired(ledger)
        self.kernel.writes = self.bus.asked = 0
        started = perf_counter_ns()
        for allocation in gone:
            self.enforcer.releaser.pod(allocation)
        report = self.enforcer.enforce_change(desired, *filter(None, (uid,)))
        taken = perf_counter_ns() - started
        if not report.ok:
            raise RuntimeError(f"a figure was not enforced: {report.remaining[:3]}")
        self.ledger = ledger
        return Sample(taken, self.kernel.writes, self.bus.asked)

    def _run(self, path: str, pid: int) -> None:
        if self.layout.driver is Driver.SYSTEMD:
            above, _, name = path.rpartition("/")
            self.bus.start_scope(above, f"{name}-{pid}.scope", pid)
        else:
            self.kernel.mkdir(path)
            self.kernel.spawn(path, pid)

    def _settled(self) -> None:
        report = self.enforcer.repair(self._desired(self.ledger))
        if not report.ok:
            raise RuntimeError(f"a host was not enforced: {report.remaining[:3]}")


class Sample(Struct, frozen=True):
    """One change: nanoseconds, writes to cgroups, calls of the bus."""

    nanoseconds: int
    writes: int
    bus_calls: int


def _beside(
    name: str, driver: Driver, variant: str, make: Callable[[str], Pod], number: int
) -> Iterator[Figure]:
    host = _EnforcedHost(name, driver, make, number, shares=not variant.endswith("each"))
    kinds = {
        "exclusive": hosts.guaranteed_pod(_UID.format(99_998), 4),
        "shared": _burstable(_UID.format(99_999)),
    }
    settle_memory()
    for kind, asked in kinds.items():
        admissions: list[Sample] = []
        removals: list[Sample] = []
        started = perf_counter_ns()
        while len(admissions) < _FEWEST or (
            len(admissions) < _TIMES and perf_counter_ns() - started < _SECONDS * 1e9
        ):
            without = host.ledger
            decision = admit(host.rules, without, asked)
            if not decision.admitted:
                raise RuntimeError(f"the pod of a figure was not admitted: {decision.rejection}")
            admissions.append(host.change(decision.ledger, asked.uid))
            removals.append(host.change(remove(host.rules, decision.ledger, asked.uid), None))
        for action, samples in (("admit", admissions), ("remove", removals)):
            yield _figure(f"enforce/{name}/{driver}-{kind}-{action}{variant}-pods{number}", samples)
    gc.unfreeze()


def _figure(name: str, samples: list[Sample]) -> Figure:
    figure = of_samples(name, [sample.nanoseconds for sample in samples])
    return dataclasses.replace(
        figure,
        writes=max(sample.writes for sample in samples),
        bus_calls=max(sample.bus_calls for sample in samples),
    )

"""Pods, containers and bindings come and go through every listener, and no CPU is two pods'.

Seeded sequences on a host with an emulated kernel, over restarts, with an older checkpoint or none,
or an import of the kubelet's state. What runs with CPUs of its own keeps them whatever checkpoint
is found. `NUMAWARDEN_STORIES` says how many (`make nightly`), half of them with each driver.

What was bound outside of all pods is known from the checkpoint alone: where that is lost, older or
imported, such a cgroup is not looked at here until it is bound again (docs/operations.md says so).

In the stories of `Upheaval` the host and the configuration change as well, agents are killed at any
step, and others write into every cgroup. The next comparison repairs what they do: these stories
are looked at after comparisons.
"""

from __future__ import annotations

import functools
import os
import pickle
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import BindRequest
from agent.api.documents.maintenance import CordonRequest
from agent.config.model import CgroupDriver, Config, ConfigError
from agent.config.pools import PoolConfig
from agent.managers.allocation import Isolation, Source
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.policy import CpuManagerPolicy, TopologyManagerPolicy, TopologyManagerScope
from agent.managers.violations import Rule
from agent.pods.model import UNIT, ContainerKind, QosClass
from agent.reconcile.report import BindingError
from agent.reconcile.withheld import read_withheld
from agent.server.errors import BindingNotFoundError, RequestError
from agent.state.checkpoint import Checkpoint
from agent.state.store import CHECKPOINT_NAME, Store
from agent.tools.kubelet_state.exporting import kubelet_state
from agent.tools.kubelet_state.format import KubeletStateError
from agent.tools.kubelet_state.importing import take_over
from sysfs.described import with_offline
from sysfs.discover import discover
from sysfs.mask import EMPTY, Mask
from tests.agent.server.sites import allocated, hotplug, make_site, pod_of, site_config, with_agent
from tests.agent.server.support import make_world, two_packages
from tests.conformance.invariants import broken_invariants
from tests.fakes.effects import Effects, die_after, die_amid, die_before
from tests.fakes.kernel import Died

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterator
    from pathlib import Path

    from agent.managers.allocation import PodAllocation
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from sysfs.host import Host
    from tests.agent.server.sites import Site
    from tests.agent.state.disks import MemoryDisk

STORIES: Final = int(os.environ.get("NUMAWARDEN_STORIES", "40"))
#: How often an agent is started in a sequence, and how much happens in the life of one.
LIVES: Final = 3
STEPS: Final = 8
#: Containers and budget of pods, as `pod_of` takes them.
KINDS: Final = (
    ("a=2", ""),
    ("a=1 b=2", ""),
    ("a=1 b", "2"),
    ("a=1 b c=1", "4"),
    ("a~1 b", ""),
    ("!i=1 a=1", ""),
)
#: What is cordoned and uncordoned.
TARGETS: Final = ("node:0", "node:1", "core:2", "4-7", "0", "1,9", "10-15")
HOST: Final = two_packages()
#: How many lives end at a random step, and after how many steps the kernel is compared.
DYING: Final = 0.3
COMPARED: Final = 0.5
#: The first seed of the stories of upheavals.
FIRST: Final = int(os.environ.get("NUMAWARDEN_FIRST_STORY", "0"))
#: The cgroup of another program that may be a partition.
APART: Final = "ovs.slice"
WRITTEN: Final = ("0", "0-15", "3,11", "5-7")


@dataclass
class Story:
    """A host, what is known of it from outside of the agent, and what happens there."""

    site: Site
    random: Random
    pods: int = 0
    specs: dict[str, Pod] = field(default_factory=dict)
    #: Cgroups outside of all pods in which processes were started, to be bound or not.
    elsewhere: list[str] = field(default_factory=list)
    #: Services that were started with pods.
    units: list[str] = field(default_factory=list)
    #: Of these, the ones of which no checkpoint says any longer that they were bound.
    forgotten: set[str] = field(default_factory=set)
    #: Disks as they once were, and the rules in force.
    backups: list[bytes] = field(default_factory=list)
    rules: EffectivePolicy | None = None
    #: What running pods' containers had alone when the last agent ended, by uid.
    alone: dict[str, Mask] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def run(self) -> None:
        for life in range(LIVES):
            if life:
                self.between()
            with_agent(self.site, self.live)

    async def live(self, controller: Controller) -> None:
        """Compare once, as an agent does before it serves a request; then let things happen."""
        self.rules = controller.state.configured.rules
        known = controller.state.durable.bindings
        self.forgotten = {*self.elsewhere} - {*known.released, *(each.cgroup for each in known)}
        assert list(self.lost(controller)) == [], self.done
        await controller.reconcile()
        self.check(controller, "start")
        for _ in range(STEPS):
            step = self.random.choice(self.steps())
            await step(controller)
            self.check(controller, step.__name__)
        self.alone = dict(self.running_alone(controller))
        self.backups.append(pickle.dumps(self.site.disk))

    def check(self, controller: Controller, step: str) -> None:
        self.done.append(step)
        state = controller.state
        assert broken_invariants(state.configured.rules, state.ledger) == [], self.done
        assert list(intruders(self.site, controller, self.forgotten)) == [], self.done

    def steps(self) -> list[Callable[[Controller], Awaitable[None]]]:
        own = [self.admit] * 4 + [self.remove] * 2 + [self.bind] * 4 + [self.reconcile] * 2
        own += [self.admit_again] * 2 + [self.unbind] * 2 + [self.replace] * 2
        return [*own, *[self.start] * 3, *[self.start_elsewhere] * 2, self.end, self.meddle]

    async def admit(self, controller: Controller) -> None:
        await controller.admit(self.next_pod())

    async def admit_again(self, controller: Controller) -> None:
        """Ask for a pod that was asked for before: it is there, recovered, displaced or removed."""
        if uid := self.any_of(sorted(self.specs)):
            await controller.admit(self.specs[uid])

    async def replace(self, controller: Controller) -> None:
        allocations = controller.state.ledger.allocations
        old = self.any_of([uid for uid, allocation in allocations.items() if allocation.name])
        if not old:
            return
        pod = self.next_pod(name=allocations[old].name)
        answer = await controller.admit(pod, replace_pod=True)
        after = controller.state.ledger.allocations
        assert (old in after, pod.uid in after) == (not answer.admitted, answer.admitted), self.done

    async def remove(self, controller: Controller) -> None:
        """Remove a pod, whose processes may live on: what is left is an orphan."""
        if uid := self.any_of(list(controller.state.ledger.allocations)):
            await controller.remove(uid)

    async def bind(self, controller: Controller) -> None:
        """Bind a container to some cgroup: the right one, a wrong one or another's."""
        uid = self.any_of(list(controller.state.ledger.allocations))
        cgroup = self.any_of([*self.elsewhere * 2, *self.inside()])
        if not uid or not cgroup:
            return
        container = self.random.choice(controller.state.ledger.allocations[uid].containers).name
        try:
            await controller.bind(uid, container, BindRequest(cgroup=f"/{cgroup}"))
            self.forgotten.discard(cgroup)
        except BindingError as error:
            self.done.append(str(error))

    async def unbind(self, controller: Controller) -> None:
        bound = sorted((each.pod_uid, each.container) for each in controller.state.durable.bindings)
        some = [(uid, name) for uid, name in bound if uid in controller.state.ledger.allocations]
        if some and self.random.random() < 0.9:
            await controller.unbind(*self.random.choice(some))
        elif uid := self.any_of(list(controller.state.ledger.allocations)):
            container = self.random.choice(controller.state.ledger.allocations[uid].containers).name
            if (uid, container) not in bound:
                with pytest.raises(BindingNotFoundError):
                    await controller.unbind(uid, container)

    async def reconcile(self, controller: Controller) -> None:
        await controller.reconcile()

    async def start(self, controller: Controller) -> None:
        """Start a container of a pod, under a name that identifies it or under none."""
        uid = self.any_of(list(controller.state.ledger.allocations))
        if not uid:
            return
        allocation = controller.state.ledger.allocations[uid]
        number = self.site.processes
        name = self.random.choice((f"x{number}-{self.random.choice(allocation.containers).name}",
                                   f"cri-containerd-{number:x}.scope"))  # fmt: skip
        self.site.start(self.site.home(allocation), name)

    async def start_elsewhere(self, controller: Controller) -> None:
        """Start a process outside of all pods, where one ended or in a new cgroup."""
        del controller
        empty = [path for path in self.elsewhere if self.is_empty(path)]
        if (path := self.any_of(empty)) and self.random.random() < 0.6:
            self.site.processes += 1
            self.site.kernel.spawn(path, self.site.processes)
        else:
            self.elsewhere.append(self.site.start_elsewhere(f"service{self.site.processes}"))

    async def end(self, controller: Controller) -> None:
        del controller
        if path := self.any_of([*self.elsewhere, *self.inside()]):
            self.site.end(path)

    async def meddle(self, controller: Controller) -> None:
        """Write into a cgroup of a pod; the agent repairs it at once."""
        paths = [p for p in self.inside() if self.site.kernel.read_many(p, ("cpuset.cpus",))[0]]
        if path := self.any_of(paths):
            self.site.kernel.write(path, "cpuset.cpus", self.random.choice(WRITTEN))
        await controller.reconcile(insist=True)

    def between(self) -> None:
        change = self.random.choice((self.restart, self.restart, self.roll_back, self.lose,
                                     self.import_state))  # fmt: skip
        change()
        self.done.append(change.__name__)

    def restart(self) -> None:
        """Change nothing."""

    def roll_back(self) -> None:
        if not self.backups:
            return
        disk: MemoryDisk = pickle.loads(self.random.choice(self.backups))  # noqa: S301  # our own
        self.site.disk = disk

    def lose(self) -> None:
        path = self.site.config.agent.state_directory / CHECKPOINT_NAME
        if path.name in self.site.disk.names(path.parent):
            self.site.disk.remove(path)

    def import_state(self) -> None:
        """Begin again with what the kubelet's files would say of the pods."""
        saved = self.site.saved()
        if saved is None or self.rules is None:
            return
        try:
            ledger = take_over(
                self.rules, kubelet_state(self.rules, saved.ledger), self.specs
            ).ledger
        except KubeletStateError:
            return
        with Store(self.site.config.agent.state_directory, self.site.disk) as store:
            store.save(Checkpoint(ledger=ledger, boot_id=saved.boot_id, host=saved.host))

    def running_alone(self, controller: Controller) -> Iterator[tuple[str, Mask]]:
        """Yield the pods in whose cgroups containers run on CPUs that no other pod's show."""
        shown: dict[str, Mask] = {}
        for path in self.inside():
            text = self.site.kernel.read_many(path, ("cpuset.cpus",))[0] or ""
            if self.site.kernel.procs(path) and text.strip():
                pod = path.rpartition("/")[0]
                shown[pod] = shown.get(pod, EMPTY) | Mask.parse(text.strip())
        for uid, allocation in controller.state.ledger.allocations.items():
            home = self.site.home(allocation)
            own = shown.get(home, EMPTY)
            others = [cpus for pod, cpus in shown.items() if pod != home]
            if own and own <= allocation.exclusive_cpus and not any(own & each for each in others):
                yield uid, own

    def lost(self, controller: Controller) -> Iterator[str]:
        """Yield what ran on CPUs of its own and does not hold them after a start.

        A pod that the checkpoint knows has what that says, unless another one runs there; one that
        it knows to be removed has nothing.
        """
        saved, durable = self.site.saved(), controller.state.durable
        known = () if saved is None else saved.ledger.allocations
        for uid, cpus in self.alone.items():
            others = (
                allocation
                for other, allocation in durable.ledger.allocations.items()
                if other != uid
            )
            if uid not in known and uid not in durable.orphaned:
                allocation = durable.ledger.allocations.get(uid)
                if allocation is None or not cpus <= allocation.exclusive_cpus:
                    yield f"{uid} ran on {cpus} and holds them no longer"
                elif any(other.exclusive_cpus & cpus for other in others):
                    yield f"{uid} runs on {cpus}, which another pod holds"

    def next_pod(self, kind: tuple[str, str] | None = None, name: str = "") -> Pod:
        self.pods += 1
        containers, budget = kind or self.random.choice(KINDS)
        uid = f"{self.pods:08d}-2222-3333-4444-555555555555"
        self.specs[uid] = pod_of(name or f"p{self.pods}", uid, containers, budget)
        return self.specs[uid]

    def any_of(self, choices: list[str]) -> str:
        return self.random.choice(choices) if choices else ""

    def inside(self) -> list[str]:
        pods = (path for path in self.site.cgroups() if self.site.layout.parse_pod(path))
        return [f"{pod}/{name}" for pod in pods for name in self.site.kernel.children(pod)]

    def is_empty(self, path: str) -> bool:
        return self.site.kernel.exists(path) and not self.site.kernel.procs(path)


def intruders(site: Site, controller: Controller, unknown: Container[str]) -> Iterator[str]:
    """Yield who may run on CPUs that the ledger gives exclusively to another pod.

    A process that is in no pod, and in no cgroup whose set was written, is not the agent's; nor is
    one in an `unknown` cgroup. Where pods have all CPUs that are online, those on which others run
    as well are a violation that is reported.
    """
    state = controller.state
    allocations = state.ledger.allocations
    exposed = state.shared_cpus & exclusive_cpus(state.ledger)
    assert bool(exposed) == any(each.rule is Rule.SHARED_POOL for each in state.invalid)
    usable = state.configured.host.usable
    assert not exposed or usable <= exclusive_cpus(state.ledger)
    # What starts where a pod that is gone was bound is of no pod.
    bound = {
        each.cgroup: (each.pod_uid, each.container)
        for each in state.durable.bindings
        if each.pod_uid in allocations
    }
    for path in site.cgroups():
        named = site.layout.parse_pod(path.rpartition("/")[0])
        own = (named.uid, path.rpartition("-")[2].removesuffix(".scope")) if named else ("", "")
        uid, name = bound.get(path, own)
        written = bool((site.kernel.read_many(path, ("cpuset.cpus",))[0] or "").strip())
        if not uid and not written:
            continue
        for pid in () if path in unknown else site.kernel.procs(path):
            allowed = site.kernel.allowed(pid)[0]
            for other, allocation in allocations.items():
                # What has just been started follows its pod's cgroup until it is found.
                inside = _of_others(allocation, name, usable, exposed) if written else EMPTY
                theirs = inside if other == uid else allocation.exclusive_cpus - exposed
                if allowed & theirs:
                    yield f"/{path} ({uid or 'no pod'}) is on {allowed & theirs} of {other}"


def _of_others(allocation: PodAllocation, name: str, usable: Mask, exposed: Mask) -> Mask:
    """Return the CPUs of the containers of a pod that none but they may run on.

    Exclusive CPUs that are `exposed` are in the node's pool, where containers without CPUs run.
    """
    cpus = EMPTY
    one = allocation.container(name)
    # An init container's CPUs are those of the containers after it.
    if one is None or one.kind is not ContainerKind.APP:
        return cpus
    if one.cpus is not None and one.cpus.isdisjoint(usable):
        return cpus  # it has lost its own, and runs on what is left of its pod's
    for container in allocation.containers:
        own = container.isolation is Isolation.CONTAINER and container.kind is ContainerKind.APP
        if own and container.name != name and container.cpus is not None:
            cpus |= container.cpus
    return cpus - exposed if one.cpus is None else cpus


@dataclass
class Upheaval(Story):
    """A story in which the host and the configuration change as well, and agents are killed."""

    #: The configuration of the first agent.
    first: Config = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.site.config

    def run(self) -> None:
        for life in range(LIVES):
            if life:
                self.between()
            if self.random.random() < DYING:
                way = self.random.choice((die_before, die_after, die_amid))
                effects = Effects(way(self.random.randint(1, 120)), looks=False)
            else:
                effects = None
            try:
                with_agent(self.site, self.live, effects)
            except Died as step:
                self.done.append(f"died: {step}")
            except ConfigError as error:
                # Such as reserved CPUs that are all offline; no agent starts.
                self.done.append(f"did not start: {error}")
                self.site.kernel.set_online(HOST.online)
                if self.site.kernel.exists(APART):
                    self.site.kernel.write(APART, "cpuset.cpus.partition", "member")
                self.site.config = self.first

    async def live(self, controller: Controller) -> None:
        self.rules = controller.state.configured.rules
        self.noted(controller)
        await self.compare(controller)
        self.settled(controller, "start")
        for _ in range(2 * STEPS):
            step = self.random.choice(self.steps())
            self.done.append(step.__name__)
            await step(controller)
            self.noted(controller)
            if self.random.random() < COMPARED:
                await self.compare(controller)
                self.settled(controller, "reconcile")
        self.backups.append(pickle.dumps(self.site.disk))

    def noted(self, controller: Controller) -> None:
        """Note which cgroups outside of all pods the checkpoint does not know."""
        known = controller.state.durable.bindings
        self.forgotten = {*self.elsewhere} - {*known.released, *(each.cgroup for each in known)}

    async def compare(self, controller: Controller) -> None:
        """Compare as often as a period does: what is withheld by then is read first."""
        for _ in range(3):
            await controller.reconcile(insist=True)
            host, kernel = controller.state.configured.host, self.site.kernel
            if read_withheld(kernel, self.site.layout.pods(), host.online) == host.withheld:
                return
            await hotplug(self.site, controller, str(kernel.root.cpus))
        raise AssertionError(f"what is withheld does not come to rest: {self.done}")

    def settled(self, controller: Controller, step: str) -> None:
        """Look at what may run where and what is saved, after a comparison."""
        self.done.append(step)
        found = list(intruders(self.site, controller, self.forgotten))
        assert found == [], (found, self.done)
        state, saved = controller.state, self.site.saved()
        assert saved is None or allocated(saved) == allocated(state.durable), self.done

    def steps(self) -> list[Callable[[Controller], Awaitable[None]]]:
        more = [self.cordon, self.uncordon, self.plug, self.plug, self.scribble, self.scribble]
        more += [self.part, self.part]
        if self.site.systemd is not None:
            more += [self.start_unit, self.restart_unit, self.restart_unit]
        return [*super().steps(), *more, self.admit_file]

    async def admit_file(self, controller: Controller) -> None:
        pod = self.next_pod()
        await controller.admit(pod, Source("manifests", f"/manifests/{pod.name}.yaml"))

    async def cordon(self, controller: Controller) -> None:
        with suppress(RequestError):
            await controller.cordon(CordonRequest(target=self.random.choice(TARGETS)))

    async def uncordon(self, controller: Controller) -> None:
        with suppress(RequestError):
            await controller.uncordon(CordonRequest(target=self.random.choice(TARGETS)))

    async def plug(self, controller: Controller) -> None:
        """Have CPUs go offline or come online; the agent reads the host again and compares."""
        self.turn()
        await hotplug(self.site, controller, str(self.site.kernel.root.cpus))
        await self.compare(controller)
        self.settled(controller, f"online {self.site.kernel.root.cpus}")

    async def part(self, controller: Controller) -> None:
        """Have another program make a partition, or end the one that it has."""
        del controller
        kernel = self.site.kernel
        if not kernel.exists(APART):
            kernel.mkdir(APART)
        word = self.random.choice(("root", "isolated", "member"))
        if word != "member":
            kernel.write(APART, "cpuset.cpus", str(self.any_mask()))
        kernel.write(APART, "cpuset.cpus.partition", word)
        shown = kernel.read(APART, "cpuset.cpus.partition").strip()
        self.done.append(f"{kernel.read(APART, 'cpuset.cpus').strip()}: {shown}")

    async def scribble(self, controller: Controller) -> None:
        """Write a set into any cgroup at or below that of all pods."""
        del controller
        path = self.random.choice([*self.site.cgroups(self.site.layout.pods()), ""])
        file = self.random.choice(("cpuset.cpus", "cpuset.cpus", "cpuset.cpus", "cpuset.mems"))
        text = str(self.any_mask()) if file == "cpuset.cpus" else self.random.choice("01")
        if path and self.site.kernel.exists(path):
            with suppress(OSError):
                self.site.kernel.write(path, file, self.random.choice((text, text, text, "\n")))
            self.done.append(f"/{path} {file} {text}")

    async def start_unit(self, controller: Controller) -> None:
        """Start a service that has a pod; the agent binds the pod to the service's cgroup."""
        systemd, pod = self.site.systemd, self.next_pod(("a=2", ""))
        assert systemd is not None
        self.site.processes += 1
        name = f"{pod.name}.service"
        self.units.append(name)
        self.elsewhere.append(systemd.start_service(name, self.site.processes))
        pod = replace(pod, annotations=MappingProxyType({UNIT: name}))
        self.specs[pod.uid] = pod
        await controller.admit(pod)
        await controller.end_pods()

    async def restart_unit(self, controller: Controller) -> None:
        """Stop a service and start it again: the agent notices, and its new process is confined."""
        systemd, name = self.site.systemd, self.any_of(self.units)
        assert systemd is not None
        if not name:
            return
        await self.compare(controller)
        if name in systemd.units:
            systemd.stop_service(name)
        if self.random.random() < 0.3:
            systemd.stopped.pop(name, None)  # what is on record of it is lost
        self.site.processes += 1
        cgroup = systemd.start_service(name, self.site.processes)
        await controller.end_pods()
        self.noted(controller)
        state = controller.state
        bound = [each.pod_uid for each in state.durable.bindings if each.cgroup == cgroup]
        pods = [pod for uid in bound if (pod := state.ledger.allocations.get(uid)) is not None]
        if any(pod.lifetime.unit != name for pod in pods):
            await self.compare(controller)  # the agent follows units of pods alone
        self.settled(controller, f"{name} restarted")

    def between(self) -> None:
        for change in (self.turn, self.reconfigure):
            if self.random.random() < 0.4:
                change()
                self.done.append(change.__name__)
        super().between()

    def turn(self) -> None:
        """Have other CPUs online: all of them, all but a few, one node, or a few."""
        some = self.any_mask()
        node = self.random.choice(HOST.nodes).cpus
        online = self.random.choice((HOST.online, HOST.online, HOST.online - some, node, some))
        self.site.kernel.set_online(online or HOST.online)

    def reconfigure(self) -> None:
        options = self.random.choice(
            ({}, {"strict-cpu-reservation": "true"}, {"full-pcpus-only": "true"})
        )
        classes = frozenset(self.random.sample(list(QosClass), self.random.randint(0, 3)))
        pool = PoolConfig("some", self.any_mask(), qos_classes=classes)
        self.site.config = replace(
            self.first,
            agent=replace(self.first.agent, pools=(pool,)),
            cpu_manager_policy=self.random.choice(
                (CpuManagerPolicy.STATIC, CpuManagerPolicy.STATIC, CpuManagerPolicy.NONE)
            ),
            cpu_manager_policy_options=MappingProxyType(options),
            reserved_system_cpus=Mask.parse(self.random.choice(("0", "0,8", "7", "3-4", "1,9,15"))),
            topology_manager_scope=self.random.choice(list(TopologyManagerScope)),
            topology_manager_policy=self.random.choice(list(TopologyManagerPolicy)),
        )

    def any_mask(self) -> Mask:
        count = self.random.randint(1, self.random.choice((2, 8, 16)))
        return Mask.from_ids(self.random.sample(list(HOST.online), count))


def found_host(site: Site) -> Host:
    """Return what an agent finds of the host at its start."""
    return with_offline(HOST, HOST.online - site.kernel.root.cpus)


@pytest.mark.parametrize("driver", CgroupDriver)
@pytest.mark.timeout(max(300, STORIES))
def test_no_process_runs_on_a_cpu_of_another_pod_whatever_becomes_of_the_host(
    tmp_path: Path, host_root: Path, monkeypatch: pytest.MonkeyPatch, driver: CgroupDriver
) -> None:
    config = site_config(make_world(tmp_path, host_root).config, driver)
    for seed in range(FIRST, FIRST + STORIES // 2):
        story = Upheaval(make_site(config), Random(f"upheaval {driver} {seed}"))  # noqa: S311  # no secret
        found = partial(found_host, story.site)
        monkeypatch.setattr("agent.server.host_reader.discover", lambda *_, **__: found())  # noqa: B023  # called at once
        story.run()


@pytest.mark.parametrize("driver", CgroupDriver)
@pytest.mark.timeout(max(300, STORIES))
def test_no_process_ever_runs_on_a_cpu_of_another_pod(
    tmp_path: Path, host_root: Path, monkeypatch: pytest.MonkeyPatch, driver: CgroupDriver
) -> None:
    # The host stays the same; reading it again would take most of the time.
    monkeypatch.setattr("agent.server.host_reader.discover", functools.cache(discover))
    config = site_config(make_world(tmp_path, host_root).config, driver)
    for seed in range(STORIES // 2):
        Story(make_site(config), Random(f"{driver} {seed}")).run()  # noqa: S311  # no secret

"""A host that outlives its agent: what each agent finds, does and leaves there is the same host.

The agent is the real one, put together as for a host; its kernel is emulated, systemd and the disk
are fakes. All of it can be copied, so that one host can be played again and again.
"""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from agent.cluster.plugs import PLUGS
from agent.config.agent import HistoryConfig
from agent.config.model import CgroupDriver, Config
from agent.managers.memory.state import memory_charge
from agent.managers.policy import MemoryManagerPolicy, PluginDevice, TopologyManagerScope
from agent.pods.manifest import load_pod
from agent.pods.model import EXCLUSIVE
from agent.pods.quantity import Quantity
from agent.reconcile.placement import pod_cgroup
from agent.reconcile.withheld import read_withheld
from agent.server.configured import situate
from agent.server.plugs import Fakes
from agent.server.wiring import Wiring
from agent.state.checkpoint import decode
from agent.state.store import CHECKPOINT_NAME
from cgroupfs.apply import ENABLED
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Driver, Layout, Tier
from cgroupfs.tree import join
from sysfs.described import with_offline
from sysfs.mask import Mask
from tests.agent.server.support import PATIENCE, FakeClock, RecordingManager, two_packages
from tests.agent.state.disks import MemoryDisk
from tests.conformance.invariants import broken_invariants
from tests.fakes.devices import FakeProvider
from tests.fakes.effects import CountedFiles, CountedSystemd, CountedTree, Effects
from tests.fakes.kernel import effective_cpus
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.policy import Cordon
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.server.plugs import SourceFactory
    from agent.state.checkpoint import Checkpoint

_Result = TypeVar("_Result")
_FILES: Final = (
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.mems",
    "cpuset.mems.effective",
    "cpu.max",
    "cpu.weight",
    "memory.max",
    "hugetlb.2MB.max",
    ENABLED,
)
#: The resource of the one device that agents offer.
DEVICE: Final = "example.com/device"
OFFERED: Final = {DEVICE: (PluginDevice("a", Mask.of(0)),)}
#: What a cgroup or a unit shows, by its name.
Shown = dict[str, object]


@dataclass
class Site:
    """The host: its kernel, systemd where that makes the cgroups, and its disk."""

    config: Config
    kernel: EmulatedKernel
    systemd: FakeSystemd | None
    disk: MemoryDisk
    processes: int = 100
    #: The devices that its agents offer.
    devices: Mapping[str, tuple[PluginDevice, ...]] = field(default_factory=lambda: OFFERED)

    @property
    def layout(self) -> Layout:
        agent = self.config.agent
        shares = agent.shared_cgroup and not agent.kubelet.enabled
        return Layout(Driver(str(self.config.cgroup_driver)), shares=shares)

    def copy(self) -> Site:
        """Return a host of its own that looks just the same."""
        parts = pickle.dumps((self.kernel, self.systemd, self.disk))
        kernel, systemd, disk = pickle.loads(parts)  # noqa: S301  # our own bytes
        return Site(self.config, kernel, systemd, disk, self.processes, self.devices)

    def rebooted(self, disk: MemoryDisk) -> Site:
        """Return the host after a power failure that left `disk`: no cgroup, no process."""
        return make_site(self.config, disk)

    def cgroup(self, uid: str, tier: Tier = Tier.GUARANTEED) -> str:
        return self.layout.pod(uid, tier)

    def home(self, allocation: PodAllocation) -> str:
        """Return the cgroup of a pod, wherever it was placed."""
        return pod_cgroup(self.kernel, self.layout, allocation)

    def start(self, pod: str, name: str) -> str:
        """Start a process of a pod in a cgroup called `name`, as a container runtime does."""
        self.processes += 1
        if self.systemd is not None:
            unit = f"{name.removesuffix('.scope')}.scope"
            above = pod.rpartition("/")[2]
            return self.systemd.start_scope(unit, above, self.processes)
        path = join(pod, name)
        self.kernel.mkdir(path)
        self.kernel.spawn(path, self.processes)
        return path

    def start_elsewhere(self, name: str) -> str:
        """Start a process that is in no pod's cgroup, in a cgroup that has sets."""
        self.processes += 1
        if self.systemd is not None:
            return self.systemd.start_scope(f"{name}.scope", "system.slice", self.processes)
        if not self.kernel.exists("system"):
            self.kernel.mkdir("system")
            for path in ("", "system"):
                self.kernel.write(path, "cgroup.subtree_control", "+cpuset +cpu")
        self.kernel.mkdir(f"system/{name}")
        self.kernel.spawn(f"system/{name}", self.processes)
        return f"system/{name}"

    def container(self, pod: str, name: str) -> str:
        """Return the cgroup that `start` made, `""` without one."""
        stem = name.removesuffix(".scope")
        paths = (f"{pod}/{name}", f"{pod}/{stem}.scope")
        return next((path for path in paths if self.kernel.exists(path)), "")

    def cpus_of(self, path: str) -> Mask:
        """Return where the only process of a cgroup may run."""
        (pid,) = self.kernel.procs(path)
        return self.kernel.allowed(pid)[0]

    def end(self, path: str) -> None:
        """End the processes of a cgroup."""
        for pid in self.kernel.procs(path):
            self.kernel.exit(pid)

    def saved(self) -> Checkpoint | None:
        """Return what the disk holds now."""
        path = self.config.agent.state_directory / CHECKPOINT_NAME
        names = self.disk.names(path.parent)
        return decode(self.disk.read(path), path) if CHECKPOINT_NAME in names else None

    def shown(self) -> Shown:
        """Return all that the kernel and systemd show, to be compared with another moment."""
        shown: Shown = {}
        for path in self.cgroups():
            texts = dict(zip(_FILES, self.kernel.read_many(path, _FILES), strict=True))
            if not self.kernel.children(path):
                # systemd takes controllers back when it next looks, now or later.
                texts.pop(ENABLED)
            shown[f"/{path}"] = (*texts.values(), self.kernel.procs(path))
        for unit in () if self.systemd is None else self.systemd.units.values():
            shown[unit.name] = (unit.path, dict(unit.properties))
        return shown

    def cgroups(self, above: str = "") -> Iterator[str]:
        yield above
        for name in self.kernel.children(above):
            yield from self.cgroups(join(above, name))


def make_site(config: Config, disk: MemoryDisk | None = None) -> Site:
    """Return a host on which nothing was ever started."""
    kernel = EmulatedKernel(Mask.parse("0-15"), Mask.of(0, 1))
    systemd = FakeSystemd(kernel) if config.cgroup_driver is CgroupDriver.SYSTEMD else None
    return Site(config, kernel, systemd, disk or MemoryDisk())


def site_config(config: Config, driver: CgroupDriver) -> Config:
    """Return a configuration in which every manager has something to do."""
    return replace(
        config,
        cgroup_driver=driver,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        topology_manager_scope=TopologyManagerScope.POD,
        system_reserved=MappingProxyType({"memory": Quantity.of_bytes(1 << 30)}),
        # Its thread writes at any time; only the steps of a change are counted.
        agent=replace(config.agent, history=HistoryConfig(max_bytes=0)),
    )


def with_agent(
    site: Site,
    action: Callable[[Controller], Awaitable[_Result]],
    effects: Effects | None = None,
    *,
    from_start: bool = False,
    sources: Iterable[SourceFactory] = PLUGS.sources,
) -> _Result:
    """Start an agent on a host, do something with it, and throw it away.

    The steps of the start are counted, and may fail, only with `from_start`. `sources` makes its
    sources of pods beside the API.
    """
    counted = effects or Effects()
    fault, counted.fault = counted.fault, counted.fault if from_start else None
    tree = CountedTree(site.kernel, counted)
    systemd = None if site.systemd is None else CountedSystemd(site.systemd, counted)
    files = CountedFiles(site.disk, counted)
    fakes = Fakes(tree=tree, systemd=systemd, live=False, files=files)
    devices = FakeProvider(devices=dict(site.devices), preparing=False)
    plugs = replace(PLUGS, sources=tuple(sources), providers=(lambda _inputs: devices,))
    assembly = Wiring(site.config, RecordingManager(), FakeClock(), plugs, fakes)

    async def live() -> _Result:
        controller = assembly.controller
        serving = asyncio.create_task(controller.queue.serve())
        try:
            async with asyncio.timeout(PATIENCE):
                return await action(controller)
        finally:
            controller.queue.stop()
            await serving
            controller.worker.close()

    with assembly:
        if not from_start:
            counted.log.clear()
            counted.fault = fault
        return asyncio.run(live())


def alive(test: Callable[[Controller, Site], Awaitable[None]]) -> Callable[[Site], None]:
    """Run a test of an agent on the host of its fixture."""

    def run(site: Site) -> None:
        with_agent(site, lambda controller: test(controller, site))

    return run


async def hotplug(site: Site, controller: Controller, online: str) -> None:
    """Have CPUs go offline and come online, and the agent read the host again."""
    site.kernel.set_online(Mask.parse(online))
    before, cordons = controller.state.configured, controller.state.durable.cordons
    host = with_offline(two_packages(), two_packages().online - Mask.parse(online))
    host = replace(host, withheld=read_withheld(site.kernel, site.layout.pods(), host.online))
    await controller.take_over(lambda: situate(site.config, host, before, cordon=cordons.total))


@dataclass(frozen=True, slots=True)
class Allocated:
    """What a ledger and the cordons say, without how they came about."""

    allocations: Mapping[str, PodAllocation]
    bindings: tuple[object, ...]
    memory: Mapping[int, object]
    cordon: Cordon


def allocated(state: Checkpoint) -> Allocated:
    """Return what is allocated in a checkpoint or in an agent's memory."""
    ledger = state.ledger
    return Allocated(
        dict(ledger.allocations),
        tuple(state.bindings),
        dict(memory_charge(ledger)),
        state.cordons.total,
    )


def wrongs(site: Site, controller: Controller) -> list[str]:
    """Return what is wrong on a host that should be settled; empty when all is well.

    Found independently of the agent's own verification.
    """
    state = controller.state
    wrong = [*broken_invariants(state.configured.rules, state.ledger), *state.condition_lines()]
    saved = site.saved()
    if saved is not None and allocated(saved) != allocated(state.durable):
        wrong.append("memory and checkpoint differ")
    if (names := site.disk.names(site.config.agent.state_directory)) != [CHECKPOINT_NAME]:
        wrong.append(f"the state directory holds {names}")
    known: set[str] = set()
    for allocation in state.ledger.allocations.values():
        pod = site.home(allocation)
        known.add(pod)
        wrong.extend(_pod_wrongs(site, allocation, pod, state.shared_cpus_of(allocation)))
    for path in site.cgroups():
        pods = site.layout.parse_pod(path) is not None
        if pods and path not in known and "populated 0" in site.kernel.read(path, "cgroup.events"):
            wrong.append(f"/{path} is of no pod")
    return wrong


def _pod_wrongs(site: Site, allocation: PodAllocation, pod: str, shared: Mask) -> Iterator[str]:
    if not site.kernel.exists(pod):
        yield f"/{pod} is missing"
        return
    for container in allocation.containers:
        path = site.container(pod, container.name)
        if not path:
            continue
        cpus = str(shared if container.cpus is None else container.cpus)
        found = [(text or "").strip() for text in site.kernel.read_many(path, _FILES[:4])]
        mems = [str(container.mems)] * 2 if container.mems else found[2:]
        if container.cpus is None and found[0] in ("", str(site.kernel.root.exclusive)):
            # It inherits: its set is unset, or all CPUs where another process had written one.
            found[:2] = [cpus, effective_cpus(site.kernel, path)]
        if found != [cpus, cpus, *mems]:
            yield f"/{path} shows {found}, not CPUs {cpus}, memory {mems}"


def allocated_twice(site: Site, allocations: Mapping[str, PodAllocation]) -> list[str]:
    """Return whose processes may run on CPUs that are exclusively another pod's, who runs there.

    A pod that grows does not run on its new CPUs before they were taken from others.
    """
    running = [
        (uid, path, site.kernel.allowed(pid)[0])
        for path in site.cgroups()
        for pid in site.kernel.procs(path)
        for uid in [_pod_of(site, path)]
    ]
    owners: dict[str, Mask] = {
        uid: allocation.exclusive_cpus for uid, allocation in allocations.items()
    }
    used = {
        owner: own & Mask.union(cpus for uid, _, cpus in running if uid == owner)
        for owner, own in owners.items()
    }
    return [
        f"{path} may use {cpus & own}, which are {owner}'s"
        for uid, path, cpus in running
        for owner, own in used.items()
        if owner != uid and cpus & own
    ]


def _pod_of(site: Site, path: str) -> str:
    while path:
        named = site.layout.parse_pod(path)
        if named is not None:
            return named.uid
        path = path.rpartition("/")[0]
    return ""


def pod_of(name: str, uid: str, containers: str, budget: str = "", named: str = "") -> Pod:
    """Return a pod of containers `name=cpu` with 1Gi each; `name` alone asks for nothing.

    `name~cpu` asks for CPUs without a limit, `name=cpu+` for a `DEVICE` too, `!name=cpu` is an init
    container. `budget` is the pod's own cpu; `named` containers have exclusive CPUs in any class.
    """
    lines = ["apiVersion: v1", "kind: Pod", "metadata:"]
    lines += [f"  name: {name}", f"  uid: {uid}"]
    lines += [f"  annotations: {{{EXCLUSIVE}: '{named}'}}"] if named else []
    lines.append("spec:")
    if budget:
        total = f"{{cpu: '{budget}', memory: 2Gi}}"
        lines.append(f"  resources: {{requests: {total}, limits: {total}}}")
    texts = containers.split()
    for key, desired in (("initContainers", True), ("containers", False)):
        members = [text.removeprefix("!") for text in texts if text.startswith("!") is desired]
        lines += [f"  {key}:"] if members else []
        for text in members:
            lines += _container(text)
    return load_pod("\n".join((*lines, "")).encode(), name)


def _container(text: str) -> list[str]:
    name, _, exact = text.partition("=")
    name, _, least = name.partition("~")
    lines = [f"  - name: {name}", "    image: example.org/app"]
    if exact:
        device = f", {DEVICE}: 1" if exact.endswith("+") else ""
        amounts = f"{{cpu: '{exact.removesuffix('+')}', memory: 1Gi{device}}}"
        lines.append(f"    resources: {{requests: {amounts}, limits: {amounts}}}")
    elif least:
        lines.append(f"    resources: {{requests: {{cpu: '{least}'}}}}")
    return lines

"""The stage of a world: its host, the pods that are asked for, and what stands around an agent."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.devices.provider import DeviceError
from agent.managers.machine import Machine
from agent.managers.policy import CpuPolicy, PluginDevice
from agent.pods.manifest import load_pod
from agent.pods.model import EXCLUSIVE, MOVE, Movable
from agent.reconcile.start_checks import make_layout
from agent.server.configured import ConfiguredHost
from agent.sources.source import SourceEntry, SourceReading
from agent.state.checkpoint import Checkpoint
from agent.state.store import Store
from sysfs.described import with_offline
from sysfs.mask import Mask
from tests.agent.server.support import manifest, two_packages
from tests.agent.server.test_controller import disk_full, rules
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from agent.managers.delivery import Delivery
    from agent.pods.model import Pod

#: What may be asked for. A pod that is small, and Burstable with CPUs of its own; that takes half
#: of a node, or fits nowhere; that replaces an admitted one; whose device comes, fails, or never
#: comes; whose client leaves; that is asked for over a source of pods; the first pod once more, or
#: another one of its name.
KINDS: Final = (
    "small", "fits", "none", "replaces", "comes", "fails", "hangs", "left", "listed", "again",
    "namesake",
)  # fmt: skip
#: What may happen once, at any time: nothing, a cordon of a node, CPUs that go offline, a plugin
#: that goes with its devices, another configuration, a stop, the end of the agent and its next
#: start, a disk that is full, cgroups that cannot be written, the removal of the first pod, another
#: size of it, other CPUs for it, and a pod for which a container waits.
DISTURBANCES: Final = (
    "", "cordon", "offline", "gone", "reload", "stop", "kill", "disk", "write", "remove", "resize",
    "move", "urgent",
)  # fmt: skip
HOST: Final = two_packages()
#: CPUs of both nodes, the first that are given.
OFF: Final = Mask.parse("1,9,4,12")
NODE: Final = Mask.parse("0-3,8-11")
_DEVICES: Final = MappingProxyType(
    {
        f"example.com/{kind}": (PluginDevice(f"{kind[0]}0", Mask.of(1)),)
        for kind in ("comes", "fails", "hangs")
    }
)
_RULES: Final = replace(rules(), policy=replace(rules().policy, devices=_DEVICES))
BEFORE: Final = ConfiguredHost(HOST, _RULES)
_RESERVED: Final = CpuPolicy(_RULES.policy.cpu.policy, reserved=Mask.of(0, 8))
#: The configuration after a disturbance.
AFTER: Final = {
    "offline": ConfiguredHost(
        with_offline(HOST, OFF), replace(_RULES, machine=Machine.of(with_offline(HOST, OFF)))
    ),
    "gone": ConfiguredHost(
        HOST, replace(_RULES, policy=replace(_RULES.policy, devices=MappingProxyType({})))
    ),
    "reload": ConfiguredHost(HOST, replace(_RULES, policy=replace(_RULES.policy, cpu=_RESERVED))),
}
#: The CPUs that are given to no pod after a disturbance.
LOST: Final = {"cordon": NODE, "offline": OFF, "reload": Mask.of(8)}
LAYOUT: Final = make_layout("cgroupfs")
#: What members of the socket group ask for; the rest is asked for by root or a source.
MEMBERS: Final = {"fits", "left"}
_CPU: Final = {"small": "2", "fits": "8", "none": "64", "left": "2", "listed": "2"}
#: The pods that are there before: one on shared CPUs, with a process, and one to be replaced.
SHARED: Final = 8
PROCESS: Final = 100
OLD: Final = 9
#: The pods of disturbances, and of the end.
URGENT: Final = 7
_LAST: Final = 6


def uid_of(number: int) -> str:
    """Return the uid of a request's pod."""
    return f"{number:08}-2222-3333-4444-555555555555"


def pod_of(number: int, kind: str) -> Pod:
    """Return the pod of a request; `again` is the first one's, whose kind is to be given."""
    name = {"replaces": "old", "namesake": "pod0"}.get(kind, f"pod{number}")
    text = manifest(name, uid_of(number), cpu=_CPU.get(kind, "6"))
    if f"example.com/{kind}" in _DEVICES:
        text = text.replace(b"memory: 1Gi", f"memory: 1Gi, example.com/{kind}: 1".encode())
    if kind == "small":
        own = f"  annotations: {{{EXCLUSIVE}: c0}}\nspec:".encode()
        text = text.replace(b", memory: 1Gi", b"").replace(b"spec:", own)
    pod = load_pod(text, "test")
    moves = {MOVE: Movable.CPUS} if not number else {}
    return replace(pod, annotations=MappingProxyType({**pod.annotations, **moves}))


def _shared_pod() -> Pod:
    lines = (
        "apiVersion: v1",
        "kind: Pod",
        f"metadata: {{name: shared, namespace: shop, uid: {uid_of(SHARED)}}}",
        "spec: {containers: [{name: c0, image: app, resources: {requests: {cpu: 100m}}}]}",
    )
    return load_pod("\n".join(lines).encode(), "test")


PODS: Final = {
    (number, kind): pod_of(number, kind) for number in range(4) for kind in KINDS if kind != "again"
}
SHARED_POD: Final = _shared_pod()
OLD_POD: Final = pod_of(OLD, "replaces")
URGENT_POD: Final = pod_of(URGENT, "small")
LAST_POD: Final = pod_of(_LAST, "small")


class Disk(Store):
    """Keeps what was saved last, or is full."""

    def __init__(self) -> None:
        self.saved = Checkpoint(_RULES.empty_ledger())
        self.full = False

    def save(self, state: Checkpoint) -> int:
        if self.full:
            raise disk_full()
        self.saved = state
        return 1

    def check(self) -> None:
        pass

    def free(self) -> int:
        return 1 << 30


class Plugin(FakeProvider):
    """Delivers, and prepares, when a choice says so."""

    def __init__(self, devices: Mapping[str, tuple[PluginDevice, ...]], prepared: set[str]) -> None:
        super().__init__(devices=dict(devices))
        #: The resources whose device is prepared for the pod that it was allocated to last.
        self.prepared = prepared
        #: The calls that wait for their answer.
        self.asked: list[tuple[str, asyncio.Future[None]]] = []

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        await self._answer(resource)
        self.prepared.discard(resource)
        return await super().allocate(resource, ids)

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        await self._answer(resource)
        await super().start_container(resource, ids)
        self.prepared.add(resource)

    async def _answer(self, resource: str) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append((resource.rpartition("/")[2], answer))
        await answer

    @property
    def waiting(self) -> tuple[str, ...]:
        """The kinds whose answers are waited for."""
        return tuple(kind for kind, answer in self.asked if not answer.done())

    def answer(self, kind: str) -> None:
        """Answer the oldest call of a kind."""
        answer = next(each for of, each in self.asked if of == kind and not each.done())
        if kind == "fails":
            answer.set_exception(DeviceError("broken"))
        else:
            answer.set_result(None)


class Source:
    """A source that asks for what was put into it."""

    name = "listed"
    removal = "take it out"

    def __init__(self) -> None:
        self.entries: dict[str, SourceEntry] = {}

    def covers(self, key: str) -> bool:
        return bool(key)

    def resume(self, keys: Collection[str]) -> None:
        """Nothing: all entries are read each time."""

    def read(self) -> SourceReading:
        return SourceReading(tuple(self.entries.values()))

    async def changes(self) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield None

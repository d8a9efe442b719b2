"""Pods that opted in, from the kubelet's admission to the decision of a whole agent and back."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.cluster.kubelet.plugin_socket import PluginSocket, PluginSocketError
from agent.cluster.kubelet.source import KubeletPods
from agent.cluster.kubelet.tracked import MISSING_SECONDS
from agent.cluster.opt_in import OptInAdmissions
from agent.config.cluster import BesideKubeletConfig
from agent.managers.allocation import Source
from agent.managers.device.kubelet import given_devices
from agent.managers.policy import TopologyManagerPolicy
from agent.pods.model import GivenDevice
from agent.rpc.calls import CallError
from agent.server import metrics as names
from agent.server.errors import CheckpointFailedError
from sysfs.mask import Mask
from tests.agent.server.support import running, until
from tests.fakes.device_manager import FakeDeviceManager
from tests.fakes.kubelet.device_shares import write_device_checkpoint
from tests.fakes.pods_api import FakePodsApi, container, pod_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from agent.server.intake import PodIntake
    from tests.agent.server.support import Running, World

RESOURCE: Final = "numawarden.dev/exclusive"
NIC: Final = "example.com/nic"
#: More than the 14 CPUs that are free, on any node.
TOO_MANY: Final = "cpu=100 memory=1Gi numawarden.dev/exclusive=1"
ASKS: Final = "cpu=2 memory=1Gi numawarden.dev/exclusive=1"
#: More than half of the CPUs of a node.
HALF: Final = "cpu=6 memory=1Gi numawarden.dev/exclusive=1"
NO_PODS: Final[Mapping[str, bytes]] = MappingProxyType({})
UIDS: Final = tuple(f"{n:08}-2222-3333-4444-555555555555" for n in range(200))


class Node:
    """A kubelet with its Pods API and device manager, and the agent beside it."""

    def __init__(self, agent: Running, kubelet: FakePodsApi, manager: FakeDeviceManager) -> None:
        self.agent = agent
        self.kubelet = kubelet
        self.manager = manager
        self.slots = itertools.count()

    @property
    def source(self) -> KubeletPods:
        assert isinstance(self.intake.source, KubeletPods)
        return self.intake.source

    @property
    def intake(self) -> PodIntake:
        [intake] = self.agent.service._inputs.intakes
        return intake

    @property
    def admitted(self) -> set[str]:
        return set(self.agent.controller.state.ledger.allocations)

    async def admit(self, uid: str, *asked: str, init: Sequence[str] = ()) -> str | None:
        """Admit a pod as the kubelet does: list it, then allocate for each of its containers.

        Return why it is rejected, None for an admitted one. A rejected pod is listed until its
        status is written.
        """
        self.list(uid, *asked, init=init)
        for each in (*init, *asked):
            if RESOURCE in each and (words := await self.allocate()) is not None:
                return words
        return None

    def list(self, uid: str, *asked: str, init: Sequence[str] = (), phase: str = "Pending") -> None:
        self.kubelet.pods[uid] = pod_message(
            uid,
            f"web-{uid[:8]}",
            phase=phase,
            containers=tuple(container(f"c{n}", text) for n, text in enumerate(asked)),
            init=tuple(container(f"i{n}", text) for n, text in enumerate(init)),
            running=False,
        )

    async def allocate(self) -> str | None:
        """Allocate for one container; return the words of a rejection."""
        try:
            await self.manager.allocate(RESOURCE, f"slot-{next(self.slots)}")
        except CallError as error:
            return str(error).removeprefix("FAILED_PRECONDITION: ")
        return None

    async def undecided(self, uid: str, asked: str) -> str:
        """Admit a pod that passes without a decision; return why."""
        with capture_logs() as logs:
            assert await self.admit(uid, asked) is None
        [line] = [each for each in logs if each["event"] == "opt-in pod not decided"]
        why: str = line["why"]
        return why

    async def fill(self) -> None:
        """Admit two pods that leave no room for another half of a node."""
        for uid in UIDS[:2]:
            assert await self.admit(uid, HALF) is None

    def run(self, uid: str) -> None:
        self.agent.world.kernel.mkdir(f"kubepods/pod{uid}")

    async def free(self, uid: str) -> None:
        """Let time pass until the allocation of a pod is free."""
        while uid in self.admitted:
            await self.source.list_now(60.0)
            await self.intake.sync()
            self.agent.world.clock.advance(MISSING_SECONDS)


@pytest.fixture
def beside(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Configure an agent beside a kubelet, whose decisions are not late on a slow machine."""
    monkeypatch.setattr("agent.cluster.kubelet.exclusive_plugin.DECIDING_SECONDS", 60.0)
    world.kernel.mkdir("kubepods")
    (tmp_path / "kubelet").mkdir()
    kubelet = BesideKubeletConfig(enabled=True, directory=tmp_path / "kubelet", nri_socket=None)
    world.config = replace(
        world.config,
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        agent=replace(world.config.agent, kubelet=kubelet),
    )
    return world


@asynccontextmanager
async def node(world: World, pods: Mapping[str, bytes] = NO_PODS) -> AsyncIterator[Node]:
    """Run a kubelet with some pods and the agent, and register the plugin."""
    directory = world.config.agent.kubelet.directory
    kubelet, manager = FakePodsApi(directory), FakeDeviceManager(directory / "device-plugins")
    kubelet.pods.update(pods)
    await kubelet.start()
    await manager.start()
    async with running(world) as agent:
        made = Node(agent, kubelet, manager)
        await manager.until_listed(RESOURCE)
        await until(lambda: bool(made.source._in_use))
        try:
            yield made
        finally:
            await manager.stop()
            await kubelet.stop()


async def test_what_keeps_the_kubelet_from_asking_is_a_condition(beside: World) -> None:
    plugins = beside.config.agent.kubelet.directory / "device-plugins"
    async with node(beside) as kubelet:
        state, before = kubelet.agent.controller.state, set(plugins.iterdir())
        assert RESOURCE not in state.observed.conditions
        await kubelet.manager.stop()
        (plugins / "numawarden.sock").unlink()
        (plugins / "numawarden.sock").write_text("")
        await until(lambda: RESOURCE in state.observed.conditions)
        assert "numawarden.sock is not a socket" in state.observed.conditions[RESOURCE]
        (plugins / "numawarden.sock").unlink()
        await kubelet.manager.start()
        await kubelet.manager.until_listed(RESOURCE)
        await until(lambda: RESOURCE not in state.observed.conditions)
        assert set(plugins.iterdir()) == before


async def test_what_is_in_the_place_of_the_plugins_own_directory_is_named(tmp_path: Path) -> None:
    def never(_: Path) -> NoReturn:
        raise AssertionError

    (tmp_path / ".numawarden").write_text("")
    with pytest.raises(PluginSocketError, match=r"\.numawarden is not a directory; remove it"):
        await PluginSocket(tmp_path, "numawarden.sock", never).serve()


async def test_without_a_resource_the_agent_is_not_a_plugin(beside: World) -> None:
    kubelet = replace(beside.config.agent.kubelet, exclusive_resource="")
    beside.config = replace(beside.config, agent=replace(beside.config.agent, kubelet=kubelet))
    async with running(beside) as agent:
        names = [each.name for each in agent.service._inputs.companions]
        assert "device plugin of the kubelet" not in names
        assert not (kubelet.directory / "device-plugins").exists()


async def test_a_pod_is_admitted_within_its_admission_or_rejected_with_words(beside: World) -> None:
    async with node(beside) as kubelet:
        assert await kubelet.admit(UIDS[0], HALF) is None
        allocation = kubelet.agent.controller.state.ledger.allocations[UIDS[0]]
        assert len(allocation.exclusive_cpus) == 6
        assert allocation.source == Source("kubelet", f"pods/{UIDS[0]}")
        assert await kubelet.admit(UIDS[1], HALF) is None
        words = await kubelet.admit(UIDS[2], ASKS.replace("cpu=2", "cpu=3"))
        assert words is not None
        assert words.startswith("TopologyAffinityError: ")
        assert kubelet.admitted == {*UIDS[:2]}


async def test_a_pod_is_decided_once_whatever_its_containers(beside: World) -> None:
    async with node(beside) as kubelet:
        with capture_logs() as logs:
            assert await kubelet.admit(UIDS[0], ASKS, ASKS, init=[ASKS]) is None
            assert await kubelet.admit(UIDS[1], ASKS, "cpu=1 memory=1Gi") is None
        assert kubelet.admitted == {UIDS[0], UIDS[1]}
        events = [each["event"] for each in logs]
        assert events.count("pod admitted") == 2
        assert events.count("opt-in pod not decided") == 0


async def test_a_pod_that_waits_for_devices_is_decided_near_them(beside: World) -> None:
    """The kubelet allocates the resources of a container in any order, and then notes them."""
    uid, directory = UIDS[0], beside.config.agent.kubelet.directory
    async with node(beside) as kubelet:
        write_device_checkpoint(directory, {}, NIC, RESOURCE)
        assert await kubelet.admit(uid, f"{ASKS} {NIC}=1") is None
        assert kubelet.admitted == set()
        given = {NIC: {1: ["nic0"]}, RESOURCE: {-1: ["slot-0"]}}
        write_device_checkpoint(directory, {uid: {"c0": given}}, NIC, RESOURCE)
        kubelet.run(uid)
        await kubelet.intake.sync()
        allocation = kubelet.agent.controller.state.ledger.allocations[uid]
        assert str(allocation.exclusive_cpus) == "4,12"
        assert list(given_devices(allocation.containers[0])) == [
            GivenDevice(NIC, "nic0", Mask.of(1))
        ]


async def test_pods_that_did_not_opt_in_are_not_asked_for(beside: World) -> None:
    async with node(beside) as kubelet:
        kubelet.list(UIDS[0], "cpu=100 memory=1Gi")
        assert await kubelet.admit(UIDS[1], ASKS) is None
        assert kubelet.admitted == {UIDS[1]}
        zero = "cpu=100 memory=1Gi numawarden.dev/exclusive=0"
        kubelet.list(UIDS[2], zero)
        assert await kubelet.admit(UIDS[3], ASKS) is None


async def test_a_rejected_pod_that_is_still_listed_is_not_taken_for_the_next(beside: World) -> None:
    async with node(beside) as kubelet:
        assert await kubelet.admit(UIDS[0], TOO_MANY) is not None
        assert await kubelet.admit(UIDS[1], ASKS, ASKS, init=[ASKS]) is None
        assert await kubelet.admit(UIDS[2], TOO_MANY) is not None
        assert await kubelet.admit(UIDS[3], ASKS, ASKS) is None


async def test_rejected_pods_that_have_failed_do_not_hide_the_next(beside: World) -> None:
    async with node(beside) as kubelet:
        for uid in UIDS[:5]:
            assert await kubelet.admit(uid, TOO_MANY) is not None
            kubelet.list(uid, TOO_MANY, phase="Failed")
        del kubelet.kubelet.pods[UIDS[0]]
        assert await kubelet.admit(UIDS[5], TOO_MANY) is not None


async def test_a_rejected_pod_that_has_failed_is_not_admitted_later(beside: World) -> None:
    async with node(beside) as kubelet:
        await kubelet.fill()
        kubelet.run(UIDS[0])
        kubelet.run(UIDS[1])
        assert await kubelet.admit(UIDS[2], HALF) is not None
        kubelet.list(UIDS[2], HALF, phase="Failed")
        kubelet.list(UIDS[0], HALF, phase="Succeeded")
        kubelet.agent.world.kernel.rmdir(f"kubepods/pod{UIDS[0]}")
        assert await kubelet.admit(UIDS[3], HALF) is None
        assert kubelet.admitted == {UIDS[1], UIDS[3]}


async def test_a_static_pod_that_is_made_again_with_its_uid_is_decided_again(beside: World) -> None:
    async with node(beside) as kubelet:
        await kubelet.fill()
        assert await kubelet.admit(UIDS[2], HALF) is not None
        kubelet.list(UIDS[0], HALF, phase="Succeeded")
        await kubelet.free(UIDS[0])
        assert await kubelet.admit(UIDS[2], HALF) is None
        assert UIDS[2] in kubelet.admitted


async def test_pods_from_before_the_agent_do_not_hide_the_next(beside: World) -> None:
    async with node(beside) as kubelet:
        for uid in UIDS[:3]:
            assert await kubelet.admit(uid, ASKS) is None
            kubelet.run(uid)
        pods = kubelet.kubelet.pods
    async with node(beside, pods) as kubelet:
        assert await kubelet.admit(UIDS[3], TOO_MANY) is not None
        assert await kubelet.admit(UIDS[4], ASKS) is None
        assert kubelet.admitted == {*UIDS[:3], UIDS[4]}


async def test_a_pod_that_was_rejected_and_waits_does_not_hide_the_next(beside: World) -> None:
    async with node(beside) as kubelet:
        kubelet.list(UIDS[0], TOO_MANY)
        await kubelet.source.list_now(60.0)
        await kubelet.intake.sync()
        assert await kubelet.admit(UIDS[1], TOO_MANY) is not None
        assert await kubelet.admit(UIDS[2], ASKS) is None
        assert kubelet.admitted == {UIDS[2]}


async def test_between_two_pods_that_are_new_none_is_chosen(beside: World) -> None:
    async with node(beside) as kubelet:
        kubelet.list(UIDS[0], TOO_MANY)
        why = await kubelet.undecided(UIDS[1], TOO_MANY)
        assert why == "2 of 2 pods may be the one of this call"
        assert await kubelet.admit(UIDS[2], ASKS) is None
        assert UIDS[2] in kubelet.admitted


async def test_a_pod_that_is_not_known_does_not_get_the_answer_of_an_older_one(
    beside: World,
) -> None:
    async with node(beside) as kubelet:
        assert await kubelet.admit(UIDS[0], TOO_MANY) is not None
        kubelet.list(UIDS[1], ASKS)
        assert await kubelet.admit(UIDS[2], ASKS, ASKS) is None


async def test_a_call_without_a_pod_passes_and_is_counted(beside: World) -> None:
    async with node(beside) as kubelet:
        assert await kubelet.allocate() is None
        assert await kubelet.admit(UIDS[0], TOO_MANY) is not None
        del kubelet.kubelet.pods[UIDS[0]]
        assert await kubelet.allocate() is None
        assert await kubelet.admit(UIDS[1], ASKS) is None
        count = partial(kubelet.agent.controller.metrics.counters.value, names.OPT_IN_ANSWERS)
        assert [*map(count, ("admitted", "rejected", "undecided"))] == [1, 1, 2]


async def test_a_kubelet_that_does_not_list_its_pods_has_its_pod_pass(beside: World) -> None:
    async with node(beside) as kubelet:
        kubelet.kubelet.failing = CallError("UNAVAILABLE", "starting")
        why = await kubelet.undecided(UIDS[0], TOO_MANY)
        assert why == "the kubelet does not list its pods now"
        kubelet.kubelet.failing = None
        for raw in (b"\xff" * 40, b"\x0a\x03\xff\xff\xff"):
            kubelet.kubelet.raw_list = raw
            assert await kubelet.admit(UIDS[0], TOO_MANY) is None
        kubelet.kubelet.raw_list = None
        assert await kubelet.admit(UIDS[1], ASKS) is None


async def test_a_pod_is_not_rejected_while_another_may_have_ended(beside: World) -> None:
    async with node(beside) as kubelet:
        await kubelet.fill()
        del kubelet.kubelet.pods[UIDS[0]]
        why = await kubelet.undecided(UIDS[2], HALF)
        assert "pods that may have ended still have their allocation: " in why
        assert kubelet.admitted == {UIDS[0], UIDS[1]}


@pytest.mark.parametrize("asked", [ASKS, TOO_MANY])
async def test_a_decision_outlives_its_caller(beside: World, asked: str) -> None:
    """The kubelet asks again for the next container, which gets the answer."""
    async with node(beside) as kubelet:
        decided, waits = asyncio.Event(), asyncio.Event()

        async def slow_sync() -> None:
            waits.set()
            await decided.wait()
            await kubelet.intake.sync()

        decisions = OptInAdmissions(RESOURCE, kubelet.agent.controller, kubelet.source, slow_sync)
        kubelet.list(UIDS[0], asked, asked)
        deadline = kubelet.agent.world.clock.monotonic() + 60.0
        first = asyncio.create_task(decisions.decide(deadline))
        await waits.wait()
        second = asyncio.create_task(decisions.decide(deadline))
        await until(lambda: kubelet.kubelet.calls.count("ListPods") >= 3)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        decided.set()
        assert (await second == "") is (asked == ASKS)
        assert kubelet.admitted == ({UIDS[0]} if asked == ASKS else set())


async def test_a_decision_that_fails_unexpectedly_is_made_again(beside: World) -> None:
    async with node(beside) as kubelet:
        errors = [RuntimeError("broken"), CheckpointFailedError(OSError("disk full"))]

        async def broken_sync() -> None:
            if errors:
                raise errors.pop()
            await kubelet.intake.sync()

        decisions = OptInAdmissions(RESOURCE, kubelet.agent.controller, kubelet.source, broken_sync)
        kubelet.list(UIDS[0], TOO_MANY)
        deadline = kubelet.agent.world.clock.monotonic() + 60.0
        with capture_logs() as logs:
            assert await decisions.decide(deadline) is None
        assert [each["why"] for each in logs if each["event"] == "opt-in pod not decided"]
        with pytest.raises(RuntimeError):
            await decisions.decide(deadline)
        assert await decisions.decide(deadline) is not None

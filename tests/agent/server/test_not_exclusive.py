"""A pod whose CPUs cgroups of others may use is not exclusive, in every view, while they may."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from agent.api.documents.pods import PodListDocument
from agent.cli.list_text import list_lines, list_table
from agent.cli.pod_text import pod_lines
from agent.reconcile.backoff import AT_ONCE
from agent.reconcile.tasks import Task
from agent.server.conditions import ConditionType
from agent.tools.map.spans import plain
from agent.tools.map.text import map_lines
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, next_event, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agent.api.documents.map import MapDocument
    from agent.api.documents.pods import PodDocument
    from agent.api.documents.status import StatusDocument
    from agent.api.documents.verification import VerificationDocument
    from tests.agent.server.support import Running, World

#: Has the CPUs 1 and 9.
POD = f"kubepods/pod{UID}"
#: Has the CPUs 2 and 10.
VICTIM = f"kubepods/pod{OTHER_UID}"
FILE = "cpuset.cpus"
BURSTABLE = "kubepods/burstable"

SHARING = b"""apiVersion: v1
kind: Pod
metadata: {name: batch, namespace: shop, uid: 77777777-2222-3333-4444-555555555555}
spec:
  containers:
  - {name: c0, image: example.org/app, resources: {requests: {cpu: "1"}}}
"""


class OtherWriter:
    """Another process that writes a set again as soon as the agent has written it."""

    def __init__(self, world: World, path: str, text: str) -> None:
        self.kernel, self.path, self.text = world.kernel, path, text
        self.write = world.kernel.write
        world.kernel.write = self.rewrite  # type: ignore[method-assign]
        self.write(path, FILE, text)

    def rewrite(self, path: str, file: str, value: str) -> None:
        self.write(path, file, value)
        if (path, file) == (self.path, FILE):
            self.write(path, file, self.text)

    def stop(self) -> None:
        self.kernel.write = self.write  # type: ignore[method-assign]


def other_partition(world: World, word: str) -> Callable[[], None]:
    """Have another program make a partition of the first pod's CPUs, as OVS-DPDK has."""
    kernel = world.kernel
    kernel.mkdir("ovs")
    kernel.write("ovs", FILE, "1,9")
    kernel.write("ovs", "cpuset.cpus.partition", word)
    return lambda: kernel.write("ovs", "cpuset.cpus.partition", "member")


#: What happens, where (below /kubepods), which CPUs are concerned; it returns how it ends.
Case = tuple["Callable[[World], Callable[[], None]]", str, str]
CASES: dict[str, Case] = {
    "a pod that is widened again at once": (
        lambda world: OtherWriter(world, POD, "0-15").stop,
        POD,
        "2,10",
    ),
    "a pod that is widened by a part": (
        lambda world: OtherWriter(world, POD, "1,9-10").stop,
        POD,
        "10",
    ),
    "a class in which others inherit": (
        lambda world: OtherWriter(world, BURSTABLE, "0-15").stop,
        BURSTABLE,
        "2,10",
    ),
    "a pod that falls back to the CPUs of a narrowed parent": (
        lambda world: OtherWriter(world, "kubepods", "2-3,10").stop,
        POD,
        "2,10",
    ),
    "a pod whose CPUs a partition of another program has": (
        lambda world: other_partition(world, "isolated"),
        POD,
        "2,10",
    ),
}


@dataclass
class Views:
    """What the documents of an agent say of the victim."""

    pods: tuple[PodDocument, ...]
    shown: PodDocument
    drawn: MapDocument
    status: StatusDocument
    verified: VerificationDocument
    metrics: str

    @classmethod
    async def of(cls, agent: Running) -> Views:
        ask, client = asyncio.to_thread, agent.client
        return cls(
            await ask(client.pods),
            await ask(client.pod, OTHER_UID),
            await ask(client.map),
            await ask(client.status),
            await ask(client.verify),
            agent.controller.metrics.render(agent.controller.state.reading()).decode(),
        )

    @property
    def victim(self) -> PodDocument:
        return next(pod for pod in self.pods if pod.uid == OTHER_UID)

    def said(self) -> dict[str, bool]:
        """Return by view whether it says that the victim is not exclusive."""
        name = "shop/db"
        listed = PodListDocument(pods=self.pods)
        text = [plain(each) for each in map_lines(self.drawn)]
        exclusive = [e for e in self.status.conditions if e.type == ConditionType.EXCLUSIVE]
        victims = f"{float(len(exclusive) or 1)}"
        return {
            "list": any("NOT EXCLUSIVE" in each for each in list_lines(listed) if name in each),
            "table": any("NOT-EXCLUSIVE" in e for e in list_table(listed, wide=False) if name in e),
            "show": any(each.startswith("  not exclusive: CPUs") for each in pod_lines(self.shown)),
            "verdict": any(not j.met for j in self.victim.verdict if j.quality == "exclusive"),
            "map": any(f"{name} is not exclusive" in each for each in text),
            "map of pods": any("not exclusive: " in e for e in text if f"{name}  CPUs" in e),
            "condition": any(each.uid == OTHER_UID for each in exclusive),
            "verify": name in self.verified.intruding_cgroups,
            "gauge of conditions": f'_conditions{{type="Exclusive"}} {victims}' in self.metrics,
            "gauge of verdicts": f'{{met="false",quality="exclusive"}} {victims}' in self.metrics,
        }


@asynccontextmanager
async def two_pods(world: World) -> AsyncIterator[Running]:
    """Run an agent with both pods."""
    async with running(world) as agent:
        for body in (manifest(), manifest("db", OTHER_UID)):
            await agent.ask(agent.client.admit, body)
        yield agent


async def compare(agent: Running, seconds: float = 10) -> None:
    """Compare once more after some seconds."""
    agent.world.clock.now += seconds
    await agent.controller.reconcile()


@pytest.mark.parametrize(("disturb", "cgroup", "cpus"), CASES.values(), ids=list(CASES))
@in_loop
async def test_a_victim_is_named_in_every_view_at_once_and_no_longer_than_it_is_one(
    world: World, disturb: Callable[[World], Callable[[], None]], cgroup: str, cpus: str
) -> None:
    async with two_pods(world) as agent:
        await agent.ask(agent.client.admit, SHARING)
        for path in (POD, VICTIM):
            world.kernel.mkdir(f"{path}/c0")
        await agent.controller.reconcile()
        assert not any((await Views.of(agent)).said().values())

        with agent.controller.events.watch() as watcher:
            end = disturb(world)
            await agent.controller.reconcile()
            event = await next_event(watcher, "PodNotExclusive")
            while event.uid != OTHER_UID:
                event = await next_event(watcher, "PodNotExclusive")
        views = await Views.of(agent)
        assert [view for view, said in views.said().items() if not said] == []
        (found,) = views.victim.intruding
        assert (found.cgroup, found.cpus) == (f"/{cgroup}", cpus)
        assert found.user == ("shop/web" if cgroup == POD else "")
        assert (event.uid, event.pod, event.message) == (OTHER_UID, "shop/db", found.message)
        assert f"CPUs {cpus} may be used by /{cgroup}" in found.message
        assert views.verified.intruding_cgroups["shop/db"] == (found,)

        end()
        await compare(agent)
        assert not any((await Views.of(agent)).said().values())


@in_loop
async def test_a_pod_on_whose_cpus_a_task_was_placed_is_not_exclusive_until_the_task_is_gone(
    world: World,
) -> None:
    async with two_pods(world) as agent:
        world.clock.now += 60
        world.tasks.append(Task(4711, "busy", Mask.parse("2-3"), "system.slice/busy.service"))
        with agent.controller.events.watch() as watcher:
            await agent.controller.reconcile()
            event = await next_event(watcher, "PodNotExclusive")
        said = (await Views.of(agent)).said()
        assert [view for view, is_said in said.items() if not is_said] == ["verify"]
        assert event.message == (
            "CPUs 2 may be used by /system.slice/busy.service: process 4711 (busy) was placed on "
            "them; end it, or move it: taskset -apc CPUS 4711"
        )
        world.tasks.clear()
        await compare(agent, 1)
        assert not any((await Views.of(agent)).said().values())


@in_loop
async def test_a_repair_waits_for_no_pause_while_others_are_concerned(world: World) -> None:
    """Widened before each comparison for an hour: every comparison narrows it again."""
    async with two_pods(world) as agent:
        with agent.controller.events.watch() as watcher:
            for _ in range(360):
                world.kernel.write(POD, FILE, "0-15")
                await compare(agent)
                assert world.cpus_of(POD) == "1,9"
            agent.controller.events.close()
            events = [each async for each in watcher]
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    contests = [each.message for each in events if each.type == "DriftContested"]
    assert 10 <= len(contests) <= 20  # the first pauses grow, all others have 5 minutes
    assert all("repaired at every comparison, since other pods" in each for each in contests)
    assert 'numawarden_drift_repaired_total{cause="unknown"} 360.0' in text
    drift = [each for each in events if each.type == "DriftFound"]
    assert len(drift) < 30, "each is in the log and the history"


@in_loop
async def test_a_container_that_its_pod_confines_has_no_victim_and_waits_for_no_pause(
    world: World,
) -> None:
    async with two_pods(world) as agent:
        world.kernel.mkdir(f"{POD}/c0")
        await agent.controller.reconcile()
        for _ in range(3 * AT_ONCE):
            world.kernel.write(f"{POD}/c0", FILE, "1-3,9-10")
            assert world.cpus_of(f"{POD}/c0") == "1,9"
            await compare(agent)
            assert world.kernel.read(f"{POD}/c0", FILE).strip() == "1,9"
            assert agent.controller.state.intrusions == {}


@in_loop
async def test_what_concerns_no_other_pod_waits_until_another_pod_has_these_cpus(
    world: World,
) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        for _ in range(AT_ONCE + 1):
            world.kernel.write(POD, FILE, "1-3,9")
            await compare(agent)
        assert world.cpus_of(POD) == "1-3,9"
        assert agent.controller.state.intrusions == {}
        writer = OtherWriter(world, POD, "1-3,9")
        answer = await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        assert answer.pod is not None
        assert [each.cgroup for each in answer.pod.intruding] == [f"/{POD}"]
        writer.stop()
        await compare(agent, 1)
        assert world.cpus_of(POD) == "1,9"


@in_loop
async def test_a_pod_is_not_exclusive_while_another_writer_gives_its_cpus_away(
    world: World,
) -> None:
    """Each comparison repairs that at once, and until the next one the writer has its way."""
    async with two_pods(world) as agent:
        for _ in range(AT_ONCE + 1):
            world.kernel.write(POD, FILE, "1-3,9-10")
            await compare(agent)
            assert world.cpus_of(POD) == "1,9"
        assert [*agent.controller.state.intrusions] == [OTHER_UID]
        await compare(agent)
        assert agent.controller.state.intrusions == {}


@in_loop
async def test_one_writer_of_one_file_is_one_contest_with_a_remedy_that_works(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(containers=3))
        for number in range(3):
            world.kernel.mkdir(f"{POD}/c{number}")
        await agent.controller.reconcile()
        with agent.controller.events.watch() as watcher:
            for _ in range(20):
                world.kernel.write(POD, FILE, "0")
                await compare(agent)
            agent.controller.events.close()
            contests = [each.message async for each in watcher if each.type == "DriftContested"]
        status = await asyncio.to_thread(agent.client.status)
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    mounted = world.directory / "cgroup"
    assert contests
    assert all(each.endswith(f"auditctl -w {mounted}/{POD}/{FILE} -p w") for each in contests)
    assert "numawarden_contested_cgroups 1.0" in text
    of_kernel = [each for each in status.conditions if each.cgroup]
    assert [(each.type, each.cgroup, each.file) for each in of_kernel] == [
        (ConditionType.REPAIRS_LAST, f"/{POD}", FILE),
        (ConditionType.ENFORCED, f"/{POD}", FILE),
    ]
    assert not any("cpuset.cpus.effective" in each for each in status.condition_lines())

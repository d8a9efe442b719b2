"""CPUs that other cgroups withhold from pods: in no decision, under no pod, and named."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.api.documents.map import CpuUse
from agent.cluster.kubernetes.node_topology import node_topology
from agent.config.isolation import PartitionMode
from agent.managers.violations import Rule
from sysfs.mask import Mask
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    make_world,
    manifest,
    next_event,
    running,
    until,
)
from tests.agent.server.test_lifecycle import FullWatch

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents.status import StatusDocument
    from cgroupfs.emulated.kernel import EmulatedKernel
    from tests.agent.server.support import Running, World

PODS: Final = {UID: 4711, OTHER_UID: 4712}
#: How another program takes CPUs 1 and 9, the first core that pods get here, or more.
WAYS: Final = {
    "root": (("ovs.slice", "1,9", "root"),),
    "remote": (("top/ovs.slice", "1,9", "root"),),
    "two": (("ovs.slice", "1,9", "root"), ("dpdk.slice", "2", "isolated")),
    "half of a core": (("ovs.slice", "9", "root"),),
}


def take(kernel: EmulatedKernel, way: str) -> None:
    kernel.write("", "cgroup.subtree_control", "+cpuset")
    for path, cpus, word in WAYS[way]:
        above, _, _ = path.rpartition("/")
        if above:
            kernel.mkdir(above)
            kernel.write(above, "cgroup.subtree_control", "+cpuset")
            kernel.write(above, "cpuset.cpus.exclusive", cpus)
        kernel.mkdir(path)
        kernel.write(path, "cpuset.cpus", cpus)
        if above:
            kernel.write(path, "cpuset.cpus.exclusive", cpus)
        kernel.write(path, "cpuset.cpus.partition", word)
        assert kernel.read(path, "cpuset.cpus.partition").strip() == word


def give_back(kernel: EmulatedKernel, way: str) -> None:
    for path, _, _ in WAYS[way]:
        kernel.write(path, "cpuset.cpus.partition", "member")


def taken(way: str) -> Mask:
    return Mask.union(Mask.parse(cpus) for _, cpus, _ in WAYS[way])


async def admit(agent: Running, uid: str, cpu: str = "2") -> str:
    """Admit a pod, start a process in it, and return its exclusive CPUs."""
    answer = await asyncio.to_thread(agent.client.admit, manifest(uid=uid, cpu=cpu))
    assert answer.pod is not None, answer.rejection
    path = f"kubepods/pod{uid}/c0"
    agent.world.kernel.mkdir(path)
    agent.world.kernel.spawn(path, PODS[uid])
    await agent.ask(agent.client.reconcile)
    return answer.pod.exclusive_cpus


async def status(agent: Running) -> StatusDocument:
    return await asyncio.to_thread(agent.client.status)


async def noticed(agent: Running, *, withheld: Mask) -> None:
    """Let a period pass, and wait until the agent has noticed what is withheld, and compared."""
    with agent.controller.events.watch() as watcher:
        while agent.controller.state.configured.host.withheld_cpus != withheld:
            await agent.world.clock.passing(10, next_event(watcher, "HostChanged"))
    await agent.ask(agent.client.reconcile)


def overlaps(agent: Running) -> list[str]:
    """Return which processes of pods may run on exclusive CPUs of another pod."""
    kernel, pods = agent.world.kernel, agent.controller.state.target().ledger.allocations
    allowed = {
        uid: kernel.allowed(pid)[0] for uid, pid in PODS.items() if kernel.home(pid) is not None
    }
    return [
        f"{uid} may use {cpus & pod.exclusive_cpus} of {pod.uid}"
        for uid, cpus in allowed.items()
        for pod in pods.values()
        if pod.uid != uid and cpus & pod.exclusive_cpus
    ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


# Shows in differences.md: cpus-above
@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_cpus_that_were_taken_before_are_given_to_no_pod(world: World, way: str) -> None:
    take(world.kernel, way)

    async with running(world) as agent:
        first, second = await admit(agent, UID), await admit(agent, OTHER_UID, "4")
        assert Mask.parse(first).isdisjoint(taken(way) | Mask.parse(second))
        assert Mask.parse(second).isdisjoint(taken(way))
        assert overlaps(agent) == []
        assert (await status(agent)).conditions == ()


# Shows in differences.md: cpus-above
@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_what_is_taken_after_a_pod_got_it_is_its_condition_until_that_ends(
    world: World, way: str
) -> None:
    async with running(world) as agent:
        assert (await admit(agent, UID), await admit(agent, OTHER_UID)) == ("1,9", "2,10")
        take(world.kernel, way)
        await noticed(agent, withheld=taken(way))
        allowed = world.kernel.allowed(PODS[UID])[0]
        assert allowed.isdisjoint(taken(way) | Mask.parse("10"))
        assert overlaps(agent) == []
        shown = await status(agent)
        ((_, cpus, _), *_) = WAYS[way]
        lines = [line for line in shown.condition_lines() if f"CPUs {cpus}" in line]
        assert lines, shown.condition_lines()
        assert all(f"belong to the partition /{WAYS[way][0][0]}" in line for line in lines)
        assert all("end that partition, or remove the pod" in line for line in lines)
        assert not any("offline" in line for line in shown.condition_lines())
        assert {Rule.CPU_WITHHELD} == {each.rule for each in shown.invalid}
        mine = [each for each in shown.conditions if each.uid == UID]
        assert [each.reason for each in mine] == ["CPUWithheld"] * 2
        give_back(world.kernel, way)
        await noticed(agent, withheld=Mask())
        assert (await status(agent)).condition_lines() == ()
        assert world.kernel.allowed(PODS[UID])[0] == Mask.parse("1,9")


@in_loop
async def test_a_host_change_names_the_partition_once(world: World) -> None:
    async with running(world) as agent:
        with agent.controller.events.watch() as watcher:
            take(world.kernel, "two")
            event = await world.clock.passing(10, next_event(watcher, "HostChanged"))
        assert event.message == (
            "CPUs 1-2,9 are withheld from pods now; "
            "CPUs 2 belong to the partition /dpdk.slice; "
            "CPUs 1,9 belong to the partition /ovs.slice"
        )
    # What the last agent knew already did not change since, and the new one knows it at its start.
    async with running(world) as agent:
        assert agent.controller.state.start.changed_before.host == ()
        assert agent.controller.state.configured.host.withheld_cpus == Mask.parse("1-2,9")
        assert await admit(agent, UID) == "3,11"


@in_loop
async def test_a_container_that_starts_is_off_cpus_that_were_just_taken_before_a_period_ends(
    world: World,
) -> None:
    watch = FullWatch()
    async with running(world, cgroups=watch) as agent:
        take(world.kernel, "root")
        assert await admit(agent, UID) == "1,9"
        watch.appearing.put_nowait((f"kubepods/pod{UID}/c0",))
        pod, pool = f"kubepods/pod{UID}", "0,2-8,10-15"
        await until(lambda: world.kernel.read(pod, "cpuset.cpus").strip() == pool)
        assert await admit(agent, OTHER_UID) == "2,10"
        assert overlaps(agent) == []


@in_loop
async def test_what_is_withheld_is_in_no_count_and_in_the_rejection(world: World) -> None:
    take(world.kernel, "root")
    async with running(world) as agent:
        state = agent.controller.state
        assert state.configured.rules.machine.cpus.all == Mask.parse("0,2-8,10-15")
        assert state.configured.rules.allocatable.amounts["cpu"] == 13_000  # type: ignore[union-attr]
        metrics = agent.controller.metrics.render(state.reading()).decode()
        assert 'numawarden_cpus{pool="shared"} 14.0' in metrics
        assert 'numawarden_node_cpus{numa_node="0",state="free"} 5.0' in metrics
        fitting = await asyncio.to_thread(agent.client.fit, manifest(uid=None), 16)
        assert fitting.count == 6
        published = node_topology(state.configured.rules, state.ledger, "worker-1", ())
        cpus = [zone["resources"][0] for zone in published.document["zones"]]
        assert [(each["name"], each["capacity"]) for each in cpus] == [("cpu", "6"), ("cpu", "8")]
        answer = await asyncio.to_thread(agent.client.admit, manifest(cpu="14"))
        assert answer.rejection is not None
        shown = await status(agent)
        assert [each.detail for each in shown.withheld] == [
            "CPUs 1,9 belong to the partition /ovs.slice"
        ]
        drawn = await asyncio.to_thread(agent.client.map)
        assert [cpu.id for cpu in drawn.cpus if cpu.use is CpuUse.WITHHELD] == [1, 9]
        assert answer.rejection.message == (
            "the node has no room for the pod: 14 of cpu asked, 13 free (13 allocatable, other "
            "pods request 0); CPUs 1,9 belong to the partition /ovs.slice"
        )


@in_loop
async def test_a_cgroup_above_the_pods_that_is_narrowed_takes_cpus_and_gives_them_back(
    world: World,
) -> None:
    world.config = replace(world.config, cgroup_root="/tenant")
    world.kernel.mkdir("tenant")
    async with running(world) as agent:
        answer = await asyncio.to_thread(agent.client.admit, manifest())
        assert answer.pod is not None
        assert answer.pod.exclusive_cpus == "1,9"
        world.kernel.write("tenant", "cpuset.cpus", "0-7")
        await noticed(agent, withheld=Mask.parse("8-15"))
        (violation,) = (await status(agent)).invalid
        assert (
            violation.message == "has CPUs 9, which are outside of /tenant, which allows only 0-7"
        )
        assert violation.remedy == "widen /tenant, or remove the pod and admit it again"
        world.kernel.write("tenant", "cpuset.cpus", "0-15")
        await noticed(agent, withheld=Mask())
        assert (await status(agent)).invalid == ()


@in_loop
async def test_partitions_of_the_agents_own_pods_withhold_nothing(world: World) -> None:
    isolation = replace(world.config.agent.isolation, partitions=PartitionMode.ROOT)
    world.config = replace(world.config, agent=replace(world.config.agent, isolation=isolation))
    take(world.kernel, "root")
    async with running(world) as agent:
        assert (await admit(agent, UID), await admit(agent, OTHER_UID)) == ("2,10", "3,11")
        assert world.cpus_of("") == "0,4-8,12-15"
        await noticed(agent, withheld=Mask.parse("1,9"))
        assert (await status(agent)).conditions == ()
        give_back(world.kernel, "root")
        await noticed(agent, withheld=Mask())
        assert world.cpus_of("") == "0-1,4-9,12-15"
        # One that is to have a CPU of a pod's partition is none, and has nothing.
        world.kernel.write("ovs.slice", "cpuset.cpus", "1-2")
        world.kernel.write("ovs.slice", "cpuset.cpus.partition", "root")
        await agent.service._reconcile()
        assert not await agent.service._host_changed()
        assert overlaps(agent) == []

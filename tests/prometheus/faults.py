"""Faults of a host or an agent, each brought about as on a real host, and the alerts they raise.

The agent is the real one on an emulated kernel. What it exports in the meantime is on the tape.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from agent.managers.policy import IsolationMode, TopologyManagerScope
from agent.reconcile.tasks import Task
from agent.state.history import HISTORY_NAME
from sysfs.described import with_offline
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, manifest, running, two_packages
from tests.prometheus import ROOT
from tests.prometheus.tape import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.agent.server.support import Running, World
    from tests.prometheus.tape import Tape

THIRD_UID: Final = "77777777-2222-3333-4444-555555555555"
POD: Final = f"kubepods/pod{UID}"


_Provoke: TypeAlias = "Callable[[World, Tape], Coroutine[None, None, None]]"


class Fault(NamedTuple):
    """What brings a fault about, and the alerts that fire at the end."""

    provoke: _Provoke
    alerts: frozenset[str]


#: Every fault by its name.
FAULTS: Final[dict[str, Fault]] = {}


def fault(*alerts: str) -> Callable[[_Provoke], _Provoke]:
    """Register a function that brings a fault about, with the alerts that it raises."""

    def register(provoke: _Provoke) -> _Provoke:
        named = frozenset(f"Numawarden{alert}" for alert in alerts)
        FAULTS[provoke.__name__] = Fault(provoke, named)
        return provoke

    return register


async def healthy(world: World, tape: Tape) -> None:
    """Admit, reject and remove pods and restart once: a quiet hour."""
    async with running(world) as agent:
        await tape.run(agent, 5)
        await agent.ask(agent.client.admit, manifest())
        start(world)
        await tape.run(agent, 10)
        await rejected(agent, manifest("large", THIRD_UID, cpu="99"), "OutOfcpu")
        await agent.ask(agent.client.admit, manifest("db", OTHER_UID))
        start(world, OTHER_UID)
        # One change by another process is repaired, and that is that.
        world.kernel.write(POD, "cpuset.cpus", "0-15")
        await tape.run(agent, 15)
        await agent.ask(agent.client.remove, OTHER_UID)
        await tape.run(agent, 10)
    tape.down(0.5)
    async with running(world) as agent:
        await tape.run(agent, 19)


async def with_pod(agent: Running, tape: Tape, cpu: str = "2") -> None:
    """Admit a pod, start it and let two quiet minutes pass."""
    await agent.ask(agent.client.admit, manifest(cpu=cpu))
    start(agent.world)
    await tape.run(agent, 2)


def start(world: World, uid: str = UID, qos: str = "") -> None:
    """Start the container of an admitted pod, as a runtime does."""
    pods = f"{world.config.cgroup_root}/kubepods".strip("/")
    world.kernel.mkdir(f"{pods}/{qos}pod{uid}/c0")
    world.kernel.spawn(f"{pods}/{qos}pod{uid}/c0", int(uid[:4]))


async def rejected(agent: Running, text: bytes, reason: str) -> None:
    """Ask for a pod that is rejected."""
    answer = await asyncio.to_thread(agent.client.admit, text)
    assert answer.rejection is not None
    assert answer.rejection.reason == reason


@fault("Down")
async def the_agent_is_stopped(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
    tape.down(3)


@fault("Restarting")
async def the_agent_starts_again_and_again(world: World, tape: Tape) -> None:
    for _ in range(4):
        async with running(world) as agent:
            await tape.run(agent, 2)
        tape.down(0.5)
    async with running(world) as agent:
        await tape.run(agent, 1)


@fault("NotReady", "ConfigurationUnfit")
async def the_configuration_does_not_fit_the_host_any_longer(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
    world.config = replace(world.config, reserved_system_cpus=Mask.of(99))
    async with running(world) as agent:
        await tape.run(agent, 12)


@fault("NotReady", "ConfigurationUnfit")
async def reservations_take_every_cpu(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await tape.run(agent, 2)
    world.config = replace(world.config, reserved_system_cpus=two_packages().online)
    async with running(world) as agent:
        await tape.run(agent, 7)


@fault("Conditions")
async def the_history_cannot_be_written(world: World, tape: Tape) -> None:
    (world.config.agent.state_directory / HISTORY_NAME).mkdir()
    async with running(world) as agent:
        await with_pod(agent, tape)
        await tape.run(agent, 12)


@fault("SourceUnreadable")
async def the_manifest_directory_is_removed(world: World, tape: Tape) -> None:
    directory = world.manifest_directory()
    async with running(world) as agent:
        await tape.run(agent, 2)
        directory.rmdir()
        await tape.run(agent, 12)


@fault("NotReady", "CheckpointFailing")
async def the_state_directory_is_replaced(world: World, tape: Tape) -> None:
    state = world.config.agent.state_directory
    async with running(world) as agent:
        await with_pod(agent, tape)
        shutil.rmtree(state)
        state.mkdir(mode=0o700)
        await tape.run(agent, 7)


@fault("NotEnforced", "ReconcileStale", "ConfigurationUnfit")
async def a_cgroup_above_is_too_narrow(world: World, tape: Tape) -> None:
    world.kernel.mkdir("machine")
    world.config = replace(world.config, cgroup_root="/machine")
    async with running(world) as agent:
        await with_pod(agent, tape)
        world.kernel.write("machine", "cpuset.cpus", "0")
        await tape.run(agent, 5)


@fault("NotEnforced", "ReconcileStale")
async def another_program_takes_the_cpus_of_a_pod(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
        await agent.ask(agent.client.admit, manifest("db", OTHER_UID))
        world.kernel.mkdir("ovs")
        world.kernel.write("ovs", "cpuset.cpus", world.cpus_of(POD))
        world.kernel.write("ovs", "cpuset.cpus.partition", "root")
        await tape.run(agent, 5)


@fault("ReconcileStale")
async def the_kernel_hangs(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
        goes_on, children = threading.Event(), world.kernel.children

        def hanging(path: str) -> tuple[str, ...]:
            goes_on.wait()
            return children(path)

        world.kernel.children = hanging  # type: ignore[method-assign]  # a call that hangs
        try:
            await tape.run(agent, 5, hangs=True)
        finally:
            goes_on.set()


@fault("ContainersNotFound")
async def a_container_is_started_outside_of_its_pod(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        world.kernel.mkdir("kubepods-mistyped")
        world.kernel.spawn("kubepods-mistyped", 4711)
        await tape.run(agent, 8)


@fault("Drift")
async def another_process_writes_a_cgroup_every_four_minutes(world: World, tape: Tape) -> None:
    steps = iter(range(1, 10_000))

    def write() -> None:
        if next(steps) % (4 * 60 // STEP) == 0:
            world.kernel.write(POD, "cpuset.cpus", "0-15")

    async with running(world) as agent:
        await with_pod(agent, tape)
        await tape.run(agent, 20, write)


@fault("Contested", "Drift", "NotEnforced")
async def another_process_undoes_every_repair(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
        await tape.run(agent, 14, lambda: world.kernel.write(POD, "cpuset.cpus", "0-15"))


@fault("IntrudingTasks", "NotExclusive")
async def a_process_is_placed_on_the_cpus_of_a_pod(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
        world.tasks.append(Task(4711, "busy", Mask.of(1), "system.slice/busy.service"))
        await tape.run(agent, 8)


@fault("NotIsolated")
async def the_host_shows_no_interrupts(world: World, tape: Tape) -> None:
    always = replace(world.config.agent.isolation, interrupts=IsolationMode.ALWAYS)
    world.config = replace(world.config, agent=replace(world.config.agent, isolation=always))
    async with running(world) as agent:
        await with_pod(agent, tape)
        await tape.run(agent, 8)


@fault("InvalidAllocations")
async def cpus_of_a_pod_are_reserved_by_a_new_configuration(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
    world.config = replace(world.config, reserved_system_cpus=Mask.of(0, 1))
    async with running(world) as agent:
        await tape.run(agent, 17)


@fault("ManifestNotAdmitted")
async def a_manifest_has_a_mistake(world: World, tape: Tape) -> None:
    directory = world.manifest_directory()
    async with running(world) as agent:
        await tape.run(agent, 2)
        (directory / "web.yaml").write_bytes(manifest().replace(b"kind: Pod", b"kind: Pot"))
        await tape.run(agent, 7)


@fault("PodLevelErrors")
async def a_budget_leaves_nothing_for_containers_that_share(world: World, tape: Tape) -> None:
    world.config = replace(world.config, topology_manager_scope=TopologyManagerScope.POD)
    async with running(world) as agent:
        await tape.run(agent, 2)
        text = (ROOT / "deploy/examples/empty-pool.yaml").read_bytes()
        await rejected(agent, text, "EmptyPodSharedPoolError")
        await tape.run(agent, 2)


@fault("SharedPoolTooSmall")
async def cpus_of_a_full_shared_pool_go_offline(world: World, tape: Tape) -> None:
    *lines, _ = manifest().splitlines()
    lines.append(b"    resources: {requests: {cpu: '14', memory: 1Gi}}\n")
    async with running(world) as agent:
        await agent.ask(agent.client.admit, b"\n".join(lines))
        start(world, qos="burstable/")
        await tape.run(agent, 2)
        world.change_host(with_offline(two_packages(), Mask.parse("4-7")))
        await tape.run(agent, 7)


@fault("Rejections")
async def pods_are_too_large_for_the_host(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await tape.run(agent, 2)
        for _ in range(4):
            await rejected(agent, manifest(cpu="99"), "OutOfcpu")
        await tape.run(agent, 2)


@fault("CpusExhausted")
async def a_pod_takes_all_cpus_that_there_are(world: World, tape: Tape) -> None:
    world.config = replace(
        world.config,
        reserved_system_cpus=Mask.of(0, 8),
        cpu_manager_policy_options=MappingProxyType({"full-pcpus-only": "true"}),
    )
    async with running(world) as agent:
        await with_pod(agent, tape, cpu="14")
        await tape.run(agent, 15)


@fault("Misaligned")
async def what_is_free_is_spread_over_the_nodes(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(cpu="4"))
        await agent.ask(agent.client.admit, manifest("db", OTHER_UID, cpu="6"))
        await agent.ask(agent.client.admit, manifest("third", THIRD_UID, cpu="4"))
        for uid in (UID, OTHER_UID, THIRD_UID):
            start(world, uid)
        await tape.run(agent, 17)


@fault("SharedCores")
async def a_pod_asks_for_half_a_core(world: World, tape: Tape) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape, cpu="1")
        await tape.run(agent, 15)

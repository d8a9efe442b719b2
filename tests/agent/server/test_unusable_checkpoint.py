"""A checkpoint that cannot be used: what the kernel still shows is recovered."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.memory.state import memory_charge
from agent.managers.policy import MemoryManagerPolicy, PluginDevice
from agent.pods.model import EXCLUSIVE
from agent.pods.quantity import Quantity
from agent.state.store import CHECKPOINT_NAME
from agent.state.store import peek as saved_state
from cgroupfs.settings import KernelController
from sysfs.mask import Mask
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    manifest,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.support import Running, World

POD = f"kubepods/pod{UID}"


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def removed(file: Path) -> None:
    file.unlink()


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


#: For more see tests/agent/state/test_store.py.
DAMAGES = {"a directory": a_directory, "truncated": truncated, "removed": removed}


async def with_running_containers(agent: Running, *names: str) -> None:
    """Admit the pod `web` with containers c0, c1, ... and start them in cgroups of these names."""
    await agent.ask(agent.client.admit, manifest(containers=len(names)))
    for number, name in enumerate(names):
        path = f"{POD}/{name}"
        agent.world.kernel.mkdir(path)
        agent.world.kernel.spawn(path, 4711 + number)
    await agent.ask(agent.client.reconcile)


def damage(world: World, how: str = "truncated") -> None:
    DAMAGES[how](world.config.agent.state_directory / CHECKPOINT_NAME)


@pytest.mark.parametrize("how", DAMAGES)
@in_loop
async def test_running_pods_keep_their_cpus_until_confirmed(world: World, how: str) -> None:
    async with running(world) as agent:
        await with_running_containers(agent, "c0", "c1")
        before = {name: world.cpus_of(f"{POD}/{name}") for name in ("c0", "c1")}
    damage(world, how)
    async with running(world) as agent:
        assert {name: world.cpus_of(f"{POD}/{name}") for name in before} == before
        status = await asyncio.to_thread(agent.client.status)
        assert any(f"pod uid {UID} was recovered" in line for line in status.condition_lines())
        assert any("was set aside" in line for line in status.condition_lines()) is (
            how != "removed"
        )
        other = await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        assert other.pod is not None
        assert not set(other.pod.exclusive_cpus.split(",")) & {"1", "2", "9", "10"}
        confirmed = await asyncio.to_thread(agent.client.admit, manifest(containers=2))
        assert confirmed.already_admitted
        assert confirmed.pod is not None
        assert {c.name: c.cpus for c in confirmed.pod.containers} == before
        assert {name: world.cpus_of(f"{POD}/{name}") for name in before} == before
        assert world.kernel.procs(f"{POD}/c0") == (4711,)
        status = await asyncio.to_thread(agent.client.status)
        assert not any("was recovered" in line for line in status.condition_lines())


@in_loop
async def test_a_named_container_of_any_class_keeps_its_cpus_until_confirmed(world: World) -> None:
    named = f"""
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: shop, uid: {UID}, annotations: {{{EXCLUSIVE}: c0}}}}
spec:
  containers:
  - {{name: c0, resources: {{requests: {{cpu: 2}}, limits: {{cpu: 2}}}}}}
  - {{name: c1}}
""".encode()
    plain = b"""
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: shop, uid: plain}
spec: {containers: [{name: c0, resources: {requests: {cpu: 100m}}}]}
"""
    above = "kubepods/burstable/pod"
    cgroups = [f"{above}{UID}/c0", f"{above}{UID}/c1", f"{above}plain/c0"]
    async with running(world) as agent:
        for asked in (named, plain):
            await agent.ask(agent.client.admit, asked)
        for number, path in enumerate(cgroups):
            world.kernel.mkdir(path)
            world.kernel.spawn(path, 4711 + number)
        await agent.ask(agent.client.reconcile)
        own = world.cpus_of(cgroups[0])
        assert own == "1,9"
    damage(world, "removed")
    async with running(world) as agent:
        other = await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        assert other.pod is not None
        assert other.pod.exclusive_cpus == "2,10"
        confirmed = await asyncio.to_thread(agent.client.admit, named)
        assert confirmed.already_admitted
        assert confirmed.pod is not None
        assert confirmed.pod.exclusive_cpus == own
        assert [world.kernel.allowed(4711)[0], world.cpus_of(cgroups[0])] == [Mask.parse(own), own]
        pool = Mask.parse("0-15") - Mask.parse("1-2,9-10")
        assert [world.kernel.allowed(pid)[0] for pid in (4712, 4713)] == [pool, pool]


@in_loop
async def test_what_was_recovered_is_saved_and_freed_by_removing_it(world: World) -> None:
    async with running(world) as agent:
        await with_running_containers(agent, "cri-containerd-0123456789ab.scope")
    damage(world)
    async with running(world):
        pass
    saved = saved_state(world.config.agent.state_directory)
    assert saved is not None
    assert str(exclusive_cpus(saved.ledger)) == "1,9"
    async with running(world) as agent:
        (pod,) = await asyncio.to_thread(agent.client.pods)
        assert (pod.origin, pod.name, pod.namespace) == ("recovered", "", "")
        assert pod.exclusive_cpus == "1,9"
        await agent.ask(agent.client.remove, UID)
        assert world.kernel.procs(f"{POD}/cri-containerd-0123456789ab.scope") == (4711,)
        status = await asyncio.to_thread(agent.client.status)
        assert status.exclusive_cpus == ""


@in_loop
async def test_devices_that_running_pods_may_have_are_named(world: World) -> None:
    agent_config = replace(
        world.config.agent, devices=MappingProxyType({"example.org/gpu": (PluginDevice("a"),)})
    )
    world.config = replace(world.config, agent=agent_config)
    async with running(world) as agent:
        await with_running_containers(agent, "c0")
        status = await asyncio.to_thread(agent.client.status)
        assert not any("example.org/gpu" in line for line in status.condition_lines())
    damage(world)
    async with running(world) as agent:
        status = await asyncio.to_thread(agent.client.status)
        assert any(
            "their devices (example.org/gpu) are unknown" in line
            for line in status.condition_lines()
        )


def with_static_memory(world: World, *controllers: KernelController) -> None:
    world.config = replace(
        world.config,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        system_reserved=MappingProxyType({"memory": Quantity.of_bytes(1 << 30)}),
        agent=replace(world.config.agent, enforce=frozenset(controllers)),
    )


def reserved(agent: Running) -> dict[int, dict[str, int]]:
    memory = memory_charge(agent.controller.state.ledger)
    return {node: dict(one.reserved) for node, one in memory.items()}


@in_loop
async def test_memory_is_counted_by_its_limits(world: World) -> None:
    with_static_memory(world, *KernelController)
    async with running(world) as agent:
        await with_running_containers(agent, "c0", "c1")
        charged = reserved(agent)
        assert world.kernel.read(f"{POD}/c0", "memory.max") == f"{1 << 30}\n"
        assert world.kernel.read(POD, "memory.max") == f"{2 << 30}\n"
    damage(world)
    async with running(world) as agent:
        status = await asyncio.to_thread(agent.client.status)
        line = next(line for line in status.condition_lines() if "was recovered" in line)
        assert "memory on nodes 0; admit it" in line
        assert reserved(agent) == charged
        await agent.ask(agent.client.admit, manifest(containers=2))
        assert reserved(agent) == charged

"""An agent that starts again on another configuration or another host."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.allocation import Source
from agent.managers.memory.state import memory_charge
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.managers.registry import MANAGERS
from agent.managers.versions import KubernetesVersion
from agent.managers.violations import Rule
from agent.pods.quantity import Quantity
from agent.server import wiring as assembly
from agent.server.configured import situate
from agent.server.renumbering import node_moves, renumbered
from agent.state.checkpoint import HostFacts, NodeFacts, SharedPod
from sysfs.described import regular_host, with_offline
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, pod
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    make_world,
    manifest,
    next_event,
    running,
    two_packages,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.api.documents.status import StatusDocument
    from sysfs.host import Host
    from tests.agent.server.support import Running, World


POD = f"kubepods/pod{UID}"


async def status(agent: Running) -> StatusDocument:
    return await asyncio.to_thread(agent.client.status)


def rules_of(document: StatusDocument) -> list[str]:
    return [violation.rule for violation in document.invalid]


async def become(agent: Running, host: Host) -> None:
    """Change the host under the agent, and wait until it has seen all of the change."""
    with agent.controller.events.watch() as watcher:
        agent.world.change_host(host)
        agent.service.resync()
        # Meanwhile it may have looked at files that were not all written yet.
        while agent.controller.state.configured.host.online != host.online:
            await next_event(watcher, "HostChanged")
    await agent.ask(agent.client.reconcile)


#: What is configured otherwise, and which rules the pod breaks then.
CHANGES: Mapping[str, tuple[Mapping[str, object], list[Rule]]] = {
    "policy none": ({"cpu_manager_policy": CpuManagerPolicy.NONE}, [Rule.CPU_POLICY]),
    "another reservation": ({"reserved_system_cpus": Mask.of(0, 1)}, [Rule.RESERVED_CPUS]),
    "another alignment": (
        {
            "topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE,
            "topology_manager_scope": TopologyManagerScope.POD,
        },
        [],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@in_loop
async def test_other_rules_keep_what_is_allocated_and_report_what_is_not_valid(
    world: World, change: str
) -> None:
    changes, expected = CHANGES[change]

    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        world.kernel.mkdir(f"{POD}/c0")
        world.kernel.spawn(f"{POD}/c0", 4711)
        await agent.ask(agent.client.reconcile)
    world.config = replace(world.config, **changes)
    async with running(world) as agent:
        shown = await status(agent)
        assert rules_of(shown) == expected
        if expected == [Rule.RESERVED_CPUS]:
            said = "which are now reserved (reservedSystemCPUs)"
            assert any(said in line for line in shown.condition_lines())
        assert world.cpus_of(f"{POD}/c0") == "1,9"
        assert shown.last_reconcile is not None
        assert shown.last_reconcile.found == {}
        again = await asyncio.to_thread(agent.client.admit, manifest())
        assert again.already_admitted
        other = await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        assert other.pod is not None
        assert not Mask.parse(other.pod.exclusive_cpus) & Mask.of(1, 9)


def with_budget(name: str, uid: str) -> bytes:
    """Return a pod of four CPUs, of which its first container has two for itself."""
    amounts = "{cpu: '4', memory: 2Gi}"
    budget = f"spec:\n  resources: {{requests: {amounts}, limits: {amounts}}}\n"
    text = manifest(name, uid).decode().replace("spec:\n", budget)
    return f"{text}  - name: c1\n    image: example.org/helper\n".encode()


GATE = "PodLevelResourceManagers"
THIRD_UID = "aaaaaaaa-2222-3333-4444-555555555555"


def switch_gate(world: World, *, on: bool) -> None:
    """Give pods budgets of their own in pod scope, or leave both at what they are without."""
    scope = TopologyManagerScope.POD if on else TopologyManagerScope.CONTAINER
    world.config = replace(
        world.config,
        topology_manager_scope=scope,
        feature_gates=MappingProxyType({GATE: on}),
    )


async def assert_kept(agent: Running, *invalid: Rule) -> None:
    """Assert that the pod with a budget has what it had, in the ledger and in the kernel."""
    shown = await asyncio.to_thread(agent.client.pod, UID)
    assert shown.cpus == "1-2,9-10"
    assert [container.cpus for container in shown.containers] == ["1,9", "2,10"]
    assert agent.world.cpus_of(POD) == "1-2,9-10"
    assert agent.world.cpus_of(f"{POD}/c0") == "1,9"
    assert agent.world.cpus_of(f"{POD}/c1") == "2,10"
    now = await status(agent)
    assert rules_of(now) == list(invalid)
    assert now.last_reconcile is not None
    assert now.last_reconcile.found == {}


# Shows in differences.md: restart-with-budget
@in_loop
async def test_a_restart_keeps_a_budget_and_its_division_under_every_version_and_gate(
    world: World,
) -> None:
    switch_gate(world, on=True)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, with_budget("web", UID))
        for number, container in enumerate(("c0", "c1")):
            world.kernel.mkdir(f"{POD}/{container}")
            world.kernel.spawn(f"{POD}/{container}", 4711 + number)
        await agent.ask(agent.client.reconcile)
        await assert_kept(agent)
    for version in KubernetesVersion:
        world.config = replace(world.config, kubernetes_version=version)
        async with running(world) as agent:
            await assert_kept(agent)
            again = await asyncio.to_thread(agent.client.admit, with_budget("web", UID))
            assert again.already_admitted
            await assert_kept(agent)
    # New pods follow the gate.
    switch_gate(world, on=False)
    async with running(world) as agent:
        await assert_kept(agent, Rule.POD_BUDGET)
        again = await asyncio.to_thread(agent.client.admit, with_budget("web", UID))
        assert again.already_admitted
        plain = await asyncio.to_thread(agent.client.admit, with_budget("db", OTHER_UID))
        assert plain.pod is not None
        assert plain.pod.cpus is None
        assert [container.isolation for container in plain.pod.containers] == ["host", "host"]
        await assert_kept(agent, Rule.POD_BUDGET)
    switch_gate(world, on=True)
    async with running(world) as agent:
        await assert_kept(agent)
        late = await asyncio.to_thread(agent.client.admit, with_budget("late", THIRD_UID))
        assert late.pod is not None
        assert late.pod.cpus is not None
        assert not Mask.parse(late.pod.cpus) & Mask.parse("1-2,9-10")
        assert (await asyncio.to_thread(agent.client.pod, OTHER_UID)).cpus is None


@in_loop
async def test_cpus_that_go_offline_under_a_pod_are_reported_and_taken_back(tmp_path: Path) -> None:
    """Without any the kernel would let it run on its parent's CPUs, which are every pod's."""
    world = make_world(tmp_path)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        await agent.ask(agent.client.admit, manifest("db", OTHER_UID))
        world.kernel.mkdir(f"{POD}/c0")
        await agent.ask(agent.client.reconcile)
        with agent.controller.events.watch() as watcher:
            await become(agent, with_offline(two_packages(), Mask.of(9)))
            event = await next_event(watcher, "AllocationInvalid")
        assert "has CPUs 9, which are offline (CPU offline)" in event.message
        assert rules_of(await status(agent)) == ["CPU offline"]
        await become(agent, with_offline(two_packages(), Mask.of(1, 9)))
        assert world.cpus_of(f"kubepods/pod{OTHER_UID}") == "2,10"
        assert world.cpus_of(f"{POD}/c0") == "0,3-8,11-15"
        await become(agent, two_packages())
        assert rules_of(await status(agent)) == []
        assert world.cpus_of(f"{POD}/c0") == "1,9"
        # What is desired again was not undone by another process.
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert 'drift_found_total{cause="unknown"} 0.0' in text


@in_loop
async def test_a_configuration_that_no_longer_fits_keeps_pods_and_admits_no_new_ones(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path)
    world.config = replace(world.config, reserved_system_cpus=Mask.of(15))
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
    world.change_host(regular_host(packages=1, cores_per_node=4))
    async with running(world) as agent:
        shown = await status(agent)
        assert "this host has no CPU 15" in shown.condition_lines()[0]
        assert "no new pod is admitted" in shown.condition_lines()[0]
        again = await asyncio.to_thread(agent.client.admit, manifest())
        assert again.already_admitted
        rejected = await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        assert rejected.rejection is not None
        assert "the configuration does not fit this host" in rejected.rejection.message
        await become(agent, two_packages())
        other = await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        assert other.admitted
        assert not any("new one" in line for line in (await status(agent)).condition_lines())


def test_rules_that_fitted_before_stay_in_force_while_the_host_lacks_something(
    world: World,
) -> None:
    config = replace(world.config, reserved_system_cpus=Mask.of(0))
    before = situate(config, two_packages())
    after = situate(config, with_offline(two_packages(), Mask.of(0)), before)
    assert after.rules.policy is before.rules.policy
    assert not after.frozen
    assert "the previous policy stays in effect" in after.conditions()[0]


@in_loop
async def test_after_a_reboot_memory_follows_nodes_that_were_renumbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(tmp_path)
    world.config = replace(
        world.config,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        system_reserved=MappingProxyType({"memory": Quantity.of_bytes(1 << 30)}),
    )
    monkeypatch.setattr(assembly, "running_boot", lambda _: "before")
    async with running(world) as agent:
        admitted = await asyncio.to_thread(agent.client.admit, manifest())
        assert admitted.pod is not None
        assert admitted.pod.containers[0].mems == "0"
    host = two_packages()
    first, second = host.nodes
    world.change_host(
        replace(
            host,
            cpus=tuple(
                replace(cpu, node=None if cpu.node is None else 1 - cpu.node) for cpu in host.cpus
            ),
            nodes=(
                replace(second, id=0, distances={0: 10, 1: 20}),
                replace(first, id=1, distances={0: 20, 1: 10}),
            ),
        )
    )
    monkeypatch.setattr(assembly, "running_boot", lambda _: "after")
    async with running(world) as agent:
        shown = await asyncio.to_thread(agent.client.pod, UID)
        assert (shown.exclusive_cpus, shown.containers[0].mems) == ("1,9", "1")
        assert rules_of(await status(agent)) == []


@pytest.mark.parametrize(("boot", "shared"), [("before", {UID}), ("after", set())])
@in_loop
async def test_pods_that_run_shared_go_on_until_the_next_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str, shared: set[str]
) -> None:
    world = make_world(tmp_path)
    monkeypatch.setattr(assembly, "running_boot", lambda _: "before")
    async with running(world) as agent:
        source = Source("kubelet", f"pods/{UID}")
        pod = SharedPod(UID, "web", "default", source, "OutOfcpu: 8 CPUs")
        await agent.controller.share(pod)
    monkeypatch.setattr(assembly, "running_boot", lambda _: boot)
    async with running(world) as agent:
        assert set(agent.controller.state.durable.shared) == shared


LOW, HIGH, GIB = Mask.parse("0-7"), Mask.parse("8-15"), 1 << 30


def host(*nodes: tuple[int, Mask]) -> HostFacts:
    return HostFacts(LOW | HIGH, EMPTY, tuple(NodeFacts(node, cpus, GIB) for node, cpus in nodes))


BEFORE = host((0, LOW), (1, HIGH))
THREE = host((0, LOW), (1, HIGH), (2, EMPTY))


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        (BEFORE, host((0, HIGH), (1, LOW)), {0: 1, 1: 0}),
        # The same numbers, whatever memory they have.
        (
            BEFORE,
            replace(
                BEFORE, nodes=(replace(BEFORE.nodes[0], memory_bytes=2 * GIB), BEFORE.nodes[1])
            ),
            {},
        ),
        # Another machine.
        (BEFORE, host((1, LOW), (2, Mask.parse("8-14"))), {}),
        (BEFORE, host((1, LOW)), {}),
        # Without CPUs a node keeps its number or is lost.
        (THREE, host((1, LOW), (0, HIGH), (2, EMPTY)), {0: 1, 1: 0, 2: 2}),
        (THREE, host((1, LOW), (0, HIGH), (3, EMPTY)), {}),
    ],
)
def test_nodes_that_got_other_numbers_are_known_by_their_cpus(
    before: HostFacts, after: HostFacts, moves: dict[int, int]
) -> None:
    assert node_moves(before, after) == moves


def test_memory_hints_and_charges_follow_their_node_and_come_back() -> None:
    ledger = with_pod(make_rules(), pod(app("c1", guaranteed("cpu=2 memory=1Gi"))))
    moved = renumbered(MANAGERS, ledger, {0: 1, 1: 0})
    (before,), (after,) = ledger.allocations.values(), moved.allocations.values()
    assert before.containers[0].mems == Mask.of(0)
    assert after.containers[0].mems == Mask.of(1)
    assert after.containers[0].hint.nodes == 0b10
    assert after.containers[0].cpus == before.containers[0].cpus
    assert memory_charge(moved)[1].reserved == memory_charge(ledger)[0].reserved
    assert memory_charge(moved)[1].cells == Mask.of(1)
    assert renumbered(MANAGERS, moved, {0: 1, 1: 0}) == ledger

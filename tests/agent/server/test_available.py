"""Memory that other programs have: a warning when a pod is given it, and a condition."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.managers.policy import MemoryManagerPolicy, TopologyManagerPolicy
from agent.pods.quantity import Quantity
from sysfs.described import regular_host
from tests.agent.server.support import OTHER_UID, UID, in_loop, make_world, manifest, running

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents.admissions import AdmissionDocument, FitDocument
    from tests.agent.server.support import World

GIB: Final = 1 << 30
PAGES: Final = "hugepages-1Gi"
GIVEN: Final = (
    "the pod is given 2 GiB of hugepages-1Gi on node 0, which could give 1 GiB now; others use at "
    "least 3 GiB"
)
NEAR: Final = 'with the annotation agent.numawarden/near-nodes: "1" all of it is there'


def pages(uid: str, name: str = "web", annotation: str = "") -> bytes:
    text = manifest(name, uid).decode()
    text = text.replace("memory: 1Gi", f"memory: 1Gi, {PAGES}: 2Gi")
    return text.replace("spec:", f"  annotations: {{{annotation}}}\nspec:", 1).encode()


def free(world: World, node: int, pages: int, kib: int = 8 << 20) -> None:
    directory = world.config.agent.sysfs_root / f"sys/devices/system/node/node{node}"
    pool = directory / "hugepages/hugepages-1048576kB"
    (pool / "free_hugepages").write_text(f"{pages}\n")
    keys = {"MemTotal": 16 << 20, "MemFree": kib, "Active(file)": 0, "Inactive(file)": 0}
    lines = [f"Node {node} {key}: {size} kB" for key, size in {**keys, "SReclaimable": 0}.items()]
    (directory / "meminfo").write_text("\n".join((*lines, "")))


@pytest.fixture
def paged(tmp_path: Path) -> World:
    """Return a host with 4 huge pages of 1 GiB on each node, of which node 0 has one free."""
    world = make_world(tmp_path)
    world.change_host(regular_host(packages=2, cores_per_node=4, hugepages=[(GIB, 4)]))
    world.config = replace(
        world.config,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        system_reserved={"memory": Quantity.parse("1Gi")},
    )
    free(world, 0, 1)
    free(world, 1, 4)
    return world


@in_loop
async def test_a_pod_that_is_given_what_others_have_is_warned_of_and_hears_of_another_node(
    paged: World,
) -> None:
    async with running(paged) as agent:

        async def admit(
            pod: bytes, *, dry_run: bool = False, replace: bool = False, advice: bool = False
        ) -> AdmissionDocument:
            asked = partial(agent.client.admit, dry_run=dry_run, replace=replace, advice=advice)
            return await asyncio.to_thread(asked, pod)

        dry = await admit(pages(UID), dry_run=True, advice=True)
        assert dry.warnings == (GIVEN, NEAR)
        answer = await admit(pages(UID))
        assert answer.admitted
        assert answer.warnings == (GIVEN,)
        assert (await admit(pages(UID), advice=True)).warnings == ()  # admitted before
        instead = await admit(pages(OTHER_UID), dry_run=True, replace=True, advice=True)
        assert instead.warnings == (GIVEN, NEAR)
        annotated = pages(OTHER_UID, "near", 'agent.numawarden/near-nodes: "1"')
        assert (await admit(annotated, advice=True)).warnings == ()


@in_loop
async def test_a_pod_that_is_to_be_spread_goes_where_others_leave_it_enough(paged: World) -> None:
    free(paged, 0, 4)
    free(paged, 1, 0)  # node 1 has more CPUs, as one of node 0 is reserved
    spread = "agent.numawarden/placement: spread"
    async with running(paged) as agent:
        admit, fit = agent.client.admit, agent.client.fit
        found = await asyncio.to_thread(fit, pages(UID, annotation=spread), 1)
        assert (found.on, found.warnings) == ({"0": 1}, ())
        for dry_run in (True, False):
            answer = await asyncio.to_thread(
                partial(admit, pages(UID, annotation=spread), dry_run=dry_run)
            )
            assert answer.pod is not None
            assert (answer.pod.containers[0].mems, answer.warnings) == ("0", ())


@in_loop
async def test_a_plan_says_what_a_pod_that_is_to_be_spread_would_get(paged: World) -> None:
    free(paged, 0, 4)
    free(paged, 1, 0)
    body = pages(UID, annotation="agent.numawarden/placement: spread")
    async with running(paged) as agent:
        found = await asyncio.to_thread(agent.client.plan, body)
        assert (found.fits, found.nodes) == (True, "0")


@in_loop
async def test_fit_says_which_copy_would_lack_memory(paged: World) -> None:
    async with running(paged) as agent:

        async def fit(most: int) -> FitDocument:
            return await asyncio.to_thread(agent.client.fit, pages(UID), most)

        assert (await fit(1)).warnings == (GIVEN, NEAR)
        free(paged, 0, 3)
        assert (await fit(1)).warnings == ()
        found = await fit(9)
        assert found.count == 4
        [said] = found.warnings
        assert said == (
            "2 of these pods are given 4 GiB of hugepages-1Gi on node 0, which could give 3 GiB "
            "now; others use at least 1 GiB"
        )
        free(paged, 0, 4, 1 << 20)
        assert (await fit(1)).warnings == ()
        [said] = (await fit(9)).warnings
        assert "given 2 GiB of memory on node 0, which could give 1 GiB now" in said


@in_loop
async def test_pages_that_a_pod_has_yet_to_take_and_others_use_are_a_condition(
    paged: World,
) -> None:
    async with running(paged) as agent:
        await agent.ask(agent.client.admit, pages(UID))

        async def found() -> list[tuple[str, str]]:
            await agent.ask(agent.client.reconcile)
            status = await asyncio.to_thread(agent.client.status)
            assert all(each.uid == UID for each in status.conditions)
            return [(each.type, each.message) for each in status.conditions]

        [(kind, message)] = await found()
        assert kind == "MemoryAvailable"
        assert message == (
            "pod shop/web was given memory that others use: pods have yet to take 2 GiB of "
            "hugepages-1Gi on node 0, which could give 1 GiB now"
        )
        paged.kernel.use(f"kubepods/pod{UID}", "hugetlb.1GB.max", GIB)
        assert await found() == []  # the page that is free is the one it has yet to take
        paged.kernel.use(f"kubepods/pod{UID}", "hugetlb.1GB.max", 0)
        free(paged, 0, 2)
        assert await found() == []
        free(paged, 0, 0)
        assert await found()
        await agent.ask(agent.client.remove, UID)
        status = await asyncio.to_thread(agent.client.status)
        assert status.conditions == ()


@in_loop
async def test_memory_that_a_pod_has_yet_to_take_and_others_use_is_a_condition(
    paged: World,
) -> None:
    free(paged, 0, 4, kib=GIB // 1024 // 2)
    read, held = paged.kernel.read, "anon N0=0 N1=0"

    def reading(path: str, file: str) -> str:
        # What was read of files can be reclaimed, shared memory cannot.
        mine = path == f"kubepods/pod{UID}" and file == "memory.numa_stat"
        reclaimable = f"file N0={GIB} N1=0\nslab_reclaimable N0={GIB} N1=0\n"
        return f"{held}\n{reclaimable}" if mine else read(path, file)

    paged.kernel.read = reading  # type: ignore[method-assign]
    async with running(paged) as agent:
        await agent.ask(agent.client.admit, manifest())

        async def found() -> list[tuple[str, str, str]]:
            await agent.ask(agent.client.reconcile)
            status = await asyncio.to_thread(agent.client.status)
            return [(each.type, each.message, each.remedy) for each in status.conditions]

        [(kind, message, remedy)] = await found()
        assert (kind, remedy) == ("MemoryAvailable", "end the program that uses it")
        assert message == (
            "pod shop/web was given memory that others use: pods have yet to take 1 GiB of memory "
            "on node 0, which could give 512 MiB now"
        )
        kinds = ("anon", "shmem", "pagetables", "slab_unreclaimable")
        for taken in range(1, 5):
            assert await found()
            held = "\n".join(f"{kind} N0={GIB // 8} N1=0" for kind in kinds[:taken])
        assert await found() == []

"""What is plugged in from outside the packages goes the whole way like what is built in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from agent.cluster.plugs import PLUGS
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.registry import MANAGERS
from agent.pods.manifest import load_pod
from agent.pods.model import ManifestError
from agent.server.lifecycle import SOURCE_PERIOD
from agent.server.loops import REOPEN_SECONDS
from agent.sources.source import SourceEntry, SourceReading
from agent.state.store import peek
from tests.agent.managers.toy_manager import LANE, ToyManager
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    manifest,
    next_event,
    running,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from agent.server.plugs import SourceInputs
    from agent.sources.source import PodSource
    from tests.agent.server.support import Running, World

KEY: Final = "slot 1"
POD: Final = f"kubepods/pod{UID}"


@dataclass
class ToySource:
    """Asks for the pods that a test puts into its slots."""

    name: str = "toy"
    removal: str = "empty that slot"
    slots: dict[str, bytes] = field(default_factory=dict)
    #: Why its stream of changes breaks when it is opened; "" for a sound one.
    breaks: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def covers(self, key: str) -> bool:
        return key.startswith("slot ")

    def resume(self, keys: Collection[str]) -> None:
        assert all(map(self.covers, keys))

    def read(self) -> SourceReading:
        return SourceReading(tuple(self._entry(key, raw) for key, raw in self.slots.items()))

    @staticmethod
    def _entry(key: str, raw: bytes) -> SourceEntry:
        try:
            return SourceEntry(key, load_pod(raw, key))
        except ManifestError as error:
            return SourceEntry(key, error=error)

    async def changes(self) -> AsyncIterator[None]:
        if self.breaks:
            raise RuntimeError(self.breaks)
        while True:
            await self.changed.wait()
            self.changed.clear()
            yield

    def put(self, key: str, content: bytes) -> None:
        self.slots[key] = content
        self.changed.set()

    def empty(self, key: str) -> None:
        del self.slots[key]
        self.changed.set()


def plug_in(world: World, *sources: ToySource) -> None:
    """Register toy sources beside those that are built in."""

    def made(source: PodSource, _inputs: SourceInputs) -> PodSource:
        return source

    world.sources = (*PLUGS.sources, *(partial(made, source) for source in sources))


@pytest.fixture
def toy(world: World) -> ToySource:
    toy = ToySource()
    plug_in(world, toy)
    return toy


async def sources_of(agent: Running) -> dict[str, str]:
    pods = await asyncio.to_thread(agent.client.pods)
    return {pod.uid: f"{pod.source_name}: {pod.source}" for pod in pods}


async def entries_of(agent: Running) -> dict[tuple[str, str], str]:
    status = await asyncio.to_thread(agent.client.status)
    return {(entry.source, entry.file): entry.state for entry in status.manifests}


def metric(agent: Running, line: str) -> str:
    text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    (found,) = (each for each in text.splitlines() if each.startswith(f"{line} "))
    return found.removeprefix(f"{line} ")


async def manifests_settled(agent: Running, entries: dict[tuple[str, str], str]) -> None:
    """Wait until what has become of all entries was reported, which follows the last event."""
    while await entries_of(agent) != entries:  # noqa: ASYNC110  # no event says so
        await asyncio.sleep(0)


@in_loop
async def test_what_a_toy_manager_allocates_to_the_pod_of_a_toy_source_goes_the_whole_way(
    world: World, toy: ToySource
) -> None:
    world.managers = (ToyManager({1: 3}), *MANAGERS)
    async with running(world) as agent:
        with agent.controller.events.watch() as watcher:
            toy.put(KEY, with_lanes(2))
            assert (await next_event(watcher, "PodAdmitted")).uid == UID
        await manifests_settled(agent, {("toy", KEY): "admitted"})
        assert await sources_of(agent) == {UID: f"toy: {KEY}"}
        # Decision and checkpoint: the CPUs are those of the node that has the lanes.
        ledger = agent.controller.state.ledger
        assert ledger.allocations[UID].containers[0].part("lanes") == ["1.0", "1.1"]
        assert str(exclusive_cpus(ledger)) == "4,12"
        saved = peek(world.config.agent.state_directory)
        assert saved is not None
        assert saved.ledger.allocations == ledger.allocations
        assert world.cpus_of(POD) == "4,12"
        assert metric(agent, 'numawarden_manifests{state="admitted"}') == "1.0"
        assert metric(agent, 'toy_lanes{numa_node="1",state="taken"}') == "2.0"
        assert metric(agent, "toy_lanes_taken_total") == "2.0"
        assert metric(agent, f'numawarden_allocatable{{resource="{LANE}"}}') == "3.0"
        assert metric(agent, 'numawarden_invalid_allocations{rule="lane gone"}') == "0.0"
        (pod,) = await asyncio.to_thread(agent.client.pods)
        assert pod.containers[0].others == {"lanes": ["1.0", "1.1"]}
        rejected = await asyncio.to_thread(agent.client.admit, with_lanes(2, OTHER_UID))
        assert rejected.rejection is not None
        assert (rejected.rejection.reason, rejected.rejection.resource) == (f"OutOf{LANE}", LANE)
    async with running(world) as agent:
        assert agent.controller.state.ledger == ledger
        assert world.cpus_of(POD) == "4,12"
        assert metric(agent, 'toy_lanes{numa_node="1",state="taken"}') == "2.0"
        assert (await asyncio.to_thread(agent.client.admit, with_lanes(1, OTHER_UID))).admitted
    world.managers = (ToyManager({1: 1}), *MANAGERS)
    async with running(world) as agent:
        # A lane that is gone is reported, and stays with its pod until that ends.
        (pod,) = (each for each in await asyncio.to_thread(agent.client.pods) if each.uid == UID)
        assert [(each.rule, each.message) for each in pod.invalid] == [
            ("lane gone", "has lane 1.1, which is gone")
        ]
        assert metric(agent, 'numawarden_invalid_allocations{rule="lane gone"}') == "2.0"
    world.sources = PLUGS.sources
    async with running(world) as agent:
        # A source that is no longer registered leaves its pods to the API.
        assert await sources_of(agent) == {UID: f"toy: {KEY}", OTHER_UID: "api: api"}
        for uid in (UID, OTHER_UID):
            await agent.ask(agent.client.remove, uid)
        assert agent.controller.state.ledger.parts["lanes"] == set()
        assert metric(agent, 'toy_lanes{numa_node="1",state="free"}') == "1.0"


def with_lanes(count: int, uid: str = UID) -> bytes:
    amounts = "memory: 1Gi"
    return manifest(uid=uid).replace(amounts.encode(), f"{amounts}, {LANE}: {count}".encode())


@pytest.mark.parametrize("first", [True, False])
@in_loop
async def test_a_second_source_that_asks_for_a_pod_gets_one_error_that_names_the_first(
    world: World, toy: ToySource, *, first: bool
) -> None:
    other = ToySource("other")
    toy.put(KEY, manifest())
    async with running(world):
        pass
    plug_in(world, *((toy, other) if first else (other, toy)))
    other.put("slot 7", manifest())
    async with running(world) as agent:
        with agent.controller.events.watch() as watcher:
            assert await entries_of(agent) == {
                ("toy", KEY): "admitted",
                ("other", "slot 7"): "conflict",
            }
            status = await asyncio.to_thread(agent.client.status)
            (line,) = (line for line in status.condition_lines() if "slot" in line)
            assert line == (
                f"manifest slot 7 is in conflict: PodConflict: pod shop/web (uid {UID}) belongs to "
                "slot 1 of the source toy"
            )
            assert metric(agent, 'numawarden_admissions_total{result="conflict"}') == "1.0"
            assert await sources_of(agent) == {UID: f"toy: {KEY}"}
            # The second has the pod once the first no longer asks for it.
            toy.empty(KEY)
            await next_event(watcher, "PodRemoved")
            other.changed.set()
            await next_event(watcher, "PodAdmitted")
        assert await sources_of(agent) == {UID: "other: slot 7"}


@in_loop
async def test_a_source_whose_stream_breaks_is_read_from_time_to_time_and_opened_again(
    world: World, toy: ToySource
) -> None:
    directory = world.manifest_directory()
    toy.breaks = "a mistake in the toy"
    subject = "changes of toy"
    async with running(world) as agent:
        conditions = agent.controller.state.observed.conditions
        await until(lambda: subject in conditions)
        assert "a mistake in the toy" in conditions[subject]
        with agent.controller.events.watch() as watcher:
            toy.put(KEY, manifest())
            event = next_event(watcher, "PodAdmitted")
            assert (await world.clock.passing(SOURCE_PERIOD, event)).uid == UID
            (directory / "db.yaml").write_bytes(manifest("db", OTHER_UID))
            assert (await next_event(watcher, "PodAdmitted")).uid == OTHER_UID
        toy.breaks = ""
        gone = until(lambda: subject not in conditions)
        await world.clock.passing(REOPEN_SECONDS, gone)


@pytest.mark.parametrize("name", ["toy", "api"])
@in_loop
async def test_two_sources_of_one_name_are_a_mistake_of_the_build(world: World, name: str) -> None:
    plug_in(world, ToySource(), ToySource(name))
    with pytest.raises(ValueError, match=f"two sources of pods called '{name}'"):
        async with running(world):
            pass
    with pytest.raises(ValueError, match="needs a key"):
        SourceEntry("", load_pod(manifest(), "test"))

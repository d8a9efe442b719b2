from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.cluster.kubelet.device_checkpoint import DeviceCheckpoint
from agent.cluster.kubelet.pods import PodsUnavailableError, SpecificationUnknownError
from agent.cluster.kubelet.pods_api import EventType, PodsApi, read_messages
from agent.cluster.kubelet.source import CONFIRM_PERIOD, LONGEST_PAUSE, KubeletPods
from agent.cluster.kubelet.tracked import ALONE_SECONDS, MISSING_SECONDS
from agent.cluster.kubelet.ways import SYNC_SECONDS, KubeletDeadlines, KubeletWays, patiently
from agent.pods.changes import with_resources
from agent.pods.model import PodIdentity
from agent.rpc.calls import CallError
from tests.agent.server.support import OTHER_UID, UID, FakeClock, until
from tests.fakes.kubelet.device_shares import write_device_checkpoint
from tests.fakes.pods_api import FakePodsApi, container, pod_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from agent.cluster.kubelet.pods import ReportedPods
    from agent.pods.model import Pod
    from agent.sources.source import SourceReading

#: Longer than any answer takes, on however busy a machine; a call that hangs ends after the second.
PATIENT = KubeletDeadlines(watch=60.0, listing=60.0)
HURRIED = KubeletDeadlines(watch=0.05, listing=0.05)
LONG = 60.0


@dataclass
class Endpoint:
    """The kubelet's endpoint; `answer` None: it does not answer. `free`: answers do not wait."""

    way: str = "kubelet endpoint (here)"
    answer: dict[str, bytes] | None = None
    asked: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.free.set()

    async def pods(self, seconds: float) -> ReportedPods:
        assert seconds > 0
        self.asked += 1
        answer = self.answer
        await self.free.wait()
        if answer is None:
            raise PodsUnavailableError(self.way, "HTTP status 403")
        return read_messages(answer.values())

    async def close(self) -> None:
        """Close nothing."""


NIC, OPT_IN = "example.com/nic", "numawarden.dev/exclusive"


class Host:
    """A kubelet, its files, the cgroups of its pods, and the source that follows it.

    Cgroups in `idle` have no process.
    """

    def __init__(
        self, directory: Path, endpoint: Endpoint | None, deadlines: KubeletDeadlines
    ) -> None:
        self.kubelet, self.clock = FakePodsApi(directory), FakeClock()
        self.cgroups, self.idle = set[str](), set[str]()
        self.changes = 0
        ways = KubeletWays(PodsApi(directory), endpoint, deadlines)  # type: ignore[arg-type]  # a fake
        # What the kubelet's plugins gave is in its file, which may not be there yet.
        awaits = DeviceCheckpoint(directory, OPT_IN).awaits
        self.source = KubeletPods(
            ways, self.clock, self.shown, pod_level=True, awaits=awaits, same_boot=True
        )

    def shown(self, doubted: Collection[str]) -> set[str]:
        return self.cgroups - (self.idle & set(doubted))

    async def follow(self) -> None:
        async for _ in self.source.changes():
            self.changes += 1

    def read(self) -> SourceReading:
        return self.source.read()

    def entries(self) -> dict[str, Pod | None]:
        return {entry.key: entry.pod for entry in self.read().entries}

    def knows(self, *uids: str) -> bool:
        return sorted(self.entries()) == sorted(f"pods/{uid}" for uid in uids)

    def said(self) -> str:
        return "; ".join(self.read().conditions)

    async def until_said(self, words: str) -> None:
        while words not in self.said():
            self.clock.advance(LONGEST_PAUSE)
            await asyncio.sleep(0)

    async def synced(self) -> None:
        await until(lambda: self.in_use)

    def removed(self) -> set[str]:
        return {key.removeprefix("pods/") for key in self.read().removed}

    def runs(self, uid: str) -> None:
        self.cgroups.add(uid)
        self.source.sandbox_started(uid, f"{uid}-1", "shop/web")

    @property
    def in_use(self) -> bool:
        return self.source._in_use.name == self.source._ways.api.way

    async def connect(self) -> None:
        while not self.in_use:
            self.clock.advance(LONGEST_PAUSE if self._waiting(2) else 0)
            await asyncio.sleep(0)

    async def confirm(self, seconds: float = CONFIRM_PERIOD) -> None:
        """Let time pass until a list is asked for and answered again."""
        await until(lambda: self._waiting(1))
        before = self.kubelet.calls.count("ListPods")
        self.clock.advance(seconds)
        await until(lambda: self.kubelet.calls.count("ListPods") > before and self._waiting(1))

    def _waiting(self, tasks: int) -> bool:
        return len(self.clock._sleepers) >= tasks


@asynccontextmanager
async def followed(
    directory: Path,
    *,
    deadlines: KubeletDeadlines = PATIENT,
    endpoint: Endpoint | None = None,
    started: bool = True,
    pods: dict[str, bytes] | None = None,
) -> AsyncIterator[Host]:
    host = Host(directory, endpoint, deadlines)
    host.kubelet.pods.update(pods or {})
    if started:
        await host.kubelet.start()
    following = asyncio.create_task(host.follow())
    try:
        yield host
    finally:
        following.cancel()
        await asyncio.wait((following,))
        assert following.cancelled()
        await host.kubelet.stop()


async def test_the_pods_of_the_kubelet_are_entries_by_uid(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await until(lambda: host.knows(UID))
        host.kubelet.add(OTHER_UID, pod_message(OTHER_UID, "db", init=(container("wait"),)))
        await until(lambda: host.knows(UID, OTHER_UID))
        pod = host.entries()[f"pods/{OTHER_UID}"]
        assert pod is not None
        assert (pod.uid, pod.name, pod.namespace) == (OTHER_UID, "db", "shop")
        assert [each.name for each in pod.all_containers()] == ["wait", "main"]
        assert await host.source.ask_for(OTHER_UID, LONG) is pod
        assert "GetPod" not in host.kubelet.calls
        reading = host.read()
        assert (reading.complete, reading.conditions) == (False, ())
        assert host.source.covers(f"pods/{UID}")
        assert not host.source.covers("/etc/kubernetes/manifests/web.yaml")


def with_nic(uid: str) -> bytes:
    asked = container(asked=f"cpu=2 memory=1Gi {NIC}=1 {OPT_IN}=1")
    return pod_message(uid, phase="Pending", running=False, containers=(asked,))


async def test_a_pod_becomes_an_entry_once_it_has_its_devices(tmp_path: Path) -> None:
    """The kubelet lists a pod before it admits it, and it is the admission that gives devices."""
    write_device_checkpoint(tmp_path, {}, NIC, OPT_IN)
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await until(lambda: host.knows(UID))
        host.kubelet.pods[OTHER_UID] = with_nic(OTHER_UID)
        assert await host.source.ask_for(OTHER_UID, LONG) is not None
        assert host.knows(UID)
        # The agent's own resource is given while the agent decides.
        write_device_checkpoint(tmp_path, {OTHER_UID: {"main": {NIC: {1: ["n"]}}}}, NIC, OPT_IN)
        assert host.knows(UID, OTHER_UID)


@pytest.mark.parametrize("how", ["cgroup", "sandbox", "former allocation", "no such plugin"])
async def test_an_admitted_pod_waits_for_no_device(tmp_path: Path, how: str) -> None:
    write_device_checkpoint(tmp_path, {}, NIC)
    async with followed(tmp_path) as host:
        host.kubelet.pods[UID] = with_nic(UID)
        assert await host.source.ask_for(UID, LONG) is not None
        assert host.knows()
        if how == "cgroup":
            host.cgroups.add(UID)
        elif how == "sandbox":
            host.source.sandbox_started(UID, f"{UID}-1")
        elif how == "former allocation":
            host.source.resume([f"pods/{UID}"])
        else:
            write_device_checkpoint(tmp_path, {})
        assert host.knows(UID)


async def test_a_kubelet_that_lists_nothing_after_its_restart_ends_no_pod(tmp_path: Path) -> None:
    """INITIAL_SYNC_COMPLETE with no pods; they are ADDED 9 s later, and not all at once."""
    pods = {uid: pod_message(uid) for uid in (UID, OTHER_UID)}
    async with followed(tmp_path, pods=pods) as host:
        await host.synced()
        for uid in pods:
            host.runs(uid)
        await host.kubelet.stop()
        host.kubelet.pods.clear()
        await host.kubelet.start()
        await until(lambda: not host.in_use)
        await host.connect()
        host.clock.advance(9)
        assert not host.removed()
        seen = host.changes
        host.kubelet.add(UID, pods[UID])
        await until(lambda: host.changes > seen)
        for _ in range(3):
            await host.confirm()
            assert not host.removed()
        host.kubelet.add(OTHER_UID, pods[OTHER_UID])
        host.clock.advance(10 * ALONE_SECONDS)
        assert host.knows(*pods)
        assert not host.removed()


async def test_a_pod_that_ended_while_the_agent_was_away_is_removed(tmp_path: Path) -> None:
    async with followed(tmp_path, started=False) as host:
        host.cgroups.add(OTHER_UID)
        host.source.resume([f"pods/{UID}", f"pods/{OTHER_UID}"])
        assert not host.removed()
        await host.kubelet.start()
        await host.connect()
        # Missing from the list, and no cgroup.
        assert host.removed() == {UID}
        await host.confirm(MISSING_SECONDS)
        # Lists are not enough against a cgroup, unless it has no process.
        host.clock.advance(10 * MISSING_SECONDS)
        assert host.removed() == {UID}
        host.idle.add(OTHER_UID)
        assert host.removed() == {UID, OTHER_UID}


async def test_a_resize_keeps_the_pod_as_it_was_and_is_a_condition(tmp_path: Path) -> None:
    first = pod_message(UID, containers=(container("app", "cpu=2"), container("aux", "cpu=1")))
    async with followed(tmp_path, pods={UID: first}) as host:
        await until(lambda: host.knows(UID))
        before = host.entries()
        resized = (container("app", "cpu=3"), container("aux", "cpu=1"))
        host.kubelet.add(UID, pod_message(UID, containers=resized))
        await until(lambda: bool(host.read().conditions))
        assert host.entries() == before
        (condition,) = host.read().conditions
        assert condition == (
            "pod shop/web: its specification changed (container app) and its allocation did not; "
            "delete and create the pod to have it decided again"
        )
        host.kubelet.add(UID, first)
        await until(lambda: not host.read().conditions)


async def test_the_specification_that_a_pod_was_resized_to_is_its_own(tmp_path: Path) -> None:
    first = pod_message(UID, containers=(container("app", "cpu=2"),))
    async with followed(tmp_path, pods={UID: first}) as host:
        await until(lambda: host.knows(UID))
        pod = host.source.specification(UID)
        assert pod is not None
        host.kubelet.add(UID, pod_message(UID, containers=(container("app", "cpu=3"),)))
        await until(lambda: bool(host.read().conditions))
        host.source.resized(with_resources(pod, "app", {"cpu": 3000}))
        assert not host.read().conditions
        host.kubelet.add(UID, first)
        await until(lambda: bool(host.read().conditions))
        host.source.resized(replace(pod, uid=OTHER_UID))
        assert not host.knows(OTHER_UID), "an unknown pod changes nothing"


async def test_bytes_that_are_no_pod_are_a_condition(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await host.synced()
        host.kubelet.send(EventType.MODIFIED, b"\xff\xff")
        host.kubelet.add(OTHER_UID, pod_message(OTHER_UID))
        await until(lambda: host.knows(UID, OTHER_UID))
        (condition,) = host.read().conditions
        assert condition.startswith("a pod of the kubelet cannot be read: it is not a pod")


async def test_an_unreadable_pod_of_a_list_makes_no_other_pod_missing(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={"bad": b"\xff\xff"}) as host:
        host.source.resume([f"pods/{UID}"])
        await host.synced()
        assert "1 pods of the kubelet cannot be read, the first: it is not a pod" in host.said()
        assert not host.removed()


async def test_a_watch_that_breaks_is_opened_again_and_its_pods_are_kept(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await host.synced()
        with capture_logs() as logs:
            host.kubelet.break_watches()
            await until(lambda: not host.kubelet.watched)
            host.kubelet.pods[OTHER_UID] = pod_message(OTHER_UID)
            assert host.knows(UID)
            await until(lambda: not host.in_use)
            await host.connect()
            assert host.knows(UID, OTHER_UID)
        assert "kubelet pods unavailable" in {line["event"] for line in logs}


async def test_a_pod_that_is_deleted_while_a_list_is_under_way_ends(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await host.synced()
        host.runs(UID)
        before = host.kubelet.calls.count("ListPods")
        host.kubelet.lists_pass.clear()
        listing = asyncio.create_task(host.source.list_now(LONG))
        await until(lambda: host.kubelet.calls.count("ListPods") > before)
        host.clock.advance(1)
        host.kubelet.delete(UID)
        await until(lambda: host.source.ending == {UID})
        host.kubelet.lists_pass.set()
        assert await listing is not None
        assert host.source.ending == {UID}
        host.clock.advance(ALONE_SECONDS)
        assert host.removed() == {UID}


async def test_the_endpoint_is_asked_until_the_pods_api_answers(tmp_path: Path) -> None:
    endpoint = Endpoint(answer={UID: pod_message(UID)})
    async with followed(tmp_path, endpoint=endpoint, started=False) as host:
        listed = await host.source.list_now(LONG)
        assert [pod.uid for pod in listed or ()] == [UID]
        await until(lambda: host.knows(UID) and not host.said())
        endpoint.answer = {UID: pod_message(UID), OTHER_UID: pod_message(OTHER_UID)}
        while not host.knows(UID, OTHER_UID):
            host.clock.advance(LONGEST_PAUSE)
            await asyncio.sleep(0)
        host.kubelet.pods.update(endpoint.answer)
        await host.kubelet.start()
        await host.connect()
        asked = endpoint.asked
        host.clock.advance(10 * LONGEST_PAUSE)
        await asyncio.sleep(0)
        assert endpoint.asked == asked


async def test_a_pods_api_that_hangs_is_a_condition_beside_the_endpoint(tmp_path: Path) -> None:
    endpoint = Endpoint(answer={UID: pod_message(UID)})
    async with followed(tmp_path, endpoint=endpoint, deadlines=HURRIED, started=False) as host:
        host.kubelet.hanging = True
        await host.kubelet.start()
        await host.until_said("pods of the kubelet are read over")
        await until(lambda: host.knows(UID))
        (condition,) = host.read().conditions
        assert condition.startswith("pods of the kubelet are read over the kubelet endpoint")
        assert "no event within 0.05 s" in condition


NOT_READ = CallError("FAILED_PRECONDITION", "sources are not synchronized")


async def test_a_kubelet_that_has_not_read_its_sources_is_waited_for(tmp_path: Path) -> None:
    """v1.37 answers so after each start; a condition comes only if that does not end."""
    async with followed(tmp_path, pods={UID: pod_message(UID)}, started=False) as host:
        host.kubelet.failing = NOT_READ
        await host.kubelet.start()
        await until(lambda: "WatchPods" in host.kubelet.calls and host._waiting(2))
        assert not host.said()
        before = len(host.kubelet.calls)
        host.clock.advance(SYNC_SECONDS)
        await until(lambda: len(host.kubelet.calls) > before and bool(host.said()))
        assert "not synchronized" in host.said()
        assert "whether it reaches the API server" in host.said()
        host.kubelet.failing = None
        await host.connect()
        assert host.knows(UID)
        assert not host.said()
        # The wait begins again with the kubelet's next start.
        host.kubelet.failing = NOT_READ
        host.kubelet.break_watches()
        await until(lambda: not host.in_use)
        await until(lambda: host._waiting(2))
        before = len(host.kubelet.calls)
        host.clock.advance(LONGEST_PAUSE)
        await until(lambda: len(host.kubelet.calls) > before and host._waiting(2))
        assert not host.said()


async def test_a_pods_api_whose_gate_is_off_is_a_condition(tmp_path: Path) -> None:
    """v1.37 serves the socket with the gate off, too, and answers errors."""
    endpoint = Endpoint(answer={UID: pod_message(UID)})
    async with followed(tmp_path, endpoint=endpoint, started=False) as host:
        host.kubelet.failing = CallError("UNIMPLEMENTED", "unknown service v1alpha1.Pods")
        await host.kubelet.start()
        await host.until_said("read over the kubelet endpoint")
        assert "UNIMPLEMENTED" in host.said()
        assert "featureGates: {PodsAPI: true}" in host.said()


async def test_calls_that_are_too_many_are_repeated_more_and_more_seldom_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses, time = list[float](), 0.0

    async def sleep(seconds: float) -> None:
        nonlocal time
        pauses.append(seconds)
        time += seconds

    async def rejected() -> None:
        raise PodsUnavailableError("Pods API", "rate limit", code="RESOURCE_EXHAUSTED")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time)
    with pytest.raises(PodsUnavailableError, match="rate limit"):
        await patiently(rejected, 2.0)
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]


async def test_a_pods_api_that_never_completes_its_list_is_not_used(tmp_path: Path) -> None:
    async with followed(tmp_path, deadlines=HURRIED, started=False) as host:
        host.kubelet.synced = False
        await host.kubelet.start()
        while not any("no event" in each for each in host.read().conditions):
            host.clock.advance(LONGEST_PAUSE)
            await asyncio.sleep(0)


async def test_without_any_way_the_condition_names_all_that_were_tried(tmp_path: Path) -> None:
    async with followed(tmp_path, endpoint=Endpoint(), started=False) as host:
        await until(lambda: bool(host.read().conditions))
        await until(lambda: "HTTP status" in host.read().conditions[0])
        (condition,) = host.read().conditions
        for words in (
            "pods-api.sock): there is no such socket",
            "kubelet endpoint (here): HTTP status 403",
            "enable the kubelet's feature gate PodsAPI",
        ):
            assert words in condition


async def test_a_pod_with_a_sandbox_that_no_way_gives_is_an_error(tmp_path: Path) -> None:
    async with followed(tmp_path) as host:
        host.source.sandbox_started(UID, "s", "shop/web")
        (entry,) = host.read().entries
        assert isinstance(entry.error, SpecificationUnknownError)
        assert str(entry.error).startswith("specification unknown: the pod has a sandbox")
        assert entry.identity == PodIdentity(UID, "web", "shop")
        # And it ends as others do.
        host.source.sandbox_removed(UID, "s")
        host.clock.advance(ALONE_SECONDS)
        assert host.removed() == {UID}


async def test_a_former_pod_is_no_error_while_the_kubelet_is_away(tmp_path: Path) -> None:
    async with followed(tmp_path, started=False) as host:
        host.source.resume([f"pods/{UID}"])
        host.runs(UID)
        host.clock.advance(10 * ALONE_SECONDS)
        assert host.knows()
        assert not host.removed()


async def test_cgroups_that_cannot_be_read_are_a_condition_and_no_evidence(tmp_path: Path) -> None:
    def unreadable(_: object) -> set[str]:
        raise OSError(5, "Input/output error")

    ways = KubeletWays(PodsApi(tmp_path), None)
    awaits = DeviceCheckpoint(tmp_path).awaits
    source = KubeletPods(
        ways, FakeClock(), unreadable, pod_level=True, awaits=awaits, same_boot=True
    )
    source.resume([f"pods/{UID}"])
    reading = source.read()
    assert reading.removed == frozenset()
    assert reading.conditions == (
        "the cgroups of the kubelet's pods cannot be read: Input/output error",
    )


async def test_a_pod_that_is_unknown_or_does_not_come_in_time_is_none(tmp_path: Path) -> None:
    endpoint = Endpoint(answer={})
    async with followed(tmp_path, endpoint=endpoint) as host:
        assert await host.source.ask_for(UID, LONG) is None
        assert endpoint.asked > 0
        endpoint.answer = {UID: pod_message(UID)}
        host.kubelet.hanging = True
        endpoint.free.clear()
        assert await host.source.ask_for(UID, 0.05) is None


async def test_what_is_too_many_calls_is_asked_for_again(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await host.synced()
        host.kubelet.failing = CallError("RESOURCE_EXHAUSTED", "rate limit")
        host.kubelet.pods[OTHER_UID] = pod_message(OTHER_UID)
        calls = host.kubelet.calls
        former = calls.count("ListPods")
        asking = asyncio.create_task(host.source.ask_for(OTHER_UID, LONG))
        listing = asyncio.create_task(host.source.list_now(LONG))
        await until(lambda: calls.count("GetPod") > 1 and calls.count("ListPods") > former + 1)
        host.kubelet.failing = None
        assert await asking is not None
        assert await listing


async def test_one_answer_of_the_endpoint_serves_all_who_ask(tmp_path: Path) -> None:
    uids = [f"pod-{number}" for number in range(50)]
    endpoint = Endpoint()
    async with followed(tmp_path, endpoint=endpoint, started=False) as host:
        await until(lambda: endpoint.asked > 0)
        endpoint.asked = 0
        endpoint.free.clear()
        endpoint.answer = {uid: pod_message(uid) for uid in uids}
        assert await host.source.ask_for(uids[0], 0.01) is None
        asking = [asyncio.create_task(host.source.ask_for(uid, LONG)) for uid in uids]
        await asyncio.sleep(0)
        endpoint.free.set()
        assert all(await asyncio.gather(*asking))
        assert endpoint.asked == 1


async def test_an_answer_from_before_the_pod_came_is_not_the_last_word(tmp_path: Path) -> None:
    endpoint = Endpoint(answer={})
    async with followed(tmp_path, endpoint=endpoint, started=False) as host:
        await until(lambda: endpoint.asked > 0)
        endpoint.free.clear()
        first = asyncio.create_task(host.source.ask_for(OTHER_UID, LONG))
        await until(lambda: endpoint.asked > 1)
        endpoint.answer = {UID: pod_message(UID)}
        second = asyncio.create_task(host.source.ask_for(UID, LONG))
        await asyncio.sleep(0)
        endpoint.free.set()
        assert await first is None
        assert await second is not None


async def test_garbage_for_one_pod_is_an_error_of_that_pod(tmp_path: Path) -> None:
    async with followed(tmp_path) as host:
        await until(lambda: host.kubelet.calls.count("ListPods") > 0)
        host.kubelet.pods[UID] = b"\xff\xff"
        assert await host.source.ask_for(UID, LONG) is None
        (entry,) = host.read().entries
        assert "not a pod" in str(entry.error)


async def test_all_pods_that_are_to_run_are_listed_now_and_are_entries(tmp_path: Path) -> None:
    pods = {
        UID: pod_message(UID, phase="Pending", running=False),
        OTHER_UID: pod_message(OTHER_UID, phase="Failed", running=False),
        "bad": pod_message("bad", containers=(container("app", "cpu=two"),)),
    }
    async with followed(tmp_path) as host:
        await host.synced()
        host.kubelet.pods.update(pods)
        listed = await host.source.list_now(LONG)
        assert listed is not None
        assert [pod.uid for pod in listed] == [UID]
        assert host.knows(UID, "bad")
        assert ["two" in str(each.error) for each in host.read().entries] == [False, True]


async def test_a_list_that_does_not_come_in_time_or_at_all_is_none(tmp_path: Path) -> None:
    async with followed(tmp_path, started=False) as host:
        assert await host.source.list_now(LONG) is None
        await host.kubelet.start()
        await host.connect()
        host.kubelet.hanging = True
        assert await host.source.list_now(0.05) is None


async def test_pods_that_may_have_ended_are_read_again(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await host.synced()
        host.runs(UID)
        host.read()
        host.kubelet.delete(UID)
        await until(lambda: bool(host.source.ending))
        before = host.changes
        await until(lambda: host._waiting(1))
        host.clock.advance(CONFIRM_PERIOD)
        await until(lambda: host.changes > before)
        host.clock.advance(ALONE_SECONDS)
        assert host.removed() == {UID}


@pytest.mark.parametrize("failing", [NOT_READ, CallError("RESOURCE_EXHAUSTED", "rate"), None])
async def test_a_former_pod_may_have_ended_until_the_list(
    tmp_path: Path, failing: CallError | None
) -> None:
    pods = {UID: pod_message(UID)}
    async with followed(tmp_path, pods=pods, started=False) as host:
        host.cgroups |= {UID, OTHER_UID}
        host.source.resume([f"pods/{UID}", f"pods/{OTHER_UID}"])
        host.read()
        host.kubelet.failing, host.kubelet.hanging = failing, failing is None
        await host.kubelet.start()
        assert await host.source.list_now(0.05) is None
        assert host.source.ending == {UID, OTHER_UID}
        # A way that fails later, the file's too, takes back what a list said.
        hung = failing is None
        await until(lambda: host._waiting(2) or (hung and "WatchPods" in host.kubelet.calls))
        host.kubelet.failing, host.kubelet.hanging = None, False
        assert await host.source.list_now(LONG)
        assert host.source.ending == {OTHER_UID}


@pytest.mark.parametrize("gate", ["absent", "UNIMPLEMENTED"])
async def test_no_pod_is_waited_for_that_no_list_can_confirm(tmp_path: Path, gate: str) -> None:
    async with followed(tmp_path, started=False) as host:
        host.cgroups.add(UID)
        host.source.resume([f"pods/{UID}"])
        host.read()
        if gate != "absent":
            host.kubelet.failing = CallError(gate, "unknown service v1alpha1.Pods")
            await host.kubelet.start()
        assert await host.source.list_now(LONG) is None
        assert host.source.ending == frozenset()


async def test_pods_may_have_ended_while_the_kubelet_was_away(tmp_path: Path) -> None:
    async with followed(tmp_path, pods={UID: pod_message(UID)}) as host:
        await host.synced()
        host.runs(UID)
        host.read()
        assert host.source.ending == frozenset()
        host.kubelet.failing = NOT_READ
        host.kubelet.break_watches()
        await until(lambda: not host.in_use)
        assert await host.source.list_now(LONG) is None
        assert host.source.ending == {UID}
        host.kubelet.failing = None
        # A call from before may fail only now, and end what the list says.
        while host.source.ending:
            assert await host.source.list_now(LONG)


async def test_a_report_between_connections_is_no_lasting_sign_of_life(tmp_path: Path) -> None:
    """A single answer of a kubelet that is away again does not keep a pod whose cgroup is gone."""
    endpoint = Endpoint(answer={UID: pod_message(UID)})
    async with followed(tmp_path, endpoint=endpoint, started=False) as host:
        await until(lambda: host.knows(UID))
        endpoint.answer = None
        host.runs(UID)
        host.read()
        await until(lambda: host._waiting(2))
        host.clock.advance(LONGEST_PAUSE)
        await until(lambda: "HTTP status 403" in host.said())
        endpoint.answer = {UID: pod_message(UID)}
        assert await host.source.list_now(LONG)
        endpoint.answer = None
        host.cgroups.clear()
        host.read()
        await until(lambda: host._waiting(2))
        host.clock.advance(ALONE_SECONDS)
        await until(lambda: host.removed() == {UID})

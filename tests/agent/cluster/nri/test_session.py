"""A session against a runtime in the same process, in both styles of events."""

from __future__ import annotations

import asyncio
import socket
import struct
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from agent.cluster.nri.messages import V1ALPHA1, Adjustment, ContainerResources, NriEvent
from agent.cluster.nri.protocol import MOST_REQUESTS
from agent.cluster.nri.session import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    SYNCHRONIZE_SECONDS,
    ContainerRejectedError,
)
from sysfs.mask import Mask
from tests.agent.cluster.nri.support import (
    CONTAINER,
    POD,
    ManualClock,
    RecordingHandler,
    serving,
)
from tests.agent.server.support import in_loop, until
from tests.fakes.nri_runtime import FakeRuntime, running

if TYPE_CHECKING:
    from pathlib import Path

OLD: dict[str, Any] = {
    "version": "1.7.24",
    "nri_version": "",
    "own_methods": False,
    "known_events": 0x7FF,
}
NEW: dict[str, Any] = {}
STYLES = pytest.mark.parametrize("style", [OLD, NEW], ids=["state-change", "own-methods"])

#: Which method of the handler an event calls.
NOTED = {
    NriEvent.RUN_POD_SANDBOX: "sandbox_started",
    NriEvent.STOP_POD_SANDBOX: "sandbox_stopped",
    NriEvent.REMOVE_POD_SANDBOX: "sandbox_removed",
    NriEvent.POST_START_CONTAINER: "container_started",
    NriEvent.STOP_CONTAINER: "container_stopped",
    NriEvent.REMOVE_CONTAINER: "container_removed",
}
ANSWERED = {
    NriEvent.CREATE_CONTAINER: "container_created",
    NriEvent.UPDATE_CONTAINER: "container_updated",
}
IGNORED = (
    NriEvent.POST_CREATE_CONTAINER,
    NriEvent.START_CONTAINER,
    NriEvent.POST_UPDATE_CONTAINER,
)


def container_of(event: NriEvent) -> dict[str, Any] | None:
    return None if event.method.endswith("Sandbox") else CONTAINER


@STYLES
@in_loop
async def test_a_pod_from_its_sandbox_to_its_end_calls_the_handler_in_order(
    tmp_path: Path, style: dict[str, Any]
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", **style)
    handler = RecordingHandler()
    handler.adjustment = Adjustment(
        cpus=Mask.parse("2-3"),
        mems=Mask.of(0),
        quota_us=-1,
        period_us=100_000,
        environment={"NUMA": "0"},
    )
    async with running(runtime), serving(runtime.socket, handler):
        plugin = await runtime.plugin()
        await plugin.event(NriEvent.RUN_POD_SANDBOX, POD)
        created = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
        for event in (
            NriEvent.POST_START_CONTAINER,
            NriEvent.STOP_CONTAINER,
            NriEvent.REMOVE_CONTAINER,
        ):
            await plugin.event(event, POD, CONTAINER)
        await plugin.event(NriEvent.STOP_POD_SANDBOX, POD)
        await plugin.event(NriEvent.REMOVE_POD_SANDBOX, POD)
    adjust = created.as_message("CreateContainerResponse").adjust
    cpu = adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.mems, cpu.quota.value, cpu.period.value) == ("2-3", "0", -1, 100_000)
    assert [(each.key, each.value) for each in adjust.env] == [("NUMA", "0")]
    assert handler.events == [
        "configured containerd",
        "synchronize 0 0",
        "sandbox_started web",
        "container_created web/app",
        "container_started web/app",
        "container_stopped web/app",
        "container_removed web/app",
        "sandbox_stopped web",
        "sandbox_removed web",
        "disconnected the session was ended",
    ]
    container = handler.seen["container_created"]
    assert container.environment == {"A": "1", "B": "x=y"}
    assert container.cgroups_path == "kubepods-poduid_1.slice:cri-containerd:c1"
    assert (container.state, container.sandbox_id) == ("created", "s1")
    sandbox = handler.seen["sandbox_started"]
    assert sandbox.cgroup_parent == "/kubepods.slice/kubepods-poduid_1.slice"
    assert (sandbox.uid, sandbox.annotations) == ("uid-1", {"a": "b"})


@in_loop
async def test_a_container_without_an_adjustment_is_left_as_it_is(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    async with running(runtime), serving(runtime.socket, RecordingHandler()):
        plugin = await runtime.plugin()
        created = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
        assert not created.as_message("CreateContainerResponse").HasField("adjust")
        updated = await plugin.event(NriEvent.UPDATE_CONTAINER, POD, CONTAINER)
        assert not updated.as_message("UpdateContainerResponse").update


@STYLES
@in_loop
async def test_a_rejected_container_is_an_error_with_its_code_and_message(
    tmp_path: Path, style: dict[str, Any]
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", **style)
    handler = RecordingHandler()
    text = "TopologyAffinityError: cpu: 2 asked, \udcff"
    handler.fails = {"container_created": ContainerRejectedError("FAILED_PRECONDITION", text)}
    async with running(runtime), serving(runtime.socket, handler):
        plugin = await runtime.plugin()
        created = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert (created.code, created.message) == (9, "TopologyAffinityError: cpu: 2 asked, ?")
    assert handler.outcomes == [("Synchronize", "answered"), ("CreateContainer", "rejected")]


def test_a_rejection_with_the_code_of_success_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="'OK' is not a status of gRPC that means an error"):
        ContainerRejectedError("OK", "no")


@in_loop
async def test_an_update_is_answered_with_what_stays(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.update = Adjustment(cpus=Mask.parse("2-4"), quota_us=-1)
    request = V1ALPHA1["UpdateContainerRequest"](
        pod=POD,
        container=CONTAINER,
        linux_resources={"cpu": {"shares": {"value": 3072}, "quota": {"value": 300_000}}},
    )
    async with running(runtime), serving(runtime.socket, handler):
        plugin = await runtime.plugin()
        reply = await plugin.call("UpdateContainer", request)
    (update,) = reply.as_message("UpdateContainerResponse").update
    cpu = update.linux.resources.cpu
    assert (update.container_id, cpu.cpus, cpu.mems, cpu.quota.value) == ("c1", "2-4", "", -1)
    assert update.ignore_failure
    assert not cpu.HasField("period")
    assert handler.requested == ContainerResources(quota_us=300_000, shares=3072)


@in_loop
async def test_an_updated_sandbox_has_the_resources_of_the_request(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    old = {"cpu": {"quota": {"value": 200_000}, "shares": {"value": 2048}}}
    new = {"cpu": {"quota": {"value": 300_000}}}
    pod = POD | {"linux": {"pod_resources": old}}
    request = V1ALPHA1["UpdatePodSandboxRequest"](pod=pod, linux_resources=new)
    async with running(runtime), serving(runtime.socket, handler):
        plugin = await runtime.plugin()
        reply = await plugin.call("UpdatePodSandbox", request)
    assert reply.code == 0
    sandbox = handler.seen["sandbox_updated"]
    assert (sandbox.cpu_quota, sandbox.cpu_shares, sandbox.cpu_period) == (300_000, 2048, None)


@in_loop
async def test_an_update_of_a_sandbox_that_is_rejected_is_an_error(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.fails = {"sandbox_updated": ContainerRejectedError("FAILED_PRECONDITION", "no")}
    async with running(runtime), serving(runtime.socket, handler):
        plugin = await runtime.plugin()
        reply = await plugin.call("UpdatePodSandbox", V1ALPHA1["UpdatePodSandboxRequest"](pod=POD))
    assert (reply.code, reply.message) == (9, "no")


@pytest.mark.parametrize(
    ("runtime", "version", "nri_version", "has_updates"),
    [
        ("containerd", "1.7.24~ds1", "", False),
        ("containerd", "v2.1.9", "", False),
        ("containerd", "2.2.0", "", True),
        ("cri-o", "1.33.8", "", False),
        ("cri-o", "1.34.0", "", True),
        ("containerd", "2.3.4-lab", "v0.12.0", True),
        ("containerd", "v2.3.4", "v0.9.0", False),
        ("containerd", "(devel)", "", False),
        ("other", "99.0", "", False),
        ("other", "1.0", "v1.2.3-4-gabcdef0", True),
    ],
)
@in_loop
async def test_only_events_are_subscribed_to_that_the_runtime_knows(
    tmp_path: Path,
    runtime: str,
    version: str,
    nri_version: str,
    has_updates: bool,  # noqa: FBT001  # a parameter of the table
) -> None:
    known = 0x3FFF if has_updates else 0x7FF
    fake = FakeRuntime(
        tmp_path / "nri.sock",
        name=runtime,
        version=version,
        nri_version=nri_version,
        known_events=known,
    )
    async with running(fake), serving(fake.socket, RecordingHandler()) as session:
        plugin = await fake.plugin()
        assert bool(plugin.events & 1 << NriEvent.UPDATE_POD_SANDBOX - 1) == has_updates
        for event in (*NOTED, *ANSWERED):
            assert plugin.events & 1 << event - 1, event
        for event in IGNORED:
            assert not plugin.events & 1 << event - 1, event
        assert session.state.runtime is not None
        assert session.state.runtime.version == version


@in_loop
async def test_a_runtime_that_does_not_know_an_event_gets_the_smallest_subscription_next(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", nri_version="v0.10.0", known_events=0x7FF)
    clock = ManualClock()
    with capture_logs() as logged:
        async with running(runtime), serving(runtime.socket, RecordingHandler(), clock) as session:
            silent = await runtime.connection()
            await clock.sleeping(1)
            assert not session.state.connected
            clock.advance(SYNCHRONIZE_SECONDS)
            await silent.closed.wait()
            await clock.sleeping(2)
            clock.advance(FIRST_PAUSE)
            plugin = await runtime.plugin(1)
            assert plugin.events & ~0x7FF == 0
    assert [entry["event"] for entry in logged][:2] == ["NRI not connected", "NRI connected"]


@pytest.mark.parametrize("configures_first", [False, True])
@in_loop
async def test_the_plugin_is_registered_by_name_and_index_and_configured_before_or_after_that(
    tmp_path: Path,
    configures_first: bool,  # noqa: FBT001  # a parameter of the table
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", configures_first=configures_first)
    handler = RecordingHandler()
    async with running(runtime), serving(runtime.socket, handler):
        plugin = await runtime.plugin()
        registered = plugin.registered
    assert (registered.plugin_name, registered.plugin_idx) == ("numawarden", "90")
    assert registered.NRI_version.startswith("v0.")
    assert handler.runtime is not None
    assert handler.runtime.request_timeout_ms == 2000


@in_loop
async def test_a_runtime_that_rejects_the_registration_is_asked_again_later(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", registration_error="invalid plugin index")
    handler = RecordingHandler()
    clock = ManualClock()
    async with running(runtime), serving(runtime.socket, handler, clock) as session:
        first = await runtime.connection()
        await first.closed.wait()
        await clock.sleeping(1)
        assert session.state.last_error == "UNKNOWN: invalid plugin index"
        runtime.registration_error = ""
        clock.advance(FIRST_PAUSE)
        await runtime.plugin(1)
    assert handler.events[0] == "configured containerd"


@in_loop
async def test_repairs_are_in_the_answer_to_the_last_part_of_synchronize(tmp_path: Path) -> None:
    pods = [POD | {"id": f"s{number}"} for number in range(2500)]
    containers = [CONTAINER | {"id": f"c{number}"} for number in range(5000)]
    runtime = FakeRuntime(tmp_path / "nri.sock", pods=pods, containers=containers, part=1000)
    handler = RecordingHandler()
    handler.repairs = {each["id"]: Adjustment(cpus=Mask.of(1)) for each in reversed(containers)}
    async with running(runtime), serving(runtime.socket, handler, synchronizing=60):
        plugin = await runtime.plugin()
    sandboxes, found = handler.synchronized
    assert [each.id for each in sandboxes] == [each["id"] for each in pods]
    assert [each.id for each in found] == [each["id"] for each in containers]
    assert [each.container_id for each in plugin.repairs] == list(handler.repairs)
    assert {each.linux.resources.cpu.cpus for each in plugin.repairs} == {"1"}
    assert handler.events[1] == "synchronize 2500 5000"


@in_loop
async def test_repairs_that_do_not_fit_in_one_answer_follow_as_updates(tmp_path: Path) -> None:
    containers = [CONTAINER | {"id": f"{number:064}"} for number in range(1000)]
    runtime = FakeRuntime(tmp_path / "nri.sock", containers=containers)
    runtime.broken = frozenset({containers[-1]["id"]})
    handler = RecordingHandler()
    every_second = Mask.from_ids(range(0, 4000, 2))
    handler.repairs = {each["id"]: Adjustment(cpus=every_second) for each in containers}
    with capture_logs() as logged:
        async with running(runtime), serving(runtime.socket, handler, synchronizing=60):
            plugin = await runtime.plugin()
            await until(
                lambda: (
                    sum(len(each.update) for each in runtime.updates) + len(plugin.repairs) == 1000
                )
            )
            answered = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
            assert answered.code == 0
    updated = [*plugin.repairs, *(each for asked in runtime.updates for each in asked.update)]
    assert [each.container_id for each in updated] == [each["id"] for each in containers]
    assert len(runtime.updates) > 1
    broken = [entry for entry in logged if entry["event"] == "NRI containers not repaired"]
    assert [entry["containers"] for entry in broken] == [1]


@in_loop
async def test_a_runtime_may_synchronize_again(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", pods=[POD], containers=[CONTAINER])
    handler = RecordingHandler()
    large = Adjustment(cpus=Mask.from_ids(range(0, 4000, 2)))
    async with running(runtime), serving(runtime.socket, handler, synchronizing=60) as session:
        plugin = await runtime.plugin()
        await until(lambda: session.state.connected)
        handler.repairs = {f"c{number}": large for number in range(600)}
        request = V1ALPHA1["SynchronizeRequest"](pods=[POD, POD])
        reply = await plugin.call("Synchronize", request)
        answered = reply.as_message("SynchronizeResponse").update
        await until(lambda: runtime.updates)
    repaired = [*answered, *runtime.updates[0].update]
    assert [each.container_id for each in repaired] == list(handler.repairs)
    assert list(map(len, handler.synchronized)) == [2, 0]
    assert session.state.connections == 1


@in_loop
async def test_a_missing_socket_and_one_that_nothing_serves_are_tried_again_with_pauses(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nri.sock"
    clock = ManualClock()
    handler = RecordingHandler()
    with capture_logs() as logged:
        async with serving(path, handler, clock) as session:
            await clock.sleeping(1)
            assert session.state.last_error == f"{path}: No such file or directory"
            with socket.socket(socket.AF_UNIX) as unserved:
                unserved.bind(str(path))
            for number in range(2, 9):
                clock.advance(LONGEST_PAUSE)
                await clock.sleeping(number)
            assert session.state.last_error == f"{path}: Connection refused"
            async with running(runtime := FakeRuntime(path)):
                clock.advance(LONGEST_PAUSE)
                await runtime.plugin()
                await until(lambda: session.state.connected)
    assert clock.slept[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    # One line a cause, not one an attempt.
    assert [entry["event"] for entry in logged][:3] == [
        "NRI not connected",
        "NRI not connected",
        "NRI connected",
    ]


@in_loop
async def test_a_restart_of_the_runtime_is_followed_by_synchronize(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    clock = ManualClock()
    handler = RecordingHandler()
    first = FakeRuntime(path)
    async with serving(path, handler, clock) as session:
        async with running(first):
            await first.plugin()
            await until(lambda: session.state.connected)
            clock.advance(60)
        await handler.ended.wait()
        await until(lambda: not session.state.connected)
        state = session.state
        assert (state.connections, state.since) == (1, clock.time())
        second = FakeRuntime(path, pods=[POD])
        async with running(second):
            while not second.plugins:
                clock.advance(LONGEST_PAUSE)
                await asyncio.sleep(0)
            await second.plugin()
    assert [event.split()[0] for event in handler.events] == [
        "configured",
        "synchronize",
        "disconnected",
        "configured",
        "synchronize",
        "disconnected",
    ]
    assert handler.events[4] == "synchronize 1 0"


@in_loop
async def test_after_a_long_connection_the_first_pause_is_short_again(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    clock = ManualClock()
    async with serving(path, RecordingHandler(), clock) as session:
        for number in range(1, 6):
            await clock.sleeping(number)
            clock.advance(LONGEST_PAUSE)
        runtime = FakeRuntime(path)
        async with running(runtime):
            while not runtime.plugins:
                clock.advance(LONGEST_PAUSE)
                await asyncio.sleep(0)
            await runtime.plugin()
            clock.advance(60)
            clock.slept.clear()
        await until(lambda: not session.state.connected)
        await clock.sleeping(1)
        assert clock.slept[0] == FIRST_PAUSE


@STYLES
@pytest.mark.parametrize("event", [*NOTED, *ANSWERED, *IGNORED], ids=lambda event: event.name)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("broken"),
        TimeoutError("broken"),
        ContainerRejectedError("INTERNAL", "no"),
        asyncio.CancelledError(),
    ],
    ids=["exception", "timeout", "rejection", "cancelled"],
)
@in_loop
async def test_no_event_but_create_is_ever_answered_with_an_error(
    tmp_path: Path, style: dict[str, Any], event: NriEvent, error: BaseException
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", **style)
    handler = RecordingHandler()
    methods = NOTED | ANSWERED
    handler.fails = dict.fromkeys(methods.values(), error)
    with capture_logs() as logged:
        async with running(runtime), serving(runtime.socket, handler):
            plugin = await runtime.plugin()
            reply = await plugin.event(event, POD, container_of(event))
    may_reject = event in ANSWERED and isinstance(error, ContainerRejectedError)
    assert reply.code == (13 if may_reject else 0)
    failures = [entry for entry in logged if entry["event"] == "NRI handler failed"]
    if event in methods and not may_reject:
        assert [entry["method"] for entry in failures] == [event.method]
        assert failures[0]["uid"] == "uid-1"
        assert (event.method, "failed") in handler.outcomes
    else:
        assert not failures
    assert not plugin.closed.is_set() or plugin.failure == ""


@STYLES
@pytest.mark.parametrize(
    "event",
    [NriEvent.RUN_POD_SANDBOX, NriEvent.CREATE_CONTAINER, NriEvent.UPDATE_CONTAINER],
    ids=lambda event: event.name,
)
@in_loop
async def test_a_handler_that_is_late_is_cancelled_and_the_runtime_goes_on(
    tmp_path: Path, style: dict[str, Any], event: NriEvent
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", **style)
    handler = RecordingHandler()
    handler.adjustment = handler.update = Adjustment(quota_us=-1)
    handler.hangs = frozenset((NOTED | ANSWERED).values())
    with capture_logs() as logged:
        async with running(runtime), serving(runtime.socket, handler, seconds=0.01):
            plugin = await runtime.plugin()
            reply = await plugin.event(event, POD, container_of(event))
            handler.hangs = frozenset()
            again = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert reply.code == 0
    assert again.as_message("CreateContainerResponse").adjust.linux.resources.cpu.quota.value == -1
    assert reply.payload == b""
    assert handler.cancelled == [(NOTED | ANSWERED)[event]]
    assert (event.method, "late") in handler.outcomes
    assert [e["method"] for e in logged if e["event"] == "NRI handler late"] == [event.method]


@in_loop
async def test_a_late_handler_that_fails_is_logged(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.hangs = frozenset({"container_created"})
    handler.fails_when_cancelled = True
    with capture_logs() as logged:
        async with running(runtime), serving(runtime.socket, handler, seconds=0.01):
            plugin = await runtime.plugin()
            reply = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert (reply.code, reply.payload) == (0, b"")
    late = [entry for entry in logged if entry["event"] == "NRI work failed after its deadline"]
    assert [str(entry["exc_info"]) for entry in late] == ["broken in the end"]


@in_loop
async def test_a_runtime_that_waits_shorter_than_the_deadline_gets_its_answer_in_time(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", request_timeout_ms=20)
    handler = RecordingHandler()
    handler.hangs = frozenset({"container_created", "synchronize"})
    async with running(runtime), serving(runtime.socket, handler, seconds=3600, synchronizing=3600):
        plugin = await runtime.plugin()
        reply = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert reply.code == 0
    assert handler.cancelled == ["synchronize", "container_created"]


@pytest.mark.parametrize(
    ("milliseconds", "seconds", "least", "most"), [(2000, 1.6, 0.5, 1.5), (0, 60.0, 50.0, 60.0)]
)
@in_loop
async def test_a_creation_may_wait_nearly_as_long_as_the_runtime_does(
    tmp_path: Path, milliseconds: int, seconds: float, least: float, most: float
) -> None:
    """What remains is for saying that it is not decided."""
    runtime = FakeRuntime(tmp_path / "nri.sock", request_timeout_ms=milliseconds)
    handler = RecordingHandler()
    async with running(runtime), serving(runtime.socket, handler, seconds=seconds):
        plugin = await runtime.plugin()
        await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert least < handler.seconds <= most


@in_loop
async def test_creations_that_wait_keep_no_other_request_from_being_answered(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.hangs = frozenset({"container_created"})
    async with running(runtime), serving(runtime.socket, handler, seconds=3600):
        plugin = await runtime.plugin()
        waiting = [
            asyncio.create_task(plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER))
            for _ in range(20)
        ]
        await until(lambda: handler.events.count("container_created web/app") == 20)
        reply = await plugin.event(NriEvent.REMOVE_POD_SANDBOX, POD)
        assert reply.code == 0
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("method", ["configured", "synchronize", "disconnected"])
@in_loop
async def test_a_handler_that_fails_around_the_connection_does_not_end_it(
    tmp_path: Path, method: str
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.fails = {method: RuntimeError("broken")}
    with capture_logs() as logged:
        async with running(runtime), serving(runtime.socket, handler):
            plugin = await runtime.plugin()
            reply = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert reply.code == 0
    assert "NRI handler failed" in [entry["event"] for entry in logged]


@in_loop
async def test_an_adjustment_that_cannot_be_sent_leaves_the_container_as_it_is(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.adjustment = Adjustment(environment={"A": "\udcff"})
    handler.update = Adjustment(quota_us=1 << 64)
    async with running(runtime), serving(runtime.socket, handler):
        plugin = await runtime.plugin()
        created = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
        updated = await plugin.event(NriEvent.UPDATE_CONTAINER, POD, CONTAINER)
    assert (created.code, created.payload, updated.code, updated.payload) == (0, b"", 0, b"")
    assert handler.outcomes[1:] == [("CreateContainer", "failed"), ("UpdateContainer", "failed")]


@in_loop
async def test_methods_and_services_that_are_unknown_are_unimplemented(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    async with running(runtime), serving(runtime.socket, RecordingHandler()):
        plugin = await runtime.plugin()
        assert (await plugin.call("ValidateContainerAdjustment")).code == 12
        assert (await plugin.call("Configure", service="other.Service")).code == 12
        assert (await plugin.call("Shutdown")).code == 0


@in_loop
async def test_more_requests_than_are_answered_at_a_time_wait_and_are_all_answered(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.hangs = frozenset({"sandbox_started"})
    async with running(runtime), serving(runtime.socket, handler, seconds=0.5):
        plugin = await runtime.plugin()
        calls = [
            asyncio.create_task(plugin.event(NriEvent.RUN_POD_SANDBOX, POD))
            for _ in range(3 * MOST_REQUESTS)
        ]
        await until(lambda: not (len(handler.events) < 2 + MOST_REQUESTS))
        assert len(handler.events) == 2 + MOST_REQUESTS
        replies = await asyncio.gather(*calls)
    assert {reply.code for reply in replies} == {0}


@in_loop
async def test_a_runtime_that_is_silent_about_updates_is_waited_for_until_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.nri.session.UPDATE_SECONDS", 0.01)
    runtime = FakeRuntime(tmp_path / "nri.sock", silent_updates=True)
    handler = RecordingHandler()
    large = Adjustment(cpus=Mask.from_ids(range(0, 4000, 2)))
    handler.repairs = {f"c{number}": large for number in range(600)}
    with capture_logs() as logged:
        async with running(runtime), serving(runtime.socket, handler):
            await runtime.plugin()
            await until(lambda: [e for e in logged if e["event"] == "NRI containers not repaired"])
    [entry] = [entry for entry in logged if entry["event"] == "NRI containers not repaired"]
    assert "UpdateContainers was not answered within 0.01 s" in entry["error"]


@in_loop
async def test_parts_of_synchronize_without_an_end_end_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.nri.session.LONGEST_SYNCHRONIZE", 100_000)
    runtime = FakeRuntime(tmp_path / "nri.sock", synchronizes=False)
    clock = ManualClock()
    part = V1ALPHA1["SynchronizeRequest"](pods=[POD] * 100, more=True)
    async with running(runtime), serving(runtime.socket, RecordingHandler(), clock) as session:
        plugin = await runtime.connection()
        await until(lambda: plugin.events)
        calls = (plugin.call("Synchronize", part) for _ in range(50))
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(replies[-1], ConnectionError)
        await until(lambda: session.state.last_error)
        assert session.state.last_error == "more than 100000 bytes to synchronize"


@in_loop
async def test_what_a_runtime_says_fits_in_a_line(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", registration_error="a\x1b[2J\n" * 1000)
    handler = RecordingHandler()
    async with running(runtime), serving(runtime.socket, handler, ManualClock()) as session:
        await until(lambda: session.state.last_error)
        error = session.state.last_error
        runtime.registration_error = ""
    assert error.isprintable()
    assert error.startswith("UNKNOWN: a\\x1b[2J\\na")
    assert len(error) < 1500


@pytest.mark.parametrize(
    ("garbage", "error"),
    [
        (struct.pack(">II", 3, 10), "a frame of connection 3; there are only 1 and 2"),
        (struct.pack(">II", 1, 1 << 30), "a frame of 1073741824 bytes"),
        (struct.pack(">IIIIBB", 1, 10, 1 << 25, 1, 1, 0), "a message of 33554432 bytes"),
        (struct.pack(">IIIIBB", 1, 10, 0, 5, 3, 0), "a message of type 3"),
        (struct.pack(">IIIIBB", 1, 10, 0, 5, 2, 0), "a message of type 2 on connection 1"),
        (struct.pack(">IIIIBB", 1, 10, 0, 4, 1, 0), "a message of stream 4"),
        (struct.pack(">IIIIBB", 1, 10, 0, 1, 1, 0), "a request of stream 1 after 3"),
        (struct.pack(">IIIIBB", 1, 10, 0, 7, 1, 2), "a message with flags 0x2"),
        (struct.pack(">IIIIBB", 2, 10, 0, 99, 2, 0), "a response of stream 99"),
        (struct.pack(">IIIIBBB", 1, 11, 1, 7, 1, 0, 255), "a Request that is not protobuf"),
    ],
)
@in_loop
async def test_what_violates_the_protocol_ends_the_connection_and_the_agent_connects_again(
    tmp_path: Path, garbage: bytes, error: str
) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    clock = ManualClock()
    handler = RecordingHandler()
    async with running(runtime), serving(runtime.socket, handler, clock) as session:
        plugin = await runtime.plugin()
        await until(lambda: session.state.connected)
        plugin.writer.write(garbage)
        await plugin.closed.wait()
        await handler.ended.wait()
        await until(lambda: not session.state.connected)
        assert session.state.last_error.startswith(error)
        while len(runtime.plugins) < 2:
            clock.advance(LONGEST_PAUSE)
            await asyncio.sleep(0)
        await runtime.plugin(1)
    assert handler.events[2].startswith(f"disconnected {error}")


@pytest.mark.parametrize(
    "method", ["Configure", "Synchronize", "StateChange", "RunPodSandbox", "CreateContainer"]
)
@in_loop
async def test_a_request_that_is_not_protobuf_ends_the_connection_without_an_answer(
    tmp_path: Path, method: str
) -> None:
    class Damaged:
        def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
            return b"\x0a\xff"

    runtime = FakeRuntime(tmp_path / "nri.sock")
    async with running(runtime), serving(runtime.socket, RecordingHandler()) as session:
        plugin = await runtime.plugin()
        with pytest.raises(ConnectionError):
            await plugin.call(method, Damaged())
        await until(lambda: not (session.state.connected or not session.state.last_error))
        assert session.state.last_error == f"a request of {method} that is not protobuf"


@in_loop
async def test_a_session_that_is_stopped_leaves_no_task_and_no_socket(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock")
    handler = RecordingHandler()
    handler.hangs = frozenset({"container_created"})
    async with running(runtime):
        before = asyncio.all_tasks()
        async with serving(runtime.socket, handler, seconds=3600):
            plugin = await runtime.plugin()
            call = asyncio.create_task(plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER))
            await until(lambda: "container_created web/app" in handler.events)
        await plugin.closed.wait()
        with pytest.raises(ConnectionError):
            await call
        assert asyncio.all_tasks() - before <= {call}
    assert handler.cancelled == ["container_created"]


@in_loop
async def test_each_answer_is_timed_until_it_is_written(tmp_path: Path) -> None:
    timed: list[tuple[str, str, float]] = []
    handler = RecordingHandler()
    handler.fails = {"container_created": ContainerRejectedError("UNAVAILABLE", "not yet")}
    runtime = FakeRuntime(tmp_path / "nri.sock")
    observe = partial(_note_time, timed)
    async with running(runtime), serving(runtime.socket, handler, observe=observe):
        plugin = await runtime.plugin()
        await plugin.event(NriEvent.RUN_POD_SANDBOX, POD)
        before = perf_counter()
        assert (await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)).code
        await until(lambda: len(timed) >= 3)
        elapsed = perf_counter() - before
    methods = [(method, outcome) for method, outcome, _ in timed]
    assert methods == [
        ("Synchronize", "answered"),
        ("RunPodSandbox", "answered"),
        ("CreateContainer", "rejected"),
    ]
    assert 0 < timed[-1][2] < elapsed


def _note_time(
    timed: list[tuple[str, str, float]], method: str, outcome: str, seconds: float
) -> None:
    timed.append((method, outcome, seconds))

"""A session against a runtime in the same process, in both styles of events."""

from __future__ import annotations

import asyncio
import socket
import struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from agent.cluster.nri.events import NriEvent
from agent.cluster.nri.handler import ContainerRejectedError
from agent.cluster.nri.messages import V1ALPHA1, Adjustment, ContainerResources
from agent.cluster.nri.session import FIRST_PAUSE, LONGEST_PAUSE, SYNCHRONIZE_SECONDS
from agent.cluster.nri.ttrpc import MOST_REQUESTS
from sysfs.mask import Mask
from tests.agent.cluster.nri.support import ANSWERED, CONTAINER, IGNORED, NOTED, POD, Nri
from tests.agent.server.support import until
from tests.fakes.nri_runtime import FakeRuntime, running

if TYPE_CHECKING:
    from pathlib import Path

OLD: dict[str, Any] = {
    "version": "1.7.24",
    "nri_version": "",
    "own_methods": False,
    "known_events": 0x7FF,
}
STYLES = pytest.mark.parametrize(
    "nri", [OLD, {}], indirect=True, ids=["state-change", "own-methods"]
)


@pytest.fixture
def nri(tmp_path: Path, request: pytest.FixtureRequest) -> Nri:
    return Nri(FakeRuntime(tmp_path / "nri.sock", **getattr(request, "param", {})))


def container_of(event: NriEvent) -> dict[str, Any] | None:
    return None if event.method.endswith("Sandbox") else CONTAINER


@STYLES
async def test_a_pod_from_its_sandbox_to_its_end_calls_the_handler_in_order(nri: Nri) -> None:
    nri.handler.adjustment = Adjustment(
        cpus=Mask.parse("2-3"),
        mems=Mask.of(0),
        quota_us=-1,
        period_us=100_000,
        environment={"NUMA": "0"},
    )
    async with nri.connected() as plugin:
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
    assert nri.handler.events == [
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
    container = nri.handler.seen["container_created"]
    assert container.environment == {"A": "1", "B": "x=y"}
    assert container.cgroups_path == "kubepods-poduid_1.slice:cri-containerd:c1"
    assert (container.state, container.sandbox_id) == ("created", "s1")
    sandbox = nri.handler.seen["sandbox_started"]
    assert sandbox.cgroup_parent == "/kubepods.slice/kubepods-poduid_1.slice"
    assert (sandbox.uid, sandbox.annotations) == ("uid-1", {"a": "b"})


async def test_a_rejected_container_is_an_error_and_every_answer_is_timed(nri: Nri) -> None:
    text = "TopologyAffinityError: cpu: 2 asked, \udcff"
    nri.handler.fails = {"container_created": ContainerRejectedError("FAILED_PRECONDITION", text)}
    async with nri.connected() as plugin:
        await plugin.event(NriEvent.RUN_POD_SANDBOX, POD)
        before = perf_counter()
        created = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
        await until(lambda: len(nri.handler.times) >= 3)
        assert 0 < nri.handler.times[-1] < perf_counter() - before
    assert (created.code, created.message) == (9, "TopologyAffinityError: cpu: 2 asked, ?")
    assert nri.handler.outcomes == [
        ("Synchronize", "answered"),
        ("RunPodSandbox", "answered"),
        ("CreateContainer", "rejected"),
    ]


def test_a_rejection_with_the_code_of_success_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="'OK' is not a status of gRPC that means an error"):
        ContainerRejectedError("OK", "no")


async def test_an_update_is_answered_with_what_stays(nri: Nri) -> None:
    nri.handler.update = Adjustment(cpus=Mask.parse("2-4"), quota_us=-1)
    request = V1ALPHA1["UpdateContainerRequest"](
        pod=POD,
        container=CONTAINER,
        linux_resources={"cpu": {"shares": {"value": 3072}, "quota": {"value": 300_000}}},
    )
    async with nri.connected() as plugin:
        reply = await plugin.call("UpdateContainer", request)
    (update,) = reply.as_message("UpdateContainerResponse").update
    cpu = update.linux.resources.cpu
    assert (update.container_id, cpu.cpus, cpu.mems, cpu.quota.value) == ("c1", "2-4", "", -1)
    assert update.ignore_failure
    assert not cpu.HasField("period")
    assert nri.handler.requested == ContainerResources(quota_us=300_000, shares=3072)


async def test_an_updated_sandbox_has_what_is_requested_and_may_be_rejected(nri: Nri) -> None:
    old = {"cpu": {"quota": {"value": 200_000}, "shares": {"value": 2048}}}
    new = {"cpu": {"quota": {"value": 300_000}}}
    pod = POD | {"linux": {"pod_resources": old}}
    request = V1ALPHA1["UpdatePodSandboxRequest"](pod=pod, linux_resources=new)
    async with nri.connected() as plugin:
        assert (await plugin.call("UpdatePodSandbox", request)).code == 0
        sandbox = nri.handler.seen["sandbox_updated"]
        assert (sandbox.cpu_quota, sandbox.cpu_shares, sandbox.cpu_period) == (300_000, 2048, None)
        nri.handler.fails = {"sandbox_updated": ContainerRejectedError("FAILED_PRECONDITION", "no")}
        reply = await plugin.call("UpdatePodSandbox", request)
    assert (reply.code, reply.message) == (9, "no")


async def test_a_runtime_that_does_not_know_an_event_is_subscribed_to_less_next(nri: Nri) -> None:
    nri.runtime.nri_version = "v0.10.0"
    nri.runtime.known_events = 0x7FF
    clock = nri.clock
    with capture_logs() as logged:
        async with running(nri.runtime), nri.serving() as session:
            silent = await nri.runtime.connection()
            await clock.sleeping(1)
            assert not session.state.connected
            clock.advance(SYNCHRONIZE_SECONDS)
            await silent.closed.wait()
            await clock.sleeping(2)
            clock.advance(FIRST_PAUSE)
            plugin = await nri.runtime.plugin(1)
            assert plugin.events & ~0x7FF == 0
    assert [entry["event"] for entry in logged][:2] == ["NRI not connected", "NRI connected"]


@pytest.mark.parametrize("configures_first", [False, True])
async def test_the_plugin_is_registered_by_name_and_index_and_configured_before_or_after_that(
    nri: Nri,
    configures_first: bool,  # noqa: FBT001  # a parameter of the table
) -> None:
    nri.runtime.configures_first = configures_first
    async with nri.connected() as plugin:
        registered = plugin.registered
    assert (registered.plugin_name, registered.plugin_idx) == ("numawarden", "90")
    assert registered.NRI_version.startswith("v0.")
    assert nri.handler.runtime is not None
    assert nri.handler.runtime.request_timeout_ms == 2000


async def test_a_runtime_that_rejects_the_plugin_in_many_words_is_asked_again(nri: Nri) -> None:
    nri.runtime.registration_error = "a\x1b[2J\n" * 1000
    async with running(nri.runtime), nri.serving() as session:
        await (await nri.runtime.connection()).closed.wait()
        await nri.clock.sleeping(1)
        error = session.state.last_error
        assert error.startswith("UNKNOWN: a\\x1b[2J\\na")
        assert error.isprintable()
        assert len(error) < 1500
        nri.runtime.registration_error = ""
        nri.clock.advance(FIRST_PAUSE)
        await nri.runtime.plugin(1)
    assert nri.handler.events[0] == "configured containerd"


async def test_repairs_are_in_the_answer_to_the_last_part_of_synchronize(nri: Nri) -> None:
    pods = [POD | {"id": f"s{number}"} for number in range(2500)]
    containers = [CONTAINER | {"id": f"c{number}"} for number in range(5000)]
    nri.runtime.pods = pods
    nri.runtime.containers = containers
    nri.runtime.part = 1000
    nri.handler.repairs = {each["id"]: Adjustment(cpus=Mask.of(1)) for each in reversed(containers)}
    async with nri.connected(synchronizing=60) as plugin:
        pass
    sandboxes, found = nri.handler.synchronized
    assert [each.id for each in sandboxes] == [each["id"] for each in pods]
    assert [each.id for each in found] == [each["id"] for each in containers]
    assert [each.container_id for each in plugin.repairs] == list(nri.handler.repairs)
    assert {each.linux.resources.cpu.cpus for each in plugin.repairs} == {"1"}
    assert nri.handler.events[1] == "synchronize 2500 5000"


async def test_a_runtime_may_synchronize_again_and_is_asked_for_nothing_else(nri: Nri) -> None:
    """A containerd before 2.4 may lock up when a plugin asks to update containers by itself."""
    nri.runtime.pods = [POD]
    nri.runtime.containers = [CONTAINER]
    large = Adjustment(cpus=Mask.from_ids(range(0, 4000, 2)))
    async with running(nri.runtime), nri.serving(synchronizing=60) as session:
        plugin = await nri.runtime.plugin()
        await until(lambda: session.state.connected)
        nri.handler.repairs = {f"c{number}": large for number in range(600)}
        request = V1ALPHA1["SynchronizeRequest"](pods=[POD, POD])
        with capture_logs() as logged:
            reply = await plugin.call("Synchronize", request)
        answered = reply.as_message("SynchronizeResponse").update
        assert (await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)).code == 0
    some = len(answered)
    assert [each.container_id for each in answered] == list(nri.handler.repairs)[:some]
    assert [entry["containers"] for entry in logged] == [600 - some]
    assert 0 < some < 600
    assert list(map(len, nri.handler.synchronized)) == [2, 0]
    assert session.state.connections == 1


async def test_a_socket_that_is_missing_or_not_served_is_tried_again_with_pauses(nri: Nri) -> None:
    path, clock = nri.runtime.socket, nri.clock
    with capture_logs() as logged:
        async with nri.serving() as session:
            await clock.sleeping(1)
            assert session.state.last_error == f"{path}: No such file or directory"
            with socket.socket(socket.AF_UNIX) as unserved:
                unserved.bind(str(path))
            for number in range(2, 9):
                clock.advance(LONGEST_PAUSE)
                await clock.sleeping(number)
            assert session.state.last_error == f"{path}: Connection refused"
            async with running(nri.runtime):
                clock.advance(LONGEST_PAUSE)
                await nri.runtime.plugin()
                await until(lambda: session.state.connected)
    assert clock.slept[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    # One line a cause, not one an attempt.
    said = [entry["event"] for entry in logged]
    assert said[:3] == ["NRI not connected", "NRI not connected", "NRI connected"]


async def arrived(nri: Nri, runtime: FakeRuntime) -> None:
    """Let time pass until the agent is connected to a runtime."""
    while not runtime.plugins:
        nri.clock.advance(LONGEST_PAUSE)
        await asyncio.sleep(0)
    await runtime.plugin()


async def test_a_restart_of_the_runtime_is_followed_soon_by_synchronize(nri: Nri) -> None:
    clock = nri.clock
    async with nri.serving() as session:
        for number in range(1, 6):
            await clock.sleeping(number)
            clock.advance(LONGEST_PAUSE)
        async with running(nri.runtime):
            await arrived(nri, nri.runtime)
            await until(lambda: session.state.connected)
            clock.advance(60)
            clock.slept.clear()
        await nri.handler.ended.wait()
        await until(lambda: not session.state.connected)
        assert (session.state.connections, session.state.since) == (1, clock.time())
        await clock.sleeping(1)
        assert clock.slept[0] == FIRST_PAUSE
        second = FakeRuntime(nri.runtime.socket, pods=[POD])
        async with running(second):
            await arrived(nri, second)
    assert [event.split()[0] for event in nri.handler.events] == [
        "configured",
        "synchronize",
        "disconnected",
    ] * 2
    assert nri.handler.events[4] == "synchronize 1 0"


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
async def test_no_event_but_create_is_ever_answered_with_an_error(
    nri: Nri, event: NriEvent, error: BaseException
) -> None:
    methods = NOTED | ANSWERED
    nri.handler.fails = dict.fromkeys(methods.values(), error)
    with capture_logs() as logged:
        async with nri.connected() as plugin:
            reply = await plugin.event(event, POD, container_of(event))
    may_reject = event in ANSWERED and isinstance(error, ContainerRejectedError)
    assert reply.code == (13 if may_reject else 0)
    failures = [entry for entry in logged if entry["event"] == "NRI handler failed"]
    if event in methods and not may_reject:
        assert [entry["method"] for entry in failures] == [event.method]
        assert failures[0]["uid"] == "uid-1"
        assert (event.method, "failed") in nri.handler.outcomes
    else:
        assert not failures
    assert not plugin.closed.is_set() or plugin.failure == ""


@STYLES
@pytest.mark.parametrize(
    "event",
    [NriEvent.RUN_POD_SANDBOX, NriEvent.CREATE_CONTAINER, NriEvent.UPDATE_CONTAINER],
    ids=lambda event: event.name,
)
async def test_a_handler_that_is_late_is_cancelled(nri: Nri, event: NriEvent) -> None:
    nri.handler.adjustment = nri.handler.update = Adjustment(quota_us=-1)
    nri.handler.hangs = frozenset((NOTED | ANSWERED).values())
    with capture_logs() as logged:
        async with nri.connected(seconds=0.01) as plugin:
            reply = await plugin.event(event, POD, container_of(event))
            nri.handler.hangs = frozenset()
            again = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert reply.code == 0
    assert again.as_message("CreateContainerResponse").adjust.linux.resources.cpu.quota.value == -1
    assert reply.payload == b""
    assert nri.handler.cancelled == [(NOTED | ANSWERED)[event]]
    assert (event.method, "late") in nri.handler.outcomes
    assert [e["method"] for e in logged if e["event"] == "NRI handler late"] == [event.method]


async def test_a_late_handler_that_fails_is_logged(nri: Nri) -> None:
    nri.handler.hangs = frozenset({"container_created"})
    nri.handler.fails_when_cancelled = True
    with capture_logs() as logged:
        async with nri.connected(seconds=0.01) as plugin:
            reply = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert (reply.code, reply.payload) == (0, b"")
    late = [entry for entry in logged if entry["event"] == "NRI work failed after its deadline"]
    assert [str(entry["exc_info"]) for entry in late] == ["broken in the end"]


async def test_a_runtime_that_waits_a_shorter_time_is_answered_in_time(nri: Nri) -> None:
    nri.runtime.request_timeout_ms = 20
    nri.handler.hangs = frozenset({"container_created", "synchronize"})
    async with nri.connected(seconds=3600, synchronizing=3600) as plugin:
        reply = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert reply.code == 0
    assert nri.handler.cancelled == ["synchronize", "container_created"]


@pytest.mark.parametrize(
    ("milliseconds", "seconds", "least", "most"), [(2000, 1.6, 0.5, 1.5), (0, 60.0, 50.0, 60.0)]
)
async def test_a_creation_may_wait_nearly_as_long_as_the_runtime_does(
    nri: Nri, milliseconds: int, seconds: float, least: float, most: float
) -> None:
    nri.runtime.request_timeout_ms = milliseconds
    async with nri.connected(seconds=seconds) as plugin:
        await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert least < nri.handler.seconds <= most


@pytest.mark.parametrize("method", ["configured", "synchronize", "disconnected"])
async def test_no_failure_of_a_handler_ends_the_connection(nri: Nri, method: str) -> None:
    nri.handler.fails = {method: RuntimeError("broken")}
    with capture_logs() as logged:
        async with nri.connected() as plugin:
            reply = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
    assert reply.code == 0
    assert "NRI handler failed" in [entry["event"] for entry in logged]


async def test_an_adjustment_that_cannot_be_sent_leaves_the_container_as_it_is(nri: Nri) -> None:
    nri.handler.adjustment = Adjustment(environment={"A": "\udcff"})
    nri.handler.update = Adjustment(quota_us=1 << 64)
    async with nri.connected() as plugin:
        created = await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
        updated = await plugin.event(NriEvent.UPDATE_CONTAINER, POD, CONTAINER)
    assert (created.code, created.payload, updated.code, updated.payload) == (0, b"", 0, b"")
    assert nri.handler.outcomes[1:] == [
        ("CreateContainer", "failed"),
        ("UpdateContainer", "failed"),
    ]


async def test_methods_and_services_that_are_unknown_are_unimplemented(nri: Nri) -> None:
    async with nri.connected() as plugin:
        assert (await plugin.call("ValidateContainerAdjustment")).code == 12
        assert (await plugin.call("Configure", service="other.Service")).code == 12
        assert (await plugin.call("Shutdown")).code == 0


async def test_more_requests_than_are_answered_at_a_time_are_all_answered(nri: Nri) -> None:
    nri.handler.hangs = frozenset({"sandbox_started"})
    async with nri.connected(seconds=0.5) as plugin:
        calls = [
            asyncio.create_task(plugin.event(NriEvent.RUN_POD_SANDBOX, POD))
            for _ in range(3 * MOST_REQUESTS)
        ]
        await until(lambda: len(nri.handler.events) >= 2 + MOST_REQUESTS)
        assert len(nri.handler.events) == 2 + MOST_REQUESTS
        replies = await asyncio.gather(*calls)
    assert {reply.code for reply in replies} == {0}


async def test_parts_of_synchronize_without_an_end_end_the_connection(
    nri: Nri, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.nri.service.LONGEST_SYNCHRONIZE", 100_000)
    nri.runtime.synchronizes = False
    part = V1ALPHA1["SynchronizeRequest"](pods=[POD] * 100, more=True)
    async with running(nri.runtime), nri.serving() as session:
        plugin = await nri.runtime.connection()
        await until(lambda: plugin.events)
        calls = (plugin.call("Synchronize", part) for _ in range(50))
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(replies[-1], ConnectionError)
        await until(lambda: session.state.last_error)
        assert session.state.last_error == "more than 100000 bytes to synchronize"


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
async def test_what_violates_the_protocol_ends_the_connection_and_the_agent_connects_again(
    nri: Nri, garbage: bytes, error: str
) -> None:
    clock = nri.clock
    async with running(nri.runtime), nri.serving() as session:
        plugin = await nri.runtime.plugin()
        await until(lambda: session.state.connected)
        plugin.writer.write(garbage)
        await plugin.closed.wait()
        await nri.handler.ended.wait()
        await until(lambda: not session.state.connected)
        assert session.state.last_error.startswith(error)
        while len(nri.runtime.plugins) < 2:
            clock.advance(LONGEST_PAUSE)
            await asyncio.sleep(0)
        await nri.runtime.plugin(1)
    assert nri.handler.events[2].startswith(f"disconnected {error}")


@pytest.mark.parametrize(
    "method", ["Configure", "Synchronize", "StateChange", "RunPodSandbox", "CreateContainer"]
)
async def test_a_request_that_is_not_protobuf_ends_the_connection(nri: Nri, method: str) -> None:
    class Damaged:
        def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
            return b"\x0a\xff"

    async with running(nri.runtime), nri.serving() as session:
        plugin = await nri.runtime.plugin()
        with pytest.raises(ConnectionError):
            await plugin.call(method, Damaged())
        await until(lambda: not session.state.connected and session.state.last_error)
        assert session.state.last_error == f"a request of {method} that is not protobuf"


async def test_a_session_that_is_stopped_leaves_no_task_and_no_socket(nri: Nri) -> None:
    nri.handler.hangs = frozenset({"container_created"})
    async with running(nri.runtime):
        before = asyncio.all_tasks()
        async with nri.serving(seconds=3600):
            plugin = await nri.runtime.plugin()
            call = asyncio.create_task(plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER))
            await until(lambda: "container_created web/app" in nri.handler.events)
        await plugin.closed.wait()
        with pytest.raises(ConnectionError):
            await call
        assert asyncio.all_tasks() - before <= {call}
    assert nri.handler.cancelled == ["container_created"]

"""The answers to a container runtime: from the ledger, after the CPUs have left the pool."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.api.documents.status import ManifestDocument
from agent.cluster.companions import of_kubelet
from agent.cluster.nri.events import NriEvent, subscription
from agent.cluster.nri.handler import ContainerRejectedError
from agent.cluster.nri.messages import ContainerResources, RuntimeInfo
from agent.cluster.runtime_events import SUBJECT, RuntimeEvents
from agent.config.cluster import OnReject
from agent.pods.quantity import Quantity
from agent.reconcile.diff import Cause, Difference
from agent.server import metrics as names
from agent.server.admissions import MOST_AT_ONCE
from agent.server.rejections import INVALID_REPORTED
from agent.sources.source import SourceUnreadableError
from cgroupfs.names import Tier
from sysfs.mask import Mask
from systemd.units import cpu_quota
from tests.agent.cluster.beside import (
    OTHER,
    Api,
    Beside,
    beside,
    created,
    kubelet_pods,
    make_slice,
    nothing_given,
    sandbox,
    shown,
    updated,
)
from tests.agent.server.sites import Site, pod_of
from tests.agent.server.support import UID, until
from tests.fakes.nri_runtime import FakeRuntime, running

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents.rejections import FailedPodDocument


async def test_a_container_gets_its_cpus_after_they_left_the_pool(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2 log=500m")
        cgroup = make_slice(site, UID)
        await agent.events.sandbox_started(sandbox())
        given = await created(agent, "db")
        assert given is not None
        assert given.cpus is not None
        burstable = site.layout.tier(Tier.BURSTABLE)
        for path in (burstable, site.layout.tier(Tier.BEST_EFFORT)):
            pool = Mask.parse(shown(site, path, "cpuset.cpus.effective")[0])
            assert not pool & given.cpus
        assert given.quota_us == -1
        assert given.cpus <= Mask.parse(shown(site, cgroup, "cpuset.cpus")[0])


async def test_a_container_whose_sandbox_was_not_seen_is_decided_when_created(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.on_request[UID] = pod_of("shop", UID, "db=2")
        given = await created(agent, "db")
        assert given is not None
        assert len(given.cpus or ()) == 2


async def test_a_pod_without_room_is_rejected_with_a_reason_until_there_is_room(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[OTHER] = pod_of("first", OTHER, "big=8")
        await agent.intake.sync()
        agent.pods.known[UID] = pod_of("shop", UID, "db=8")
        await agent.events.sandbox_started(sandbox())
        with pytest.raises(ContainerRejectedError) as caught:
            await created(agent, "db")
        assert caught.value.code == "FAILED_PRECONDITION"
        assert "cpu" in str(caught.value)
        assert agent.events._decisions.pod(UID).reason
        agent.events.sandbox_removed(sandbox())
        assert not agent.events._decisions.pod(UID).reason
        del agent.pods.known[OTHER]
        assert await created(agent, "db") is not None


async def without_a_decision(agent: Beside) -> None:
    """Occupy the controller until the end of the test, as many admissions do."""
    agent.tasks.append(asyncio.create_task(agent.controller.queue.run(agent.never.wait)))


@pytest.mark.parametrize("on_reject", list(OnReject))
async def test_what_is_not_decided_in_time_waits_or_shares(site: Site, on_reject: OnReject) -> None:
    async with beside(site, on_reject) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        await without_a_decision(agent)
        await nothing_given(agent, "UNAVAILABLE: .*not decided yet", 0.01)
        result = "rejected" if on_reject is OnReject.FAIL else "shared"
        counters = agent.controller.metrics.counters
        assert counters.value(names.CONTAINERS_NOT_READY, "undecided", result) == 1
        agent.never.set()
        assert await created(agent, "db") is not None


async def test_a_pod_without_anything_of_its_own_waits_for_no_decision(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("web", UID, "web~1")
        await without_a_decision(agent)
        assert await created(agent, "web") is None
        assert not agent.controller.state.ledger.allocations
        agent.never.set()


async def test_a_creation_waits_as_long_as_the_runtime_does_less_a_margin(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime waits 2 s."""
    given: list[float] = []

    async def created(*event: object) -> None:
        given.append(cast("float", event[-1]))

    async with beside(site, source=kubelet_pods(Api(ready=True))) as agent:
        monkeypatch.setattr(RuntimeEvents, "container_created", created)
        for module in ("service", "ttrpc"):  # no time passes until the handler is called
            monkeypatch.setattr(f"agent.cluster.nri.{module}.perf_counter", lambda: 0.0)
        runtime = FakeRuntime(tmp_path / "nri.sock", request_timeout_ms=0)
        kubelet = replace(site.config.agent.kubelet, nri_socket=runtime.socket)
        beside_it = of_kubelet(kubelet, agent.controller, [agent.intake])
        [serve] = [each.serve for each in beside_it if each.name == SUBJECT]
        async with running(runtime):
            serving = asyncio.ensure_future(serve())
            plugin = await runtime.plugin()
            await plugin.event(NriEvent.CREATE_CONTAINER, {"id": "s"}, {"id": "c"})
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        assert given == [pytest.approx(1.5)]


async def test_the_pod_whose_container_waits_is_decided_before_the_others(site: Site) -> None:
    async with beside(site) as agent:
        others = [f"{number:08d}-2222-3333-4444-555555555555" for number in range(3 * MOST_AT_ONCE)]
        agent.pods.known |= {uid: pod_of(f"web{uid[:8]}", uid, "web~10m") for uid in others}
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        assert await created(agent, "db") is not None
        assert len(agent.controller.state.ledger.allocations) < len(others)


async def test_a_rejected_pod_that_has_nothing_of_its_own_runs(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "web~64")
        assert await created(agent, "web") is None
        await agent.intake.sync()
        assert agent.controller.state.observed.records.failed(UID) is not None
        assert await created(agent, "web") is None


async def test_a_pod_that_no_source_gives_stops_no_container(site: Site) -> None:
    async with beside(site) as agent:
        await agent.events.sandbox_started(sandbox())
        assert await created(agent, "db") is None
        agent.pods.error = SourceUnreadableError("no answer", "start the kubelet", "KubeletAway")
        assert await created(agent, "db") is None


@pytest.mark.parametrize("on_reject", list(OnReject))
async def test_cpus_that_others_may_use_are_not_given(site: Site, on_reject: OnReject) -> None:
    async with beside(site, on_reject) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        assert await created(agent, "db") is not None
        agent.controller.state.observed.unenforced = (
            Difference(
                "kubepods.slice/kubepods-burstable.slice",
                "cpuset.cpus shows 0-15",
                Cause.UNKNOWN,
                file="cpuset.cpus",
                observed="0-15",
            ),
        )
        await nothing_given(agent, "UNAVAILABLE: .*shows 0-15")
        # The next attempt compares again.
        assert await created(agent, "db") is not None


async def test_an_update_leaves_a_container_what_it_has(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        given = await created(agent, "db")
        for asked in (ContainerResources(quota_us=200_000), ContainerResources(shares=2048)):
            agent.events.sandbox_updated(sandbox())
            kept = await updated(agent, "db", asked)
            assert kept == given
        unknown = await updated(agent, "db", asked, OTHER)
        assert unknown is None


#: What containerd 2.3.4 passed on of a kubelet's resize from two CPUs to three, in this order.
RECORDED: Final = (
    {"cpu_quota": 300_000, "cpu_period": 100_000, "cpu_shares": 2046},
    {"cpu_quota": 300_000, "cpu_period": 100_000, "cpu_shares": 3072},
)
THREE: Final = ContainerResources(quota_us=300_000, period_us=100_000, shares=3072)


@pytest.mark.parametrize("asked", [THREE, ContainerResources(shares=3060)])
async def test_a_container_with_exclusive_cpus_is_resized_as_its_kubelet_asks(
    site: Site, asked: ContainerResources
) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2 log=500m")
        cgroup = make_slice(site, UID)
        first = await created(agent, "db")
        assert first is not None
        assert first.cpus is not None
        noted = follow(agent)
        for each in RECORDED:
            agent.events.sandbox_updated(replace(sandbox(), **each))
        grown = await updated(agent, "db", asked)
        assert grown is not None
        assert grown.cpus is not None
        assert (len(grown.cpus), first.cpus < grown.cpus, grown.quota_us) == (3, True, -1)
        assert grown.cpus <= Mask.parse(shown(site, cgroup, "cpuset.cpus")[0])
        pool = shown(site, site.layout.tier(Tier.BURSTABLE), "cpuset.cpus.effective")[0]
        assert not grown.cpus & Mask.parse(pool)
        assert agent.pods.known[UID].containers[0].resources.limits["cpu"] == Quantity.parse("3")
        await agent.intake.sync()
        assert await updated(agent, "db", asked) == grown, "asked again, it has that already"
        more = ContainerResources(quota_us=200_000, memory=2 << 30)
        assert await updated(agent, "db", more) == first
        [db, _] = agent.controller.state.ledger.allocations[UID].containers
        assert [block.size for block in db.memory] == [2 << 30]
        assert not noted


async def test_cpus_that_others_may_use_are_not_given_by_a_resize(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        assert await created(agent, "db") is not None
        grown = await updated(agent, "db", THREE)
        agent.controller.state.observed.unenforced = (
            Difference(
                "kubepods.slice/kubepods-burstable.slice",
                "cpuset.cpus shows 0-15",
                Cause.UNKNOWN,
                file="cpuset.cpus",
                observed="0-15",
            ),
        )
        with pytest.raises(ContainerRejectedError, match=r"UNAVAILABLE: .*shows 0-15"):
            await updated(agent, "db", THREE)
        agent.controller.state.observed.unenforced = ()
        assert await updated(agent, "db", THREE) == grown


async def test_a_resize_that_is_not_enforced_in_time_is_asked_for_again(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        assert await created(agent, "db") is not None
        await without_a_decision(agent)
        with pytest.raises(ContainerRejectedError, match="not done yet") as caught:
            await updated(agent, "db", THREE, seconds=0.01)
        assert caught.value.code == "UNAVAILABLE"
        agent.never.set()
        grown = await updated(agent, "db", THREE)
        assert grown is not None
        assert len(grown.cpus or ()) == 3


@pytest.mark.parametrize(
    ("budget", "name", "asked", "why"),
    [
        ("", "db", ContainerResources(quota_us=1_500_000), "Infeasible: OutOfcpu: "),
        ("", "db", ContainerResources(quota_us=100_000), "asks for 1 CPU, but it was admitted"),
        ("", "db", ContainerResources(quota_us=250_000), "Infeasible: container db has exclusive"),
        # A kubelet without quotas (`cpuCFSQuota: false`).
        ("", "db", ContainerResources(quota_us=-1, shares=1024), "asks for 1 CPU, but"),
        ("", "log", ContainerResources(quota_us=70_000), "CPU limit: .* and 0.7 are"),
        ("4", "db", THREE, "exclusive CPUs .* and 3 are"),
    ],
)
async def test_a_resize_that_is_rejected_is_an_error_and_one_event_on_the_pod(
    site: Site, budget: str, name: str, asked: ContainerResources, why: str
) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2 log=500m", budget)
        await created(agent, "db")
        noted = follow(agent)
        before = agent.controller.state.ledger
        for _ in range(2):  # the kubelet tries again
            with pytest.raises(ContainerRejectedError, match=why) as caught:
                await updated(agent, name, asked)
            assert caught.value.code == "FAILED_PRECONDITION"
        [event] = noted
        assert (event.uid, event.name, event.reason) == (UID, "shop", "ResizeRejected")
        assert agent.controller.state.ledger is before


def follow(agent: Beside) -> list[FailedPodDocument]:
    noted: list[FailedPodDocument] = []
    agent.controller.rejections.follow(lambda status, _: noted.append(status))
    return noted


#: What a kubelet says of a pod of four CPUs whose memory alone is resized: the quota that the agent
#: lifted, and shares as they are read back from a weight.
UNCHANGED: Final = {"cpu_quota": -1, "cpu_shares": 4091}


@pytest.mark.parametrize("overhead", ["", "250m"])
@pytest.mark.parametrize(
    "larger",
    [
        {"cpu_quota": 550_000, "cpu_shares": 5632, "cpu_period": 100_000},
        {"cpu_quota": 550_000, "cpu_shares": 4091, "cpu_period": 100_000},
        {"cpu_quota": -1, "cpu_shares": 5632},
    ],
)
async def test_a_resize_of_the_budget_alone_is_an_error_and_one_event_for_each(
    site: Site, larger: dict[str, int], overhead: str
) -> None:
    async with beside(site) as agent:
        pod = pod_of("shop", UID, "db=2 log=500m", "4")
        extra = {"cpu": Quantity.parse(overhead)} if overhead else {}
        agent.pods.known[UID] = replace(pod, overhead=extra)
        await created(agent, "db")
        noted = follow(agent)
        for asked in (larger, larger, UNCHANGED, larger):
            update = replace(sandbox(), **asked)
            if asked is UNCHANGED:
                agent.events.sandbox_updated(update)
                continue
            with pytest.raises(ContainerRejectedError, match=r"pod keeps .* and 5\.5 are") as no:
                agent.events.sandbox_updated(update)
            assert no.value.code == "FAILED_PRECONDITION"
        assert [each.reason for each in noted] == ["ResizeRejected"] * 2
        agent.events.sandbox_removed(sandbox())
        assert not agent.events._decisions.pod(UID).resizes


async def test_a_pod_without_exclusive_cpus_is_resized(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "web~500m")
        await created(agent, "web")
        await agent.intake.sync()
        noted, asked = follow(agent), ContainerResources(quota_us=70_000, shares=716)
        await updated(agent, "web", asked)
        agent.events.sandbox_updated(replace(sandbox(), cpu_quota=70_000, cpu_shares=716))
        assert not noted


async def test_many_pods_that_cannot_be_read_are_a_few_lines_of_the_log(site: Site) -> None:
    async with beside(site) as agent:
        documents = {
            f"pods/{number}": ManifestDocument(
                file=f"pods/{number}", state="invalid", uid=f"{number}", source="kubelet"
            )
            for number in range(1000)
        }
        with capture_logs() as logs:
            agent.controller.rejections.report_entries("kubelet", documents)
        assert len(logs) == INVALID_REPORTED + 1
        assert logs[-1]["manifests"] == 1000 - INVALID_REPORTED


@pytest.mark.parametrize("event", ["sandbox", "container"])
async def test_the_quota_that_a_resize_gives_a_pod_is_lifted_again(site: Site, event: str) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        cgroup = make_slice(site, UID)
        assert await created(agent, "db") is not None
        assert site.systemd is not None
        unit = cgroup.rpartition("/")[2]
        site.systemd.set_properties(unit, [*cpu_quota(200_000, 100_000)])
        assert shown(site, cgroup, "cpu.max") == ["200000 100000"]
        if event == "sandbox":
            agent.events.sandbox_updated(sandbox())
        else:
            asked = ContainerResources(quota_us=200_000, period_us=100_000)
            await updated(agent, "db", asked)
        decisions = agent.events._decisions
        while tasks := (*decisions._deciding.values(), *decisions._following):
            await asyncio.wait(tasks)
        assert shown(site, cgroup, "cpu.max") == ["max 100000"]


async def test_a_removed_sandbox_is_reported_to_the_source(site: Site) -> None:
    async with beside(site) as agent:
        await agent.events.sandbox_started(sandbox())
        agent.events.sandbox_stopped(sandbox())
        agent.events.sandbox_removed(sandbox())
        assert agent.pods.calls == [
            ("started", UID, "sandbox-1111", "default/shop"),
            ("removed", UID, "sandbox-1111"),
        ]


async def test_a_pod_whose_sandbox_goes_amid_its_decision_is_forgotten(site: Site) -> None:
    async with beside(site) as agent:
        decisions = agent.events._decisions
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        await without_a_decision(agent)
        await agent.events.sandbox_started(sandbox())
        agent.events.sandbox_removed(sandbox())
        assert decisions._deciding
        agent.never.set()
        await asyncio.gather(*decisions._deciding.values())
        assert not decisions._runtime_pods


async def test_a_pod_that_gets_a_new_sandbox_at_once_is_decided(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.on_request[UID] = pod_of("shop", UID, "db=2")
        agent.events.sandbox_removed(sandbox())
        await agent.events.sandbox_started(sandbox())
        await until(lambda: UID in agent.controller.state.ledger.allocations)


async def test_a_runtime_that_is_away_is_a_condition_until_it_connects(site: Site) -> None:
    async with beside(site) as agent:
        conditions = agent.controller.state.observed.conditions
        agent.events.disconnected("connection refused")
        assert "connection refused" in conditions[SUBJECT]
        agent.events.configured(RuntimeInfo("containerd", "1.7.24", "", 2000))
        assert SUBJECT not in conditions


async def test_every_request_that_is_subscribed_to_is_counted_from_the_start(site: Site) -> None:
    async with beside(site) as agent:
        subscribed = {event.method for event in subscription("containerd", "2.3", "v0.12.0")}
        agent.events.observe("CreateContainer", "late", 0.3)
        for method in {*subscribed, "Synchronize"}:
            agent.events.observe(method, "answered", 0.001)
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        line = 'numawarden_runtime_requests_total{{method="{}",result="{}"}} {}'
        assert line.format("CreateContainer", "late", "1.0") in text
        assert line.format("Synchronize", "rejected", "0.0") in text
        name, label = "numawarden_runtime_request_duration_seconds", 'method="CreateContainer"'
        assert f"{name}_count{{{label}}} 2.0" in text
        assert f'{name}_bucket{{le="0.2",{label}}} 1.0' in text

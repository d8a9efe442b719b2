"""What a pod that is rejected or invalid leaves behind, wherever it came from."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from agent.api.documents.document import decode
from agent.api.documents.rejections import FailedPodDocument
from agent.managers.allocation import API
from agent.pods.model import PodIdentity
from agent.server import metrics as names
from agent.server.errors import InvalidManifestError
from agent.server.log import LONGEST_TEXT
from agent.server.pod_records import REJECTIONS_KEPT
from agent.server.rejections import MISTAKES_SHOWN
from agent.yaml import Mistake
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, next_event, running
from tests.agent.server.test_api import ask
from tests.agent.server.test_controller import Recorder, keeping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.server.controller import Controller
    from tests.agent.server.support import Running, World

#: What FakeClock says it is.
NOW = 1_700_001_000.0


def bad(name: str = "web", uid: str | None = UID) -> bytes:
    """Return a manifest with two mistakes."""
    text = manifest(name, uid)
    return text.replace(b"'2'", b"'-2'", 1).replace(b"name: c0", b"name: C_0")


def lines(log: Sequence[Mapping[str, Any]], event: str) -> list[Mapping[str, Any]]:
    return [line for line in log if line["event"] == event]


def statuses(controller: Controller) -> list[FailedPodDocument]:
    return [rejection.status for rejection in controller.state.observed.records.rejections.values()]


async def failed(agent: Running, uid: str) -> FailedPodDocument:
    status, body = await ask(agent, "GET", f"/v1/pods/{uid}")
    assert status == 200
    return decode(body, FailedPodDocument)


@in_loop
async def test_a_rejected_pod_has_failed_with_reason_message_and_time(world: World) -> None:
    async with running(world) as agent:
        _, answer = await ask(agent, "POST", "/v1/pods", manifest("big", cpu="64"))
        rejection = json.loads(answer)["rejection"]
        shown = await failed(agent, UID)
        assert (shown.phase, shown.reason, shown.message, shown.time, shown.source) == (
            "Failed", rejection["reason"], rejection["message"], NOW, str(API),
        )  # fmt: skip
        assert (shown.uid, shown.namespace, shown.name) == (UID, "shop", "big")
        assert shown.rejection is not None
        assert shown.explanation is not None
        now = await asyncio.to_thread(agent.client.status)
    (listed,) = now.failed
    assert (listed.uid, listed.phase, listed.reason) == (UID, "Failed", shown.reason)
    assert listed.explanation is None
    assert [answer.uid for answer in now.rejected] == [UID]


@in_loop
async def test_an_invalid_pod_leaves_a_line_an_event_a_count_and_a_status(world: World) -> None:
    async with running(world) as agent:
        with agent.controller.events.watch() as watcher, capture_logs() as log:
            assert (await ask(agent, "POST", "/v1/pods", bad()))[0] == 422
            event = await next_event(watcher, "PodInvalid")
        (line,) = lines(log, "pod invalid")
        assert line["log_level"] == "warning"
        assert (line["uid"], line["pod"], line["source"]) == (UID, "shop/web", str(API))
        placed = "line 9: spec.containers[0].name: "
        assert any(text.startswith(placed) for text in line["mistakes"])
        assert line["mistakes_left_out"] == 0
        assert (event.uid, event.pod) == (UID, "shop/web")
        assert event.operation
        assert "mistakes in the manifest" in event.message
        shown = await failed(agent, UID)
        assert (shown.phase, shown.reason, shown.time) == ("Failed", "InvalidManifest", NOW)
        assert "spec.containers[0].name" in [detail.path for detail in shown.details]
        assert agent.controller.metrics.counters.value(names.ADMISSIONS, "invalid") == 1
        now = await asyncio.to_thread(agent.client.status)
    assert now.rejected == ()
    assert [listed.reason for listed in now.failed] == ["InvalidManifest"]


@in_loop
async def test_a_pod_that_is_admitted_in_the_end_has_failed_no_more(world: World) -> None:
    async with running(world) as agent:
        await ask(agent, "POST", "/v1/pods", bad())
        await ask(agent, "POST", "/v1/pods", bad("nameless-uid", None))
        assert len(statuses(agent.controller)) == 2
        await ask(agent, "POST", "/v1/pods", manifest("web", UID))
        await ask(agent, "POST", "/v1/pods", manifest("nameless-uid", None))
        assert statuses(agent.controller) == []
        _, body = await ask(agent, "GET", f"/v1/pods/{UID}")
        assert json.loads(body)["phase"] == "Admitted"


@in_loop
async def test_a_dry_run_leaves_nothing(world: World) -> None:
    async with running(world) as agent:
        with capture_logs() as log:
            for body in (bad(), manifest("big", OTHER_UID, cpu="64")):
                await ask(agent, "POST", "/v1/pods?dryRun=true", body)
        assert [line["event"] for line in log] == ["request not served"]
        assert statuses(agent.controller) == []
        assert agent.controller.metrics.counters.value(names.ADMISSIONS, "invalid") == 0
        assert (await ask(agent, "GET", f"/v1/pods/{UID}"))[0] == 404


@in_loop
async def test_a_pod_that_is_admitted_does_not_fail(world: World) -> None:
    async with running(world) as agent:
        await ask(agent, "POST", "/v1/pods", manifest())
        assert (await ask(agent, "POST", "/v1/pods", bad()))[0] == 422
        assert (await ask(agent, "POST", "/v1/pods", manifest(cpu="4")))[0] == 409
        assert statuses(agent.controller) == []
        _, body = await ask(agent, "GET", f"/v1/pods/{UID}")
        assert json.loads(body)["phase"] == "Admitted"
        assert agent.controller.metrics.counters.value(names.ADMISSIONS, "invalid") == 1


def invalid(
    controller: Controller, identity: PodIdentity, mistakes: int = 1, text: str = "wrong"
) -> None:
    details = tuple(Mistake(f"spec.x[{number}]", text) for number in range(mistakes))
    controller.rejections.report_invalid_request(InvalidManifestError(text, details, identity))


@in_loop
async def test_of_rejections_that_cannot_be_distinguished_the_latest_is_kept() -> None:
    async with keeping(Recorder()) as controller:
        for text in ("first", "second"):
            invalid(controller, PodIdentity(), text=text)
            invalid(controller, PodIdentity("", "web", "shop"), text=text)
            invalid(controller, PodIdentity("u-1", "web", "shop"), text=text)
        assert [status.message for status in statuses(controller)] == ["second"] * 3


@in_loop
async def test_however_much_is_wrong_little_of_it_is_kept_and_reported() -> None:
    async with keeping(Recorder()) as controller:
        with controller.events.watch() as watcher, capture_logs() as log:
            for number in range(REJECTIONS_KEPT + 5):
                invalid(controller, PodIdentity(f"u-{number}"), 5000, "x" * 100_000)
            event = await next_event(watcher, "PodInvalid")
        (line, *_) = log
        assert len(json.dumps(line)) < (MISTAKES_SHOWN + 2) * (LONGEST_TEXT + 10)
        assert line["mistakes_left_out"] == 5000 - MISTAKES_SHOWN
        assert len(event.message) == LONGEST_TEXT
        kept = statuses(controller)
        assert len(kept) == REJECTIONS_KEPT
        assert kept[0].uid == "u-5"
        assert all(len(status.details) == MISTAKES_SHOWN for status in kept)
        assert all(len(detail.message) == LONGEST_TEXT for detail in kept[0].details)


@in_loop
async def test_a_file_without_a_pod_fails_once_until_it_has_one_or_is_gone(world: World) -> None:
    directory = world.manifest_directory()
    file = directory / "web.yaml"
    file.write_bytes(bad())
    with capture_logs() as log:
        async with running(world) as agent:
            shown = await failed(agent, UID)
            assert (shown.reason, shown.source) == ("InvalidManifest", str(file))
            assert "spec.containers[0].name" in [detail.path for detail in shown.details]
            await agent.sync_manifests()
            assert len(lines(log, "manifest rejected")) == 1
            assert lines(log, "pod invalid") == []
            assert agent.controller.metrics.counters.value(names.ADMISSIONS, "invalid") == 1
            file.write_bytes(manifest("big", cpu="64"))
            await agent.sync_manifests()
            assert [
                (s.reason != "InvalidManifest", s.name) for s in statuses(agent.controller)
            ] == [(True, "big")]
            file.unlink()
            await agent.sync_manifests()
            assert statuses(agent.controller) == []


@in_loop
async def test_a_file_that_is_damaged_does_not_fail_the_pod_it_keeps(world: World) -> None:
    directory = world.manifest_directory()
    file = directory / "web.yaml"
    file.write_bytes(manifest("web", None))
    async with running(world) as agent:
        file.write_bytes(bad("web", None))
        await agent.sync_manifests()
        assert len(agent.controller.pods()) == 1
        assert statuses(agent.controller) == []

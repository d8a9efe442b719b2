"""What is large is parsed and written aside: others are answered meanwhile."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp
import pytest

from agent.api.documents.document import decode
from agent.api.documents.errors import ErrorDocument
from agent.pods.manifest import load_manifest
from agent.server import handlers as api
from agent.server.answers import json_answer
from agent.yaml import MISTAKES_REPORTED
from tests.agent.server.support import UID, in_loop, make_world, manifest, running
from tests.agent.server.test_api import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.agent.server.support import Running, World

LARGE = manifest() + b"#" * api.SMALL_BYTES
CORDON = b'{"target": "4"}' + b" " * api.SMALL_BYTES
BINDING = b'{"cgroup": "/a"}' + b" " * api.SMALL_BYTES


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


class Gate:
    """A call that does not go on before it may; `reached` once it waits."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call
        self._open = threading.Event()
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, *args: object, **kwargs: object) -> object:
        self._loop.call_soon_threadsafe(self.reached.set)
        # On the loop itself this would wait for what only the loop can do.
        assert threading.current_thread() is not threading.main_thread()
        assert self._open.wait(15)
        return self._call(*args, **kwargs)

    def open(self) -> None:
        self._open.set()


@contextmanager
def gate_at(
    monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[..., object]
) -> Iterator[Gate]:
    gate = Gate(call)
    monkeypatch.setattr(name, gate)
    try:
        yield gate
    finally:
        gate.open()


async def others_are_answered(agent: Running) -> None:
    """Ask what needs no large parsing, and admit and remove a small pod."""
    async with aiohttp.ClientSession() as session:
        for path in ("healthz", "metrics"):
            response = await session.get(f"http://127.0.0.1:{agent.port}/{path}")
            assert response.status == HTTPStatus.OK
    for method in ("GET", "DELETE"):
        assert (await ask(agent, method, "/v1/pods/absent"))[0] == HTTPStatus.NOT_FOUND
    report = await agent.controller.reconcile()
    assert not report.differences


@pytest.mark.parametrize(
    ("name", "call", "path", "body", "status"),
    [
        ("load_manifest", load_manifest, "/v1/pods", LARGE, HTTPStatus.CREATED),
        ("load_manifest", load_manifest, "/v1/pods?dryRun=true", LARGE, HTTPStatus.OK),
        ("_bind_request", api._bind_request, f"/v1/pods/{UID}/containers/a/bind", BINDING,
         HTTPStatus.NOT_FOUND),
        ("_cordon_request", api._cordon_request, "/v1/uncordon", CORDON, HTTPStatus.CONFLICT),
    ],
)  # fmt: skip
@in_loop
async def test_while_a_large_body_is_parsed_others_are_answered(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: Callable[..., object],
    path: str,
    body: bytes,
    status: int,
) -> None:
    async with running(world) as agent:
        with gate_at(monkeypatch, f"agent.server.handlers.{name}", call) as gate:
            asked = asyncio.create_task(ask(agent, "POST", path, body))
            await gate.reached.wait()
            await others_are_answered(agent)
            assert not asked.done()
            gate.open()
            assert (await asked)[0] == status


@pytest.mark.parametrize("path", ["/v1/pods", "/v1/status", "/v1/verify"])
@in_loop
async def test_while_a_large_answer_is_written_others_are_answered(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async with running(world) as agent:
        with gate_at(monkeypatch, "agent.server.handlers.json_answer", json_answer) as gate:
            asked = asyncio.create_task(ask(agent, "GET", path))
            await gate.reached.wait()
            monkeypatch.undo()
            await others_are_answered(agent)
            assert not asked.done()
            gate.open()
            assert (await asked)[0] == HTTPStatus.OK


@in_loop
async def test_a_small_manifest_does_not_wait_for_a_large_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(world) as agent:
        with gate_at(monkeypatch, "agent.server.handlers.load_manifest", load_manifest) as gate:
            asked = asyncio.create_task(ask(agent, "POST", "/v1/pods", LARGE))
            await gate.reached.wait()
            monkeypatch.undo()
            assert (await ask(agent, "POST", "/v1/pods", manifest()))[0] == HTTPStatus.CREATED
            gate.open()
            assert (await asked)[0] == HTTPStatus.OK  # the same pod


@in_loop
async def test_of_many_mistakes_the_first_are_reported_and_how_many_there_are(world: World) -> None:
    mistakes = b"".join(b"  - name: C_%d\n" % number for number in range(300))
    body = b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n" + mistakes
    async with running(world) as agent:
        error = decode((await ask(agent, "POST", "/v1/pods", body))[1], ErrorDocument).error
        assert error.message == "300 mistakes in the manifest, of which the first 100 are listed"
        assert len(error.details) == MISTAKES_REPORTED
        assert not agent.controller.state.ledger.allocations

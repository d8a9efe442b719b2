from __future__ import annotations

import asyncio
import io
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import msgspec
import pytest
from aiohttp import web

from agent.api.documents.map import MapDocument
from agent.managers.admission import admit
from agent.managers.machine import Machine
from agent.tools.dashboard import server
from agent.tools.dashboard.server import FOLDER, LOG_SECONDS, MOST_LOG_LINES, ServerLog
from agent.tools.map.parts import parts_of
from sysfs.described import regular_host
from tests.agent.server.support import in_loop
from tests.bench.hosts import guaranteed_pod, rules_of
from tests.browser.fake_agent import TOKEN, FakeAgent, dashboard_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
#: All that the page asks for with the token.
DATA = ("/picture", "/v1/pods", "/v1/status", "/v1/history", "/v1/watch")


class Site(NamedTuple):
    """A dashboard of a fake agent with one pod, and a client of it."""

    agent: FakeAgent
    port: int
    client: aiohttp.ClientSession

    async def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Return status and body; with the token unless another is given."""
        data = None if body is None else io.BytesIO(body)
        given = {**AUTHORIZED, **headers}
        async with self.client.request(method, path, data=data, headers=given) as answer:
            return answer.status, await answer.read()


def allocate(agent: FakeAgent, packages: int) -> None:
    host = regular_host(packages)
    rules = rules_of(Machine.of(host))
    agent.allocate(host, rules, admit(rules, rules.empty_ledger(), guaranteed_pod("u")).ledger)


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Site]:
    agent, socket = FakeAgent(), directory / "agent.sock"
    allocate(agent, 1)
    async with agent.listening(socket), dashboard_of(socket) as address:
        port = int(address.split(":")[2].split("/")[0])
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            yield Site(agent, port, client)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection; with or without what was sent having been read."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


@in_loop
async def test_the_page_and_its_files_need_no_token(tmp_path: Path) -> None:
    async with served(tmp_path) as site:
        for file in FOLDER.iterdir():
            path = "/" if file.name == "index.html" else f"/{file.name}"
            async with site.client.get(path) as answer:
                assert (answer.status, await answer.read()) == (200, file.read_bytes())
    assert site.agent.asked == []


@pytest.mark.parametrize(
    "token", ["", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"]
)
@in_loop
async def test_without_the_token_nothing_of_the_agent_is_seen(tmp_path: Path, token: str) -> None:
    async with served(tmp_path) as site:
        for path in DATA:
            status, body = await site.ask(path, Authorization=token)
            assert (status, json.loads(body)["error"]["code"]) == (401, "Unauthorized")
        status, _ = await site.ask(server.TRIAL, "POST", b"{}", Authorization=token)
        assert status == 401
    assert site.agent.asked == []


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1", "[::1]:80", ""),
        *("localhost", "localhost:8080", "user@127.0.0.1", "127.0.0.1:", "127.0.0.1:80:80"),
    ],
)
@in_loop
async def test_a_request_for_another_host_is_rejected(tmp_path: Path, host: str) -> None:
    async with served(tmp_path) as site:
        for path in ("/", *DATA):
            assert (await site.ask(path, Host=host))[0] == 421
        assert site.agent.asked == []
        for tunnel in ("127.0.0.1:9999", "127.0.0.1"):
            assert (await site.ask("/v1/status", Host=tunnel))[0] == 200
            origin = f"http://{tunnel}"
            assert (await site.ask("/v1/status", Host=tunnel, Origin=origin))[0] == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"]
)
@in_loop
async def test_a_request_of_another_site_is_rejected_with_the_token_too(
    tmp_path: Path, origin: str
) -> None:
    async with served(tmp_path) as site:
        assert (await site.ask("/v1/status", Origin=origin))[0] == 403
    assert site.agent.asked == []


@in_loop
async def test_only_what_the_page_needs_reaches_the_agent(tmp_path: Path) -> None:
    manifest = b"kind: Pod"
    async with served(tmp_path) as site:
        for status, asked in (
            (200, ("GET /v1/pods", "GET /v1/status", "GET /picture")),
            (204, ("GET /v1/pods/u",)),
            (404, ("GET /v1/verify", "GET /v1/map", "GET /v1/pods/u?a=b")),
            (404, ("GET /v1/verify?/v1/pods/u", "GET /x/v1/pods/u")),
            (404, ("GET /v1/pods/u/containers", "GET /v1/pods/..", "GET /v1/pods/%2e%2e/verify")),
            (405, ("DELETE /v1/pods/u", "POST /v1/pods/u")),
            (404, ("GET /v1//pods", "GET /../v1/verify", "GET /v1/pods/../verify")),
            (404, ("POST /v1/reconcile", "GET /server.py")),
            (405, ("POST /v1/pods", "POST /v1/pods?dryRun=false", "POST /v1/pods?DryRun=true")),
            (405, ("POST /v1/pods?dryRun=true&dryRun=false",)),
            (405, ("POST /v1/pods?dryRun=true&require=aligned", "POST /v1/status")),
            (405, ("DELETE /v1/pods", "OPTIONS /v1/pods", "POST /picture", "POST /v1/watch")),
            (405, ("POST /",)),
        ):
            for each in asked:
                method, path = each.split()
                body = manifest if method == "POST" else None
                assert (each, (await site.ask(path, method, body))[0]) == (each, status)
        rejected = web.Response(body=b'{"rejection": 1}', status=409)
        site.agent.answers["/v1/pods"] = rejected
        assert await site.ask(server.TRIAL, "POST", manifest) == (409, b'{"rejection": 1}')
    assert site.agent.asked == [
        ("GET", "/v1/pods", b""),
        ("GET", "/v1/status", b""),
        ("GET", "/v1/map", b""),
        ("GET", "/v1/pods/u", b""),
        ("POST", server.TRIAL, manifest),
    ]


@in_loop
async def test_a_body_that_is_too_large_does_not_reach_the_agent(tmp_path: Path) -> None:
    async with served(tmp_path) as site:
        body = b"#" * (server.MAX_BODY_BYTES + 1)
        status, answer = await site.ask(server.TRIAL, "POST", body)
        assert (status, json.loads(answer)["error"]["code"]) == (413, "TooLarge")
        assert (await site.ask(server.TRIAL, "POST", body[:-1]))[0] == 200
    assert [len(body) for _, _, body in site.agent.asked] == [server.MAX_BODY_BYTES]


@in_loop
async def test_a_body_that_does_not_arrive_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.01)
    async with served(tmp_path) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        head = (
            f"POST {server.TRIAL} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\nkind"
        )
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
    assert site.agent.asked == []


@in_loop
async def test_a_connection_without_a_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.01)
    async with served(tmp_path) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET / HT")
        assert await is_closed(reader)
        writer.close()


@in_loop
async def test_connections_without_the_token_do_not_keep_the_user_out(tmp_path: Path) -> None:
    async with served(tmp_path) as site:
        assert (await site.ask("/v1/status"))[0] == 200
        idle = [
            await asyncio.open_connection("127.0.0.1", site.port)
            for _ in range(server.MOST_UNPROVEN + 1)
        ]
        assert await is_closed(idle[0][0])
        assert (await site.ask("/v1/status"))[0] == 200
        assert idle[-1][0].at_eof() is False
        for _, writer in idle:
            writer.close()


@in_loop
async def test_streams_are_bounded_and_end_with_their_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_STREAMS", 1)
    async with served(tmp_path) as site:
        async with site.client.get("/v1/watch", headers=AUTHORIZED) as first:
            assert first.status == 200
            assert (await site.ask("/v1/watch"))[0] == 503
        while site.agent.watchers:  # noqa: ASYNC110  # a socket's end sets no event
            await asyncio.sleep(0)
        async with site.client.get("/v1/watch", headers=AUTHORIZED) as second:
            assert second.status == 200


@in_loop
async def test_every_answer_has_the_headers_that_protect_the_page(tmp_path: Path) -> None:
    async with served(tmp_path) as site:
        for path in ("/", "/main.js", "/none", *DATA):
            async with site.client.get(path, headers=AUTHORIZED) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert answer.headers["Cache-Control"] == "no-store"
                assert "Access-Control-Allow-Origin" not in answer.headers


@in_loop
async def test_an_agent_without_history_has_no_content(tmp_path: Path) -> None:
    async with served(tmp_path) as site:
        assert await site.ask("/v1/history") == (204, b"")
        kept = web.Response(body=b'{"entries": []}', content_type="application/json")
        site.agent.answers["/v1/history"] = kept
        assert await site.ask("/v1/history?pod=u") == (200, b'{"entries": []}')
    assert site.agent.asked[-1][1] == "/v1/history?pod=u"


@in_loop
async def test_an_agent_that_does_not_answer_is_named_with_a_remedy(tmp_path: Path) -> None:
    async with dashboard_of(tmp_path / "none.sock") as address, aiohttp.ClientSession() as client:
        for path in DATA:
            url = address.split("/#")[0] + path
            async with client.get(url, headers=AUTHORIZED) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (502, "Unreachable")
                assert "there is no such socket" in error["message"]


@in_loop
async def test_the_picture_has_the_map_its_parts_and_shared_cores(tmp_path: Path) -> None:
    async with served(tmp_path) as site:
        _, body = await site.ask("/picture")
        document = site.agent.documents["/v1/map"]
        assert isinstance(document, MapDocument)
        picture = json.loads(body)
        assert msgspec.convert(picture["map"], MapDocument) == document
        (package,), (expected,) = picture["parts"], parts_of(document)
        assert (package["kind"], package["cpus"]) == ("package", str(expected.cpus))
        (node,) = package["children"]
        (cache,) = node["children"]
        cores = [[cpu.id for cpu in core.threads] for core in expected.all_cores()]
        assert cache["cores"] == cores
        assert picture["sharedCores"] == []
        assert picture["deviceWords"] == [""] * len(document.devices)
        allocate(site.agent, 2)
        assert len(json.loads((await site.ask("/picture"))[1])["parts"]) == 2
        site.agent.answers["/v1/map"] = web.Response(body=b"[]", content_type="application/json")
        status, body = await site.ask("/picture")
        assert (status, b"is not one of this version" in body) == (502, True)


@in_loop
async def test_a_stream_ends_with_the_agent(tmp_path: Path) -> None:
    agent, socket = FakeAgent(), tmp_path / "agent.sock"
    async with dashboard_of(socket) as address, aiohttp.ClientSession() as client:
        async with agent.listening(socket):
            url = address.split("/#")[0] + "/v1/watch"
            answer = await client.get(url, headers=AUTHORIZED)
        assert (answer.status, await answer.read()) == (200, b"")


def test_of_lines_of_the_libraries_few_are_written_and_the_others_counted() -> None:
    now, lines = [100.0], list[str]()
    log = logging.Logger("here")  # noqa: LOG001 - not one that others have
    log.addHandler(ServerLog(lines.append, lambda: now[0]))
    log.info("nothing")
    for number in range(25_000):
        try:
            raise ValueError(f"\x1b]0;{number}\nTraceback")  # noqa: TRY301 - what is logged
        except ValueError:
            log.exception("Error handling request from %s", "127.0.0.1")
    assert len(lines) == MOST_LOG_LINES
    assert lines[0] == "numawarden: Error handling request from 127.0.0.1: \\x1b]0;0"
    now[0] += LOG_SECONDS
    log.error("x" * 1_000)
    assert lines[-2] == "numawarden: 24990 further lines were left out"
    assert len(lines[-1]) < 250


@in_loop
async def test_malformed_requests_of_any_user_are_no_tracebacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    handler = ServerLog(lines.append)
    logging.getLogger().addHandler(handler)
    try:
        async with served(tmp_path) as site:
            for _ in range(40):
                reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
                writer.write(b"GET / \x1b]0;pwned\x07 HTTP/9\r\n\r\n")
                await reader.read()
                writer.close()
    finally:
        logging.getLogger().removeHandler(handler)
    assert len(lines) <= MOST_LOG_LINES
    assert "\x1b" not in "".join(lines)
    assert "Traceback" not in capsys.readouterr().err

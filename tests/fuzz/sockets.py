"""Messages to the running agent: damaged bodies and paths in sound HTTP, and damaged bytes.

An input that begins with `F` is one whole request and gets one whole answer; one with `R` is raw
bytes, after which the connection is half closed: the agent may answer or not, but must let go.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote_from_bytes, urlsplit

import structlog

from tests.agent.server.support import RecordingManager, make_world, manifest, running
from tests.conformance.invariants import broken_invariants
from tests.fuzz.damage import damaged_bytes, damaged_text
from tests.fuzz.pods import make_manifest
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from agent.managers.bindings import Bindings
    from tests.agent.server.support import Running, World
    from tests.fuzz.target import Check

#: Seconds: so long an answer takes on the busiest machine, unless the agent hangs.
_PATIENCE: Final = 30.0
_LARGE: Final = 5 << 20
_METHODS: Final = ("GET", "POST", "POST", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "X")
_PATHS: Final = (
    "/v1/pods", "/v1/pods?dryRun=true", "/v1/pods?dryRun=maybe", "/v1/pods?x=1", "/v1/pods/u-1",
    "/v1/pods/u-1/containers/a/bind", "/v1/pods/..%2f..%2fetc/containers/..%2f/bind", "/v1/status",
    "/v1/topology", "/v1/map", "/v1/history", "/v1/history?pod=%00&since=1.5&limit=5",
    "/v1/reconcile", "/v1/pods/%00", "/v1/pods/" + "a" * 7000,
    "//v1//pods", "/", "/v1/pods/%ff%fe", "/v1/../etc/passwd", "*", "http://x/v1/pods",
)  # fmt: skip
_QUERIES: Final = (
    "dryRun=true", "dryRun=1", "dryRun=false", "dryRun=0", "dryRun", "dryRun=", "dryrun=true",
    "dryRun=true&dryRun=false", "dryRun=false&dryRun=true", "dryRun=true&x", "&dryRun=true&",
    "dryRun=true;x=1", "dryRun=%74rue", "%64ryRun=true", "dryRun=TRUE", "dryRun=true#x", "?", "=",
    "&&&", "dryRun+=true", "dryRun=true%00", "force=true",
)  # fmt: skip
#: A request line may have 8 KiB, and each byte of a query may be written as three.
_LONGEST_QUERY: Final = 2000
_BODIES: Final = (
    b'{"cgroup": "/kubepods/podu-1/a"}', b'{"cgroup": "../../etc"}', b'{"pid": 1}', b'{"pid": -1}',
    b'{"pid": 99999999999999999999}', b'{"pid": 1, "cgroup": "/"}', b"{}", b"[]", b"null", b"",
    b'{"cgroup": "/a/../b"}', b'{"cgroup": "kubepods\\u0000"}',
)  # fmt: skip


def make_message(random: Random) -> bytes:
    """Draw a request with a damaged body, or the bytes of a damaged request."""
    if random.randrange(3):
        return b"F" + _request(random)
    return b"R" + damaged_bytes(random, _request(random), most=5)


def _request(random: Random) -> bytes:
    method, path, body = "POST", "/v1/pods", b""
    if random.randrange(3):
        body = make_manifest(random) if random.randrange(20) else b"[" * _LARGE
    else:
        method, path = random.choice(_METHODS), random.choice(_PATHS)
        if not random.randrange(3):
            method, path = random.choice(("POST", "POST", method)), _with_query(random)
        body = damaged_bytes(random, random.choice(_BODIES)) if random.randrange(2) else body
    head = f"{method} {path} HTTP/1.1\r\nHost: numawarden\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _with_query(random: Random) -> str:
    """Return a path with a query that may be damaged, and may name its parameters encoded."""
    query = damaged_text(random, _QUERIES)
    safe = random.choice(("=&", "=&;%+?/:", ""))
    path = random.choice(("/v1/pods", "/v1/pods", "/v1/pods/u-1", "/v1/reconcile", "/v1/status"))
    return f"{path}?{quote_from_bytes(query[:_LONGEST_QUERY], safe=safe)}"


class Agent:
    """A whole agent in a thread of its own, and what its loop complained about."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._manager = RecordingManager()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: Running | None = None
        self._up = threading.Event()
        self.complaints: list[str] = []

    @contextmanager
    def living(self) -> Iterator[None]:
        """Have it run, ready when yielded, and end."""
        thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        thread.start()
        demand(self._up.wait(_PATIENCE), "the agent did not start")
        try:
            yield
        finally:
            if self._loop is not None and self._running is not None:
                self._loop.call_soon_threadsafe(self._running.service.stop)
            thread.join(_PATIENCE)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
        async with running(self.world, self._manager) as self._running:
            self._up.set()
            await self._running.life

    def check(self, data: bytes) -> bool:
        """Try one message; the agent answers nothing but documents, and its ledger holds."""
        accepted = self._exchange(data[1:], whole=data[:1] == b"F")
        demand(not self.complaints, f"{self.complaints}")
        demand(self._running is not None and not self._running.life.done(), "the agent ended")
        if self._running is not None:
            state = self._running.controller.state
            broken = broken_invariants(state.configured.rules, state.ledger)
            demand(not broken, f"{broken}")
        return accepted

    def _exchange(self, request: bytes, *, whole: bool) -> bool:
        with self._connected() as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # rejected before it was read
                connection.sendall(request)
            if not whole:
                return self._let_go(connection)
            method, target = request.split(b" ", 2)[:2]
            return self._answered(connection, method.decode(), target.decode())

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(str(self.world.socket))
            yield connection

    def admit(self, pod: bytes) -> bool:
        """Admit a pod, and keep it."""
        head = f"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: {len(pod)}\r\n\r\n"
        with self._connected() as connection:
            connection.sendall(head.encode() + pod)
            response = HTTPResponse(connection, method="POST")
            response.begin()
            return response.status == 201

    def bindings(self) -> Bindings:
        """Return what is bound now."""
        demand(self._running is not None, "the agent does not run")
        assert self._running is not None
        return self._running.controller.state.durable.bindings

    @staticmethod
    def _let_go(connection: socket.socket) -> bool:
        with suppress(ConnectionResetError, OSError):
            connection.shutdown(socket.SHUT_WR)
        try:
            first = received = connection.recv(4096)
            while received:
                received = connection.recv(65536)
        except ConnectionResetError:
            return False
        except TimeoutError as error:
            raise AssertionError("the agent does not let go of a connection") from error
        demand(b" 500 " not in first[:20], f"it failed: {first!r}")
        return first[9:10] == b"2"

    def _answered(self, connection: socket.socket, method: str, target: str) -> bool:
        response = HTTPResponse(connection, method=method)
        try:
            response.begin()
            body = response.read()
        except (HTTPException, ConnectionError):
            # A body above the limit may be cut off while it is still being sent.
            return False
        demand(response.status != 500, f"it failed: {body[:300]!r}")
        if response.status >= 400:
            if body:  # the answer to HEAD has none
                error = json.loads(body)["error"]
                demand(error["code"] and error["message"], f"no reason: {body[:300]!r}")
            return False
        asked = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))
        demand(not asked or set(asked) == {"dryRun"}, f"{asked} are known")
        dry = "dryRun" in asked and asked["dryRun"] in ("true", "1")
        demand(not dry or response.status == 200, f"a dry run is answered with {response.status}")
        if response.status == 201:  # removed, so that there is room for the next
            uid = json.loads(body)["uid"]
            request = f"DELETE /v1/pods/{uid} HTTP/1.1\r\nHost: x\r\n\r\n"
            demand(self._exchange(request.encode(), whole=True), f"{uid} cannot be removed")
        return True


@contextmanager
def running_agent() -> Iterator[Agent]:
    """Run an agent for as long as something is tried."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    with TemporaryDirectory() as directory:
        agent = Agent(make_world(Path(directory)))
        with agent.living():
            yield agent


@contextmanager
def open_agent() -> Iterator[Check]:
    """Run an agent with one pod for as long as messages are tried."""
    with running_agent() as agent:
        demand(agent.admit(manifest(uid="u-1")), "a sound pod is not admitted")
        yield agent.check


MESSAGES: Final = Target("socket-message", make_message, open_agent)

"""The HTTP server of the dashboard: the page for all, the agent's documents for its user alone.

Every local process can connect to a port of 127.0.0.1, and every web site that the user visits can
have the browser do so. The page itself is public. What comes from the agent needs the token, in a
header that no other site can send; see docs/dashboard.md.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import socket
import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server
from msgspec import Struct

from agent.api.client import DEFAULT_TIMEOUT, Unreachable, reason_of
from agent.api.documents.document import decode, encode
from agent.api.documents.errors import ErrorBody, ErrorDocument
from agent.api.documents.map import CpuUse, MapCpuDocument, MapDocument
from agent.api.map_warnings import is_shared
from agent.pods.model import uid_fault
from agent.text import printable
from agent.tools.map.devices import device_word
from agent.tools.map.parts import MappedPart, parts_of
from agent.tools.map.text import COLLAPSE_ABOVE, Fold, folds_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from aiohttp.web_protocol import RequestHandler
    from aiohttp.web_request import BaseRequest


ADDRESS: Final = "127.0.0.1"
#: What is passed on to the agent as it is: read alone, whatever the agent adds in future.
READ: Final = frozenset({"/v1/pods", "/v1/status"})
#: As well, with the uid of the pod that is selected, which may be gone.
ONE_POD: Final = "/v1/pods/"
#: As well, but an agent may keep no history.
HISTORY: Final = "/v1/history"
WATCH: Final = "/v1/watch"
PICTURE: Final = "/picture"
#: The one request with a body: a decision that changes nothing, with exactly this query.
TRIAL: Final = "/v1/pods?dryRun=true&advice=true"

#: The largest manifest that is tried, in bytes.
MAX_BODY_BYTES: Final = 1 << 20
#: How long a body may take, and a browser to take a piece of a stream, in seconds.
BODY_SECONDS: Final = 30.0
PIECE_SECONDS: Final = 60.0
#: How long a connection may take for a request's head, or stay open without one, in seconds.
IDLE_SECONDS: Final = 15.0
#: Connections that have not sent the token yet: the oldest is closed for the next one.
MOST_UNPROVEN: Final = 32
#: Streams of events at a time.
MOST_STREAMS: Final = 16
#: So many lines of the log of aiohttp and asyncio in so many seconds; the others are counted.
MOST_LOG_LINES: Final = 10
LOG_SECONDS: Final = 60.0
_JSON: Final = "application/json"
_LINGER_SECONDS: Final = 1.0
_END_SECONDS: Final = 0.2


class RejectedRequest(Exception):  # noqa: N818  # an answer to the browser, no failure of the server
    """The request is answered with a status, a code for programs and a message for people."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class ServerLog(logging.Handler):
    """Writes what the libraries log as one line each, without a traceback, and few of them.

    Every local user can send requests that cannot be read, as fast as they like.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logging.WARNING)
        self._write = write
        self._monotonic = monotonic
        self._since = monotonic()
        self._lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it where there were enough."""
        now = self._monotonic()
        if now - self._since >= LOG_SECONDS:
            left_out = self._lines - MOST_LOG_LINES
            if left_out > 0:
                self._write(f"numawarden: {left_out} further lines were left out")
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines <= MOST_LOG_LINES:
            error = record.exc_info[1] if record.exc_info else None
            said = record.getMessage() if error is None else f"{record.getMessage()}: {error}"
            self._write(f"numawarden: {printable(said.partition(chr(10))[0])[:200]}")


class _Connections(Server):
    """The connections; of those that did not prove to be the user's, only the latest are kept."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(
            dashboard.answer,
            handler_cancellation=True,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=_LINGER_SECONDS,
            access_log=None,
        )
        self._unproven: dict[RequestHandler, asyncio.Transport] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._unproven[handler] = transport
        if len(self._unproven) > MOST_UNPROVEN:
            self._unproven.pop(next(iter(self._unproven))).abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._unproven.pop(handler, None)

    def proven(self, handler: RequestHandler) -> None:
        """Keep a connection from now on: a request on it had the token."""
        self._unproven.pop(handler, None)


class Dashboard:
    """Answers requests for the page, and those of the page for the agent at a socket.

    `seconds` is how long the agent may take for an answer.
    """

    def __init__(
        self, socket_path: Path | str, token: str, seconds: float = DEFAULT_TIMEOUT
    ) -> None:
        self._token = token
        self._files = page_files()
        self._pictures = PictureMaker()
        self._upstream = Upstream(socket_path, seconds)
        self._streams = 0
        self._connections = _Connections(self)

    @asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve on a listening socket until the block ends."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._connections, sock=listening)
        try:
            yield
        finally:
            server.close()
            await self._connections.shutdown(_END_SECONDS)
            await self._upstream.close()

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """Answer a request; what is rejected, and an agent that does not answer, is a document."""
        try:
            return await self._answer(request)
        except RejectedRequest as rejected:
            return _failed(rejected.status, rejected.code, rejected.message)
        except Unreachable as error:
            return _failed(HTTPStatus.BAD_GATEWAY, "Unreachable", str(error))
        except HTTPException as error:
            return _failed(HTTPStatus(error.status), "InvalidRequest", error.reason)

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        if not is_own_host(request.headers):
            message = "the page is at 127.0.0.1; open the address that was printed"
            raise RejectedRequest(HTTPStatus.MISDIRECTED_REQUEST, "WrongHost", message)
        if not is_own_origin(request.headers):
            message = "pages of other sites may not ask"
            raise RejectedRequest(HTTPStatus.FORBIDDEN, "Forbidden", message)
        file = self._files.get(request.path)
        if file is not None:
            _only(request, "GET")
            return _response(file.body, file.content_type)
        if not has_token(request.headers, self._token):
            message = "open the address that `numawarden dashboard` printed: it has the token"
            raise RejectedRequest(HTTPStatus.UNAUTHORIZED, "Unauthorized", message)
        self._connections.proven(request.protocol)
        return await self._data(request)

    async def _data(self, request: BaseRequest) -> StreamResponse:
        if request.path == PICTURE:
            _only(request, "GET")
            return await self._picture()
        if request.path == WATCH:
            _only(request, "GET")
            return await self._watch(request)
        if request.path_qs == TRIAL and request.method == "POST":
            return await self._passed_on("POST", TRIAL, await _body(request))
        before, is_one, uid = request.path_qs.partition(ONE_POD)
        if request.path == HISTORY or (is_one and not before and uid_fault(uid) is None):
            _only(request, "GET")
            answer = await self._passed_on("GET", request.path_qs)
            found = answer.status != HTTPStatus.NOT_FOUND
            return answer if found else _response(b"", _JSON, HTTPStatus.NO_CONTENT)
        if request.path in READ:
            _only(request, "GET")
            return await self._passed_on("GET", request.path_qs)
        message = f"there is no {request.path[:64]!r}"
        raise RejectedRequest(HTTPStatus.NOT_FOUND, "NotFound", message)

    async def _passed_on(self, method: str, target: str, body: bytes | None = None) -> Response:
        answer = await self._upstream.ask(method, target, body)
        return _response(answer.body, answer.content_type, HTTPStatus(answer.status))

    async def _picture(self) -> Response:
        answer = await self._upstream.ask("GET", "/v1/map")
        if answer.status != HTTPStatus.OK:
            return _response(answer.body, answer.content_type, HTTPStatus(answer.status))
        try:
            body = self._pictures.encoded(answer.body)
        except msgspec.DecodeError:
            message = "the agent's map is not one of this version; install the same on both sides"
            raise RejectedRequest(HTTPStatus.BAD_GATEWAY, "Unreachable", message) from None
        return _response(body, _JSON)

    async def _watch(self, request: BaseRequest) -> StreamResponse:
        if self._streams >= MOST_STREAMS:
            message = f"{MOST_STREAMS} pages follow the agent already; close one of them"
            raise RejectedRequest(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", message)
        self._streams += 1
        response = StreamResponse(headers=HEADERS)
        try:
            async with self._upstream.stream(request.path) as (status, kind, pieces):
                response.set_status(status)
                response.content_type = kind
                await response.prepare(request)
                async for piece in pieces:
                    if not await _taken(request, response, piece):
                        break
        except Unreachable:
            if not response.prepared:
                raise
        finally:
            self._streams -= 1
        return response


async def _taken(request: BaseRequest, response: StreamResponse, piece: bytes) -> bool:
    """Send a piece of a stream; cut a connection off that does not take it."""
    try:
        async with asyncio.timeout(PIECE_SECONDS):
            await response.write(piece)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return False
    return True


def listen(port: int) -> socket.socket:
    """Listen on a port of 127.0.0.1, any free one for 0; raises `OSError`."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)  # noqa: FBT003  # its own parameter
    return listening


def address_of(listening: socket.socket, token: str) -> str:
    """Return the address of the page; browsers send nothing of what is behind the `#`."""
    return f"http://{ADDRESS}:{listening.getsockname()[1]}/#{token}"


def _only(request: BaseRequest, method: str) -> None:
    if request.method != method:
        message = f"{request.path} is for {method}; nothing can be changed here"
        raise RejectedRequest(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message)


async def _body(request: BaseRequest) -> bytes:
    read = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.content.iter_any():
                read += piece
                if len(read) > MAX_BODY_BYTES:
                    message = f"the manifest is larger than {MAX_BODY_BYTES} bytes"
                    raise RejectedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", message)
    except TimeoutError:
        message = f"the manifest did not arrive within {BODY_SECONDS:.0f} seconds"
        raise RejectedRequest(HTTPStatus.REQUEST_TIMEOUT, "TooSlow", message) from None
    return bytes(read)


def _response(body: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    headers = {**HEADERS, "Content-Type": content_type}
    return Response(body=body, status=status, headers=headers)


def _failed(status: HTTPStatus, code: str, message: str) -> Response:
    document = ErrorDocument(error=ErrorBody(code=code, message=message))
    return _response(encode(document) + b"\n", _JSON, status)


#: The address that was printed; ports differ where ssh forwards one. No other name of this host:
#: for `localhost` a browser asks at [::1] first, where another user may listen.
_HOST: Final = re.compile(r"127\.0\.0\.1(:[0-9]{1,5})?", re.ASCII)
_SCHEME: Final = "Bearer "
#: Bytes of randomness in a token.
_TOKEN_BYTES: Final = 32

#: What the page may load and do (Content Security Policy Level 3): its own files and requests to
#: its own server; no inline code, no text that is parsed as HTML, no frame around it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
#: The headers of every answer.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Server": "numawarden",
}


def new_token() -> str:
    """Return a token that cannot be guessed, of letters, digits, `-` and `_`."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def is_own_host(headers: Mapping[str, str]) -> bool:
    """Return whether a request was sent to an address of this host.

    A page of another site whose name resolves to 127.0.0.1 (DNS rebinding) sends its own name.
    """
    return _HOST.fullmatch(headers.get("Host", "")) is not None


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from no page at all, or from one of this address."""
    origin = headers.get("Origin")
    return origin is None or origin == f"http://{headers.get('Host', '')}"


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Return whether a request has the token; the time does not depend on where they differ."""
    given = headers.get("Authorization", "")
    desired = (_SCHEME + token).encode()
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), desired)


FOLDER: Final = Path(__file__).with_name("page")
#: The page itself; `/` is answered with it.
INDEX: Final = "index.html"
#: The content types of what may be in the folder, by the suffix of the name.
_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(Struct, frozen=True):
    """The bytes of one file and its content type."""

    body: bytes
    content_type: str


def page_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return the files by the path under which a browser asks for them, `/` is the page itself.

    All of them are read here, so that no path of a request ever reaches the file system. Raises
    `OSError`, and `KeyError` for a file of an unknown kind.
    """
    found = {
        f"/{file.name}": PageFile(file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.iterdir())
    }
    found["/"] = found.pop(f"/{INDEX}")
    return found


_encoder: Final = msgspec.json.Encoder()


class PicturePart(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A `MappedPart` of the map: `cores` has the CPUs of each core, `cpus` all as a list."""

    kind: str
    id: int | None
    cpus: str
    first: bool
    kinds: tuple[str, ...]
    cores: tuple[tuple[int, ...], ...]
    children: tuple[PicturePart, ...]


class Picture(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the page draws: `map` is the agent's document as it came (`GET /v1/map`).

    `shared_cores` has the CPUs of cores with several users. `device_words` says of each device of
    the map what it is, in the same order, `""` for those offered to pods. `folds` are runs of equal
    parts, as in a terminal.
    """

    map: msgspec.Raw
    parts: tuple[PicturePart, ...]
    shared_cores: tuple[int, ...]
    device_words: tuple[str, ...]
    folds: tuple[Fold, ...] = ()


class PictureMaker:
    """Makes pictures of maps; the parts stay those of the last map while its CPUs do."""

    def __init__(self) -> None:
        self._places: list[object] = []
        self._drawn: tuple[PicturePart, ...] = ()

    def encoded(self, body: bytes) -> bytes:
        """Return the picture of a map in JSON as JSON; raises `msgspec.DecodeError`."""
        document = decode(body, MapDocument)
        places: list[object] = [_place(cpu) for cpu in document.cpus]
        is_new = places != self._places
        parts = parts_of(document) if is_new or len(document.cpus) > COLLAPSE_ABOVE else ()
        if is_new:
            self._places, self._drawn = places, tuple(map(_part, parts))
        picture = Picture(
            map=msgspec.Raw(body),
            parts=self._drawn,
            shared_cores=tuple(_shared(document.cpus, self._drawn)),
            device_words=tuple(
                "" if device.kind == "resource" else device_word(device)
                for device in document.devices
            ),
            folds=tuple(folds_of(document, parts)),
        )
        return _encoder.encode(picture)


def _place(cpu: MapCpuDocument) -> object:
    """Return what decides where a CPU is drawn."""
    offline = cpu.use is CpuUse.OFFLINE
    return cpu.id, cpu.core, cpu.die, cpu.package, cpu.node, cpu.uncore, cpu.kind, offline


def _part(part: MappedPart) -> PicturePart:
    return PicturePart(
        kind=part.kind,
        id=part.id,
        cpus=str(part.cpus),
        first=part.first,
        kinds=tuple(core.kind for core in part.cores),
        cores=tuple(tuple(cpu.id for cpu in core.threads) for core in part.cores),
        children=tuple(map(_part, part.children)),
    )


def _shared(cpus: Iterable[MapCpuDocument], parts: Iterable[PicturePart]) -> Iterable[int]:
    known = {cpu.id: cpu for cpu in cpus}
    waiting = list(parts)
    while waiting:
        part = waiting.pop()
        waiting += part.children
        for core in part.cores:
            if is_shared([known[cpu] for cpu in core]):
                yield from core


#: How long connecting to the socket may take, in seconds.
CONNECT_SECONDS: Final = 10.0
#: The largest answer that is passed on, in bytes; the map of 4,096 CPUs has less than one MiB.
MOST_BYTES: Final = 64 << 20
#: The longest piece of a stream that is passed on at once, in bytes.
PIECE_BYTES: Final = 64 << 10
#: The agent answers on a Unix socket, but HTTP needs the name of a host.
_BASE: Final = "http://numawarden"


class AgentAnswer(Struct, frozen=True):
    """The HTTP status, content type and body of an answer of the agent."""

    status: int
    content_type: str
    body: bytes


class Upstream:
    """The agent that listens on the Unix socket at `path`; to be used in one event loop.

    All methods raise `agent.api.client.Unreachable` where the agent does not answer, or not within
    `seconds`.
    """

    def __init__(self, path: Path | str, seconds: float = DEFAULT_TIMEOUT) -> None:
        self._path = str(path)
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        self._seconds = limits
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._path, limit=0),
            timeout=limits,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections to the agent."""
        await self._session.close()

    async def ask(self, method: str, target: str, body: bytes | None = None) -> AgentAnswer:
        """Return the answer to a request for a target (path and query), whatever its status."""
        async with self._answer(method, target, body, self._seconds) as answer:
            read = bytearray()
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                read += piece
                if len(read) > MOST_BYTES:
                    raise Unreachable(self._path, f"it answered with more than {MOST_BYTES} bytes")
            return AgentAnswer(answer.status, answer.content_type, bytes(read))

    @asynccontextmanager
    async def stream(self, target: str) -> AsyncIterator[tuple[int, str, AsyncIterator[bytes]]]:
        """Give status, content type and pieces of a stream, which may be silent for any time."""
        silent = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS)
        async with self._answer("GET", target, None, silent) as answer:
            yield answer.status, answer.content_type, answer.content.iter_chunked(PIECE_BYTES)

    @asynccontextmanager
    async def _answer(
        self, method: str, target: str, body: bytes | None, seconds: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(
                method, _BASE + target, data=body, timeout=seconds, allow_redirects=False
            ) as answer:
                yield answer
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(self._path, reason_of(error.os_error, CONNECT_SECONDS)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            ended = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
            raise Unreachable(
                self._path, reason_of(ended(), seconds.total or CONNECT_SECONDS)
            ) from error

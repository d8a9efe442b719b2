"""The admission API: HTTP and JSON over the Unix socket (docs/api.md)."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from aiohttp import web

from agent import wire
from agent.enforcement.errors import BindingError
from agent.pods.errors import ManifestError
from agent.pods.manifest import load_pod
from agent.service import errors
from agent.service.peer import own_user, peer_of
from agent.service.serial import Stopped
from agent.service.status import status_document

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Awaitable, Callable

    from agent.pods.model import Pod
    from agent.service.keeper import Keeper
    from sysfs.host import Host

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 4 << 20
#: How long a whole body may take, in seconds.
BODY_SECONDS: Final = 30.0
#: Names a manifest that came over the socket, in errors and in the uid of a pod that states none.
SOURCE: Final = "manifest"

_STATUS: Final = {
    "PodNotFound": HTTPStatus.NOT_FOUND,
    "ContainerNotFound": HTTPStatus.NOT_FOUND,
    "ManagedByManifest": HTTPStatus.CONFLICT,
    "NotReady": HTTPStatus.SERVICE_UNAVAILABLE,
    "KernelUnreadable": HTTPStatus.INTERNAL_SERVER_ERROR,
    "CheckpointFailed": HTTPStatus.INSUFFICIENT_STORAGE,
    "TooSlow": HTTPStatus.REQUEST_TIMEOUT,
    "InvalidManifest": HTTPStatus.UNPROCESSABLE_ENTITY,
    "InvalidBinding": HTTPStatus.UNPROCESSABLE_ENTITY,
}
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


class Api:
    """The routes of `/v1`.

    `group` may ask besides root and the agent's own user; no body is larger than `max_bytes`.
    """

    def __init__(
        self,
        keeper: Keeper,
        topology: Callable[[Host], bytes],
        group: int | None = None,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._keeper = keeper
        self._group = group
        self._max_bytes = max_bytes
        self._topology = topology

    def application(self) -> web.Application:
        """Return the application to serve on the Unix socket."""
        app = web.Application(
            client_max_size=self._max_bytes,
            middlewares=[_as_documents, self._only_members, self._only_when_ready],
        )
        app.add_routes(
            [
                web.post("/v1/pods", self._admit),
                web.get("/v1/pods", self._list, allow_head=False),
                web.get("/v1/pods/{uid}", self._get, allow_head=False),
                web.delete("/v1/pods/{uid}", self._remove),
                web.post("/v1/pods/{uid}/containers/{name}/bind", self._bind),
                web.get("/v1/watch", self._watch, allow_head=False),
                web.get("/v1/status", self._status, allow_head=False),
                web.get("/v1/verify", self._verify, allow_head=False),
                web.get("/v1/topology", self._get_topology, allow_head=False),
                web.post("/v1/reconcile", self._reconcile),
            ]
        )
        return app

    @web.middleware
    async def _only_members(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection: TransportSocket | None = None
        if request.transport is not None:
            connection = request.transport.get_extra_info("socket")
        if connection is None:  # it is gone already: nobody reads the answer
            return _failed(HTTPStatus.FORBIDDEN, "Forbidden", "the connection is closed")
        peer = peer_of(connection)
        if not peer.may_ask(own_user(), self._group):
            log.warning("request refused", peer_pid=peer.pid, peer_uid=peer.uid)
            message = f"user {peer.uid} is neither root nor a member of the agent's group"
            return _failed(HTTPStatus.FORBIDDEN, "Forbidden", message)
        return await handler(request)

    @web.middleware
    async def _only_when_ready(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let everybody look while the state is being restored, and nobody change it."""
        if request.method != "GET" and not self._keeper.state.ready:
            raise errors.NotReadyError
        return await handler(request)

    async def _admit(self, request: web.Request) -> web.Response:
        dry_run = _flag(request, "dryRun")
        pod = await self._pod_of(await _body(request))
        if dry_run:
            answer = self._keeper.preview(pod)
        else:
            answer = await self._keeper.admit(pod)
        return _json(answer, _admission_status(answer))

    async def _list(self, _request: web.Request) -> web.Response:
        return _json(wire.PodListDocument(pods=self._keeper.pods()))

    async def _get(self, request: web.Request) -> web.Response:
        return _json(await self._keeper.pod(request.match_info["uid"]))

    async def _remove(self, request: web.Request) -> web.Response:
        return _json(await self._keeper.remove(request.match_info["uid"]))

    async def _bind(self, request: web.Request) -> web.Response:
        uid, name = request.match_info["uid"], request.match_info["name"]
        wanted = _bind_request(await _body(request))
        return _json(await self._keeper.bind(uid, name, wanted))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/jsonl"
        with self._keeper.events.watch() as watcher:
            await response.prepare(request)
            async for event in watcher:
                try:
                    await response.write(wire.encode(event) + b"\n")
                except ConnectionError:  # the reader went away, which is how watching ends
                    break
        return response

    async def _status(self, _request: web.Request) -> web.Response:
        return _json(status_document(self._keeper.state))

    async def _verify(self, _request: web.Request) -> web.Response:
        return _json(await self._keeper.verify())

    async def _get_topology(self, _request: web.Request) -> web.Response:
        body = self._topology(self._keeper.state.situation.host)
        return web.Response(body=body, content_type="application/json")

    async def _reconcile(self, _request: web.Request) -> web.Response:
        return _json(await self._keeper.reconcile(insist=True))

    async def _pod_of(self, body: bytes) -> Pod:
        gates = self._keeper.state.situation.rules.policy.gates
        try:
            return load_pod(
                body, SOURCE, max_bytes=self._max_bytes, pod_level=gates.pod_level_resources
            )
        except ManifestError as error:
            raise invalid_manifest(error) from error


def invalid_manifest(error: ManifestError) -> errors.InvalidManifestError:
    """Return the mistakes in a manifest as an answer."""
    count = len(error.problems)
    summary = f"{count} mistakes in the manifest" if count > 1 else str(error)
    details = tuple((problem.path, problem.message) for problem in error.problems)
    return errors.InvalidManifestError(summary, details)


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise errors.TooSlowError(BODY_SECONDS) from None


def _bind_request(body: bytes) -> wire.BindRequest:
    try:
        wanted = wire.decode(body, wire.BindRequest)
    except msgspec.DecodeError as error:
        expected = 'expected {"cgroup": "/path"} or {"pid": 123}'
        raise errors.BindError(f"{error}; {expected}") from error
    if (wanted.cgroup is None) == (wanted.pid is None):
        raise errors.BindError("name either the container's cgroup or one of its pids, not both")
    return wanted


def _flag(request: web.Request, name: str) -> bool:
    for unknown in request.query.keys() - {name}:
        message = f"unknown query parameter {unknown!r}; this resource knows {name}"
        raise errors.RequestError(message, ((unknown, "unknown"),))
    text = request.query.get(name, "false")
    if text not in _BOOLEANS:
        raise errors.RequestError(f"{name} is true or false, found {text!r}", ((name, "boolean"),))
    return _BOOLEANS[text]


def _admission_status(answer: wire.AdmissionDocument) -> HTTPStatus:
    if not answer.admitted:
        return HTTPStatus.CONFLICT
    if answer.already_admitted or answer.dry_run:
        return HTTPStatus.OK
    return HTTPStatus.CREATED


@web.middleware
async def _as_documents(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error with an error document; what nobody foresaw is logged in full."""
    try:
        return await handler(request)
    except errors.RequestError as error:
        status = _STATUS.get(error.code, HTTPStatus.BAD_REQUEST)
        return _failed(status, error.code, error.message, error.details)
    except BindingError as error:
        return _failed(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidBinding", str(error))
    except Stopped as error:
        return _failed(HTTPStatus.SERVICE_UNAVAILABLE, "Stopping", str(error))
    except web.HTTPException as error:
        return _failed(HTTPStatus(error.status), *_http_error(request, error))
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        message = "the agent failed at this; its log says more"
        return _failed(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal", message)


def _http_error(request: web.Request, error: web.HTTPException) -> tuple[str, str]:
    match error:
        case web.HTTPRequestEntityTooLarge():
            return "TooLarge", f"the body is larger than {request.client_max_size} bytes"
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return "MethodNotAllowed", f"{request.method} is not possible here; use {allowed}"
        case web.HTTPNotFound():
            return "NotFound", f"there is no resource {request.path}; see docs/api.md"
        case _:
            return "InvalidRequest", error.reason


def _failed(
    status: HTTPStatus, code: str, message: str, details: tuple[tuple[str, str], ...] = ()
) -> web.Response:
    listed = tuple(wire.ErrorDetail(path=path, message=text) for path, text in details)
    body = wire.ErrorBody(code=code, message=message, details=listed)
    return _json(wire.ErrorDocument(error=body), status)


def _json(document: wire.Document, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    body = wire.encode(document) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")

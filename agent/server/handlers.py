"""The admission API: HTTP and JSON over the Unix socket (docs/api.md)."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from agent.api import documents as wire
from agent.api.documents import CordonRequest
from agent.managers.node_fit import not_allocated
from agent.pods.manifest import API_SOURCE, load_manifest
from agent.pods.model import REQUIRE, ManifestError, Quality, unknown_qualities
from agent.reconcile.report import BindingError
from agent.server import errors
from agent.server.http import (
    BodyTooLargeError,
    HttpError,
    MethodNotAllowedError,
    NotFoundError,
    Response,
    Routes,
    Stream,
)
from agent.server.limits import NoRoomError
from agent.server.log import shortened
from agent.server.maintenance import drain_plan
from agent.server.operations import current_operation, operation
from agent.server.peers import Access
from agent.server.queue import QueueStopped, Turns, Worker
from agent.server.state_documents import map_now, pods_now, status_document
from agent.state.history import HistoryQuery
from agent.yaml import MISTAKES_REPORTED, Mistake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.pods.manifest import Manifest
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.server.http import Answer, Request
    from sysfs.host import Host


log = structlog.get_logger(__name__)

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

MAX_BODY_BYTES: Final = 4 << 20
#: How long a whole body may take, in seconds.
BODY_SECONDS: Final = 30.0
JSON: Final = "application/json"
#: The header of an answer with the id that the log lines of the request have.
OPERATION: Final = "Numawarden-Operation"
#: How many copies of a pod are tried at most to say how many fit.
MOST_COPIES: Final = 1000
#: The longest reason of a cordon, in characters.
LONGEST_REASON: Final = 256
#: How many entries of the history an answer has, at most and unless the query says so.
MOST_ENTRIES: Final = 1000
ENTRIES: Final = 100
#: Longer bodies are parsed in a separate thread, so that the loop can answer other requests.
SMALL_BYTES: Final = 16 << 10

_STATUS: Final = {
    "PodNotFound": HTTPStatus.NOT_FOUND,
    "ContainerNotFound": HTTPStatus.NOT_FOUND,
    "BindingNotFound": HTTPStatus.NOT_FOUND,
    "NoHistory": HTTPStatus.NOT_FOUND,
    "HistoryUnreadable": HTTPStatus.INTERNAL_SERVER_ERROR,
    "ManagedByManifest": HTTPStatus.CONFLICT,
    "ManagedByKubelet": HTTPStatus.CONFLICT,
    "CordonRejected": HTTPStatus.CONFLICT,
    "NotCordoned": HTTPStatus.CONFLICT,
    "PodRemoved": HTTPStatus.CONFLICT,
    "NotReady": HTTPStatus.SERVICE_UNAVAILABLE,
    "Busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "KernelUnreadable": HTTPStatus.INTERNAL_SERVER_ERROR,
    "CheckpointFailed": HTTPStatus.INSUFFICIENT_STORAGE,
    "TooSlow": HTTPStatus.REQUEST_TIMEOUT,
    "InvalidManifest": HTTPStatus.UNPROCESSABLE_ENTITY,
    "InvalidBinding": HTTPStatus.UNPROCESSABLE_ENTITY,
}
_CODE: Final = {
    BodyTooLargeError: "TooLarge",
    MethodNotAllowedError: "MethodNotAllowed",
    NoRoomError: "Busy",
    NotFoundError: "NotFound",
}
#: Error codes of answers that no handler makes.
_CODE_BELOW: Final = {
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "HeadTooLarge",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Internal",
    HTTPStatus.SERVICE_UNAVAILABLE: "Busy",
}
#: A Unix time in a query.
_SECONDS: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


class Api:
    """The routes of `/v1`.

    Root, the agent's own user and members of `group` may use it (`Access`); a body has at most
    `max_bytes`. `proc` is where procfs is. `no_requests` says why pods are not admitted here but
    only tried ("": they are admitted).
    """

    def __init__(
        self,
        controller: Controller,
        topology: Callable[[Host], bytes],
        group: int | None = None,
        max_bytes: int = MAX_BODY_BYTES,
        proc: Path = Path("/proc"),
        *,
        no_requests: str = "",
    ) -> None:
        self._controller = controller
        self._topology = topology
        self._no_requests = no_requests
        self.max_bytes = max_bytes
        # Separate from the controller's thread, which writes cgroups and may take seconds.
        self._parser = Worker(controller.state.parts.progress, "parser")
        self._parsing, self._reading = Turns(), Turns()
        self._access = Access(self._when_ready, self.failed, group, proc)
        self._routes = Routes(
            [
                ("POST", "/v1/pods", self._admit),
                ("GET", "/v1/pods", self._list),
                ("POST", "/v1/fit", self._fit),
                ("GET", "/v1/pods/{uid}", self._get),
                ("DELETE", "/v1/pods/{uid}", self._remove),
                ("POST", "/v1/pods/{uid}/containers/{name}/bind", self._bind),
                ("DELETE", "/v1/pods/{uid}/containers/{name}/bind", self._unbind),
                ("GET", "/v1/watch", self._watch),
                ("GET", "/v1/status", self._status),
                ("GET", "/v1/verify", self._verify),
                ("GET", "/v1/topology", self._get_topology),
                ("GET", "/v1/map", self._map),
                ("GET", "/v1/history", self._history),
                ("POST", "/v1/reconcile", self._reconcile),
                ("POST", "/v1/cordon", self._cordon),
                ("POST", "/v1/uncordon", self._uncordon),
                ("POST", "/v1/drain", self._drain),
            ],
            parameters={
                ("POST", "/v1/drain"): ("dryRun",),
                ("POST", "/v1/pods"): ("dryRun", "require", "replace", "advice"),
                ("POST", "/v1/fit"): ("most",),
                ("GET", "/v1/history"): ("pod", "since", "limit"),
            },
        )

    def close(self) -> None:
        """End the parser thread after its current work."""
        self._parser.close()

    @staticmethod
    def failed(status: HTTPStatus, message: str) -> Response:
        """Return the answer to what no handler answers: malformed HTTP, other users, no room."""
        return _failed(status, _CODE_BELOW.get(status, "InvalidRequest"), message)

    async def answer(self, request: Request) -> Answer:
        """Answer a request; every error is a document, and all errors are logged.

        The request is an operation, whose id the answer has in the header `OPERATION`.
        """
        with operation("request") as identity:
            answer = await self._answered(request)
        return replace(answer, headers=(*answer.headers, (OPERATION, identity)))

    async def _answered(self, request: Request) -> Answer:
        try:
            return await self._access(request)
        except errors.RequestError as error:
            status = _STATUS.get(error.code, HTTPStatus.BAD_REQUEST)
            return _not_served(request, status, error.code, error.message, error.details)
        except BindingError as error:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            return _not_served(request, status, "InvalidBinding", str(error))
        except QueueStopped as error:
            return _not_served(request, HTTPStatus.SERVICE_UNAVAILABLE, "Stopping", str(error))
        except HttpError as error:
            code = _CODE.get(type(error), "InvalidRequest")
            failure = _not_served(request, error.status, code, str(error), error.details)
            return replace(failure, headers=error.headers)
        except Exception:
            log.exception("request failed", method=request.method, path=request.target.path)
            message = "internal error; see the agent log"
            return _failed(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal", message)

    async def _when_ready(self, request: Request) -> Answer:
        """Route a request; changes wait until the state is restored."""
        if request.method != "GET" and not self._controller.state.observed.ready:
            raise errors.NotReadyError
        return await self._routes(request)

    async def _admit(self, request: Request) -> Response:
        dry_run, replace_pod = _flag(request, "dryRun"), _flag(request, "replace")
        if self._no_requests and not dry_run:
            raise errors.NoRequestsError(self._no_requests)
        body = await _body(request)
        try:
            manifest = await self._manifest_of(body)
            pod = _requiring(manifest.pod, request)
        except errors.InvalidManifestError as error:
            if not dry_run:
                with operation("admit"):
                    self._controller.rejections.report_invalid_request(error)
            raise
        if dry_run:
            answer = await self._controller.preview(pod, replace_pod=replace_pod)
        else:
            answer = await self._controller.admit(pod, replace_pod=replace_pod)
        # Trials take many times as long as the decision: only who reads the advice waits for it.
        if _flag(request, "advice"):
            replaced = self._controller.decider.replaced(pod) if replace_pod else None
            answer = await self._controller.advice.advised(pod, answer, replaced)
        rules = self._controller.state.configured.rules
        names = (name for each in pod.all_containers() for name in each.resources.requests)
        warnings = (*manifest.warnings, *not_allocated(rules, names))
        return _json(replace(answer, warnings=warnings), _admission_status(answer))

    async def _fit(self, request: Request) -> Response:
        most = _count(request, "most", MOST_COPIES, MOST_COPIES)
        pod = (await self._manifest_of(await _body(request))).pod
        return _json(await self._controller.advice.fit(pod, most))

    async def _list(self, _request: Request) -> Response:
        state = self._controller.state
        pods, failed = pods_now(state), state.observed.records.failed_pods()
        return await self._apart(lambda: _json(wire.PodListDocument(pods(), failed)))

    async def _get(self, request: Request) -> Response:
        return _json(await self._controller.pod(request.parameters["uid"]))

    async def _remove(self, request: Request) -> Response:
        return _json(await self._controller.remove(request.parameters["uid"]))

    async def _bind(self, request: Request) -> Response:
        uid, name = request.parameters["uid"], request.parameters["name"]
        body = await _body(request)
        desired = await self._parsed(body, partial(_bind_request, body))
        return _json(await self._controller.bind(uid, name, desired))

    async def _unbind(self, request: Request) -> Response:
        uid, name = request.parameters["uid"], request.parameters["name"]
        return _json(await self._controller.unbind(uid, name))

    async def _watch(self, _request: Request) -> Stream:
        return Stream(self._events, "application/jsonl")

    @contextmanager
    def _events(self) -> Iterator[AsyncIterator[bytes]]:
        with self._controller.events.watch() as watcher:
            yield (wire.encode(event) + b"\n" async for event in watcher)

    async def _status(self, _request: Request) -> Response:
        return await self._apart(
            _json, status_document(self._controller.state, self._controller.clock.time())
        )

    async def _verify(self, _request: Request) -> Response:
        return await self._apart(_json, await self._controller.verify())

    async def _get_topology(self, _request: Request) -> Response:
        body = await self._apart(self._topology, self._controller.state.configured.host)
        return Response(body, content_type=JSON)

    async def _map(self, _request: Request) -> Response:
        draw = map_now(self._controller.state, self._controller.clock.time())
        return await self._apart(lambda: _json(draw()))

    async def _history(self, request: Request) -> Response:
        asked = dict(reversed(request.target.query))
        limit = _count(request, "limit", MOST_ENTRIES, ENTRIES)
        query = HistoryQuery(limit, asked.get("pod", ""), _since(asked.get("since", "0")))
        history = self._controller.state.parts.history
        if history is None:
            raise errors.NoHistoryError
        try:
            async with self._reading:
                found = await history.latest(query)
        except OSError as error:
            raise errors.HistoryUnreadableError(error) from error
        return await self._apart(_json, found)

    async def _reconcile(self, _request: Request) -> Response:
        return _json(await self._controller.reconcile(insist=True))

    async def _cordon(self, request: Request) -> Response:
        asked = _cordon_request(await _body(request))
        return _json(await self._controller.cordon(asked))

    async def _uncordon(self, request: Request) -> Response:
        asked = _cordon_request(await _body(request))
        return _json(await self._controller.uncordon(asked))

    async def _drain(self, request: Request) -> Response:
        if not _flag(request, "dryRun"):
            message = "the agent ends no pods; ask with dryRun=true which would have to end"
            raise errors.RequestError(message, (Mistake("dryRun", "true"),))
        asked = _cordon_request(await _body(request))
        return _json(await drain_plan(self._controller.state, asked.target))

    async def _manifest_of(self, body: bytes) -> Manifest:
        gates = self._controller.state.configured.rules.policy.gates
        load = partial(
            load_manifest,
            body,
            API_SOURCE,
            max_bytes=self.max_bytes,
            pod_level=gates.pod_level_resources,
        )
        try:
            return await self._parsed(body, load)
        except ManifestError as error:
            if b"\n" not in body and body.count(b":") >= _COLONS:
                error.problems = tuple(_as_one_line(problem) for problem in error.problems)
            raise invalid_manifest(error) from error

    async def _parsed(self, body: bytes, parse: Callable[[], _Result]) -> _Result:
        return parse() if len(body) <= SMALL_BYTES else await self._apart(parse)

    async def _apart(
        self, call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """Run a call that takes long in the parser's thread; callers take turns."""
        async with self._parsing:
            return await self._parser.run(call, *args, **kwargs)


#: So many are in every manifest: apiVersion, kind, metadata.
_COLONS: Final = 3


def _as_one_line(problem: Mistake) -> Mistake:
    if not problem.message.startswith(("this is not YAML", "the document is empty")):
        return problem
    hint = "all of it is one line: curl -d removes line ends, --data-binary keeps them"
    return replace(problem, message=f"{problem.message}; {hint}")


def invalid_manifest(error: ManifestError) -> errors.InvalidManifestError:
    """Return the error for a manifest: the number of mistakes, and the first 100 of them."""
    count = len(error.problems)
    summary = f"{count} mistakes in the manifest" if count > 1 else str(error)
    if count > MISTAKES_REPORTED:
        summary = f"{summary}, of which the first {MISTAKES_REPORTED} are listed"
    listed = error.problems[:MISTAKES_REPORTED]
    return errors.InvalidManifestError(summary, listed, error.identity)


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise errors.TooSlowError(BODY_SECONDS) from None


def _bind_request(body: bytes) -> wire.BindRequest:
    try:
        desired = wire.decode(body, wire.BindRequest)
    except msgspec.DecodeError as error:
        expected = 'expected {"cgroup": "/path"} or {"pid": 123}'
        raise errors.BindError(f"{error}; {expected}") from error
    if (desired.cgroup is None) == (desired.pid is None):
        raise errors.BindError(
            "name the container's cgroup or one of its pids: one of them, and not both"
        )
    return desired


def _cordon_request(body: bytes) -> CordonRequest:
    try:
        asked = wire.decode(body, CordonRequest)
    except msgspec.DecodeError as error:
        expected = 'expected {"target": "4-7", "reason": "..."}'
        raise errors.RequestError(f"{error}; {expected}") from error
    # It is kept in the checkpoint and shown in terminals.
    if len(asked.reason) > LONGEST_REASON:
        why = f"reason has {len(asked.reason)} characters, at most {LONGEST_REASON} are kept"
        raise errors.RequestError(why, (Mistake("reason", "length"),))
    if not asked.reason.isprintable():
        why = "reason has control characters, which a line cannot have"
        raise errors.RequestError(why, (Mistake("reason", "printable"),))
    return asked


def _flag(request: Request, name: str) -> bool:
    asked = dict(reversed(request.target.query))
    text = asked.get(name, "false")
    if text not in _BOOLEANS:
        raise errors.RequestError(
            f"{name} is true or false, found {text!r}", (Mistake(name, "boolean"),)
        )
    return _BOOLEANS[text]


def _requiring(pod: Pod, request: Request) -> Pod:
    """Return the pod with what the query requires of its allocation, beside its annotation."""
    asked = dict(reversed(request.target.query)).get("require", "")
    if not asked:
        return pod
    unknown = unknown_qualities(asked)
    if unknown:
        message = f"require has {unknown[0][:32]!r}, which is not one of {', '.join(Quality)}"
        raise errors.RequestError(message, (Mistake("require", "qualities"),))
    both = ",".join(filter(None, (pod.annotations.get(REQUIRE), asked)))
    return replace(pod, annotations=MappingProxyType({**pod.annotations, REQUIRE: both}))


def _since(text: str) -> float:
    """Return the Unix time of a query, in seconds."""
    if _SECONDS.fullmatch(text) is None:
        message = f"since is a Unix time in seconds, found {text[:32]!r}"
        raise errors.RequestError(message, (Mistake("since", "time"),))
    return float(text)


def _count(request: Request, name: str, most: int, default: int) -> int:
    """Return a whole number of the query from 1 to `most`."""
    text = dict(reversed(request.target.query)).get(name, str(default))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
        message = f"{name} is a whole number from 1 to {most}, found {text[:32]!r}"
        raise errors.RequestError(message, (Mistake(name, "number"),))
    return int(text)


def _admission_status(answer: wire.AdmissionDocument) -> HTTPStatus:
    if not answer.admitted:
        return HTTPStatus.CONFLICT
    if answer.already_admitted or answer.dry_run:
        return HTTPStatus.OK
    return HTTPStatus.CREATED


def _not_served(
    request: Request,
    status: HTTPStatus,
    code: str,
    message: str,
    details: tuple[Mistake, ...] = (),
) -> Response:
    """Return the answer to a permitted request that is not served, and log it."""
    path = shortened(request.target.path)
    log.info("request not served", method=request.method, path=path, code=code)
    return _failed(status, code, message, details)


def _failed(
    status: HTTPStatus, code: str, message: str, details: tuple[Mistake, ...] = ()
) -> Response:
    body = wire.ErrorBody(
        code=code,
        message=message,
        details=tuple(details),
        operation=current_operation(),
    )
    return _json(wire.ErrorDocument(error=body), status)


def _json(document: wire.Document, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(wire.encode(document) + b"\n", status, JSON)

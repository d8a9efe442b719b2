"""The handlers of the admission API: HTTP and JSON over the Unix socket (docs/api.md).

In go requests of who may ask (`agent.server.peers.Access`). Out come answers: documents, or the
stream of events. Always true:

- Nothing is changed before the state is restored; what is read may be asked for at any time.
- A body of more than `SMALL_BYTES`, and an answer that may be long, are parsed and written in a
  thread of their own, one at a time: the loop answers other requests meanwhile.
"""

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
from msgspec.structs import replace

from agent.api.documents.admissions import AdmissionDocument, BindRequest, ResizeRequest
from agent.api.documents.document import Document, decode, encode
from agent.api.documents.maintenance import CordonRequest
from agent.api.documents.moves import MoveRequest
from agent.api.documents.pods import PodListDocument
from agent.managers.allocation import API
from agent.managers.node_fit import not_allocated
from agent.pods.manifest import API_SOURCE, load_manifest
from agent.pods.model import REQUIRE, ManifestError, Quality, unknown_qualities
from agent.server import errors
from agent.server.answers import JSON, answer_to_error, answer_without_handler, json_answer
from agent.server.http import InvalidParameterError, Response, Routes, Stream
from agent.server.maintenance import drain_plan
from agent.server.moves import move_of
from agent.server.operations import operation
from agent.server.peers import Access
from agent.server.queue import Turns, Worker
from agent.server.resizes import resize_of
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


_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
_Body = TypeVar("_Body", bound=Document)

#: The longest body of a request if the configuration does not say otherwise, in bytes.
MAX_BODY_BYTES: Final = 4 << 20
#: How long a whole body may take, in seconds.
BODY_SECONDS: Final = 30.0
#: The header of an answer with the id that the log lines of the request have.
OPERATION: Final = "Numawarden-Operation"
#: The most copies of a pod that are tried to say how many fit.
MOST_COPIES: Final = 1000
#: The longest reason of a cordon, in characters.
LONGEST_REASON: Final = 256
#: The most entries of the history that an answer has.
MOST_ENTRIES: Final = 1000
#: The entries of the history that an answer has if the query does not say how many.
ENTRIES: Final = 100
#: The longest body that is parsed in the loop, in bytes.
SMALL_BYTES: Final = 16 << 10

#: A Unix time in a query, in seconds.
_TIME: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
#: The fewest colons of a manifest: those of apiVersion, kind and metadata.
_COLONS: Final = 3


class Api:
    """The routes of `/v1`.

    `topology` writes a host as JSON. Root, the agent's own user and members of `group` may ask. A
    body has at most `max_bytes`. `proc` is where procfs is. `no_requests` says why pods are only
    tried here, "" if they are admitted.
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
        #: Who waits for the parser, and who waits for the history.
        self._parsing, self._reading = Turns(), Turns()
        self._access = Access(self._when_ready, answer_without_handler, group, proc)
        self._routes = Routes(
            [
                ("POST", "/v1/pods", self._admit),
                ("GET", "/v1/pods", self._list),
                ("POST", "/v1/fit", self._fit),
                ("POST", "/v1/plan", self._plan),
                ("GET", "/v1/defragment", self._defragment),
                ("GET", "/v1/pods/{uid}", self._get),
                ("DELETE", "/v1/pods/{uid}", self._remove),
                ("POST", "/v1/pods/{uid}/resize", self._resize),
                ("POST", "/v1/pods/{uid}/move", self._move),
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
                ("POST", "/v1/pods/{uid}/resize"): ("dryRun",),
                ("POST", "/v1/pods/{uid}/move"): ("dryRun",),
                ("GET", "/v1/history"): ("pod", "since", "limit"),
            },
        )

    def close(self) -> None:
        """End the parser thread after its current work."""
        self._parser.close()

    async def answer(self, request: Request) -> Answer:
        """Answer a request; every error is a document, and all errors are logged.

        The request is an operation, whose id the answer has in the header `OPERATION`.
        """
        with operation("request") as identity:
            try:
                answer = await self._access(request)
            except Exception as error:  # noqa: BLE001  # logged with its traceback
                answer = answer_to_error(request, error)
        return replace(answer, headers=(*answer.headers, (OPERATION, identity)))

    async def _when_ready(self, request: Request) -> Answer:
        """Route a request; changes wait until the state is restored."""
        if request.method != "GET" and not self._controller.state.observed.ready:
            raise errors.NotReadyError
        return await self._routes(request)

    async def _admit(self, request: Request) -> Response:
        dry_run, replaces = request.flag("dryRun"), request.flag("replace")
        advises = request.flag("advice")
        if self._no_requests and not dry_run:
            raise errors.NoRequestsError(self._no_requests)
        # 1. Read the pod. A manifest that cannot be read is a rejection, unless it was a trial.
        body = await _body(request)
        try:
            manifest = await self._manifest_of(body)
            pod = _requiring(manifest.pod, request)
        except errors.InvalidManifestError as error:
            if not dry_run:
                with operation("admit"):
                    self._controller.rejections.report_invalid_request(error)
            raise
        pod = await self._controller.decider.informed(pod, API)
        # 2. Admit it, or try whether it would be admitted.
        admit = self._controller.preview if dry_run else self._controller.admit
        answer = await admit(pod, replace_pod=replaces)
        # 3. Add advice. Trials take many times as long as the decision: only who reads the advice
        #    waits for it.
        replaced = self._controller.decider.replaced(pod) if replaces else None
        if advises:
            answer = await self._controller.advice.advised(pod, answer, replaced)
        # 4. Add what is worth a warning.
        rules = self._controller.state.configured.rules
        names = (name for part in pod.all_containers() for name in part.resources.requests)
        warnings = (*manifest.warnings, *not_allocated(rules, names))
        if rules.static_memory:
            lacking = self._controller.advice.lacking
            warnings += await lacking(pod, answer, replaced, advises=advises)
        return json_answer(replace(answer, warnings=warnings), _admission_status(answer))

    async def _fit(self, request: Request) -> Response:
        most = request.number("most", MOST_COPIES, MOST_COPIES)
        manifest = await self._manifest_of(await _body(request))
        pod = await self._controller.decider.informed(manifest.pod, API)
        return json_answer(await self._controller.advice.fit(pod, most))

    async def _plan(self, request: Request) -> Response:
        manifest = await self._manifest_of(await _body(request))
        pod = await self._controller.decider.informed(manifest.pod, API)
        return json_answer(await self._controller.plan(pod))

    async def _defragment(self, _request: Request) -> Response:
        return json_answer(await self._controller.defragment())

    async def _list(self, _request: Request) -> Response:
        state = self._controller.state
        pods, failed = pods_now(state), state.observed.records.failed_pods()
        return await self._apart(lambda: json_answer(PodListDocument(pods(), failed)))

    async def _get(self, request: Request) -> Response:
        return json_answer(await self._controller.pod(request.path_parameters["uid"]))

    async def _remove(self, request: Request) -> Response:
        return json_answer(await self._controller.remove(request.path_parameters["uid"]))

    async def _resize(self, request: Request) -> Response:
        dry_run = request.flag("dryRun")
        asked = resize_of(request.path_parameters["uid"], _resize_request(await _body(request)))
        answer = await self._controller.resize(asked, dry_run=dry_run)
        return json_answer(answer, HTTPStatus.OK if answer.admitted else HTTPStatus.CONFLICT)

    async def _move(self, request: Request) -> Response:
        dry_run = request.flag("dryRun")
        asked = move_of(request.path_parameters["uid"], _move_request(await _body(request)))
        answer = await self._controller.move(asked, dry_run=dry_run)
        return json_answer(answer, HTTPStatus.OK if answer.admitted else HTTPStatus.CONFLICT)

    async def _bind(self, request: Request) -> Response:
        uid, name = request.path_parameters["uid"], request.path_parameters["name"]
        body = await _body(request)
        desired = await self._parsed(body, partial(_bind_request, body))
        return json_answer(await self._controller.bind(uid, name, desired))

    async def _unbind(self, request: Request) -> Response:
        uid, name = request.path_parameters["uid"], request.path_parameters["name"]
        return json_answer(await self._controller.unbind(uid, name))

    async def _watch(self, _request: Request) -> Stream:
        return Stream(self._events, "application/jsonl")

    @contextmanager
    def _events(self) -> Iterator[AsyncIterator[bytes]]:
        with self._controller.events.watch() as watcher:
            yield (encode(event) + b"\n" async for event in watcher)

    async def _status(self, _request: Request) -> Response:
        return await self._apart(
            json_answer, status_document(self._controller.state, self._controller.clock.time())
        )

    async def _verify(self, _request: Request) -> Response:
        return await self._apart(json_answer, await self._controller.verify())

    async def _get_topology(self, _request: Request) -> Response:
        body = await self._apart(self._topology, self._controller.state.configured.host)
        return Response(body, content_type=JSON)

    async def _map(self, _request: Request) -> Response:
        draw = map_now(self._controller.state, self._controller.clock.time())
        return await self._apart(lambda: json_answer(draw()))

    async def _history(self, request: Request) -> Response:
        limit = request.number("limit", MOST_ENTRIES, ENTRIES)
        query = HistoryQuery(limit, request.parameter("pod", ""), _since(request))
        history = self._controller.state.parts.history
        if history is None:
            raise errors.NoHistoryError
        try:
            async with self._reading:
                entries = await history.latest(query)
        except OSError as error:
            raise errors.HistoryUnreadableError(error) from error
        return await self._apart(json_answer, entries)

    async def _reconcile(self, _request: Request) -> Response:
        return json_answer(await self._controller.reconcile(insist=True))

    async def _cordon(self, request: Request) -> Response:
        return json_answer(await self._controller.cordon(await self._cordon_request(request)))

    async def _uncordon(self, request: Request) -> Response:
        return json_answer(await self._controller.uncordon(await self._cordon_request(request)))

    async def _drain(self, request: Request) -> Response:
        if not request.flag("dryRun"):
            message = "the agent ends no pods; ask with dryRun=true which would have to end"
            raise errors.RequestError(message, (Mistake("dryRun", "true"),))
        cordon = await self._cordon_request(request)
        return json_answer(await drain_plan(self._controller.state, cordon.target))

    async def _cordon_request(self, request: Request) -> CordonRequest:
        body = await _body(request)
        return await self._parsed(body, partial(_cordon_request, body))

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
                error.problems = tuple(map(_with_hint_on_curl, error.problems))
            raise _invalid_manifest(error) from error

    async def _parsed(self, body: bytes, parse: Callable[[], _Result]) -> _Result:
        return parse() if len(body) <= SMALL_BYTES else await self._apart(parse)

    async def _apart(
        self, call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """Run a call that takes long in the parser's thread; callers take turns."""
        async with self._parsing:
            return await self._parser.run(call, *args, **kwargs)


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise errors.TooSlowError(BODY_SECONDS) from None


def _decoded(
    body: bytes, kind: type[_Body], example: str, wrong: type[errors.RequestError]
) -> _Body:
    """Return the document of a body; raises `wrong`, which shows an example."""
    try:
        return decode(body, kind)
    except msgspec.DecodeError as error:
        raise wrong(f"{error}; expected {example}") from error


def _bind_request(body: bytes) -> BindRequest:
    example = '{"cgroup": "/path"} or {"pid": 123}'
    desired = _decoded(body, BindRequest, example, errors.BindError)
    if (desired.cgroup is None) == (desired.pid is None):
        raise errors.BindError(
            "name the container's cgroup or one of its pids: one of them, and not both"
        )
    return desired


def _resize_request(body: bytes) -> ResizeRequest:
    example = '{"container": "main", "cpus": "6", "memory": "12Gi", "keep": "2-3"}'
    return _decoded(body, ResizeRequest, example, errors.ResizeError)


def _move_request(body: bytes) -> MoveRequest:
    example = '{"cpus": "2-3", "newCpus": "8-9", "nodes": "0", "newNodes": "1"}'
    return _decoded(body, MoveRequest, example, errors.MoveError)


def _cordon_request(body: bytes) -> CordonRequest:
    example = '{"target": "4-7", "reason": "..."}'
    cordon = _decoded(body, CordonRequest, example, errors.RequestError)
    # The reason is kept in the checkpoint and shown in terminals.
    if len(cordon.reason) > LONGEST_REASON:
        why = f"reason has {len(cordon.reason)} characters, at most {LONGEST_REASON} are kept"
        raise errors.RequestError(why, (Mistake("reason", "length"),))
    if not cordon.reason.isprintable():
        why = "reason has control characters, which a line cannot have"
        raise errors.RequestError(why, (Mistake("reason", "printable"),))
    return cordon


def _invalid_manifest(error: ManifestError) -> errors.InvalidManifestError:
    """Return the error for a manifest: the number of mistakes, and the first 100 of them."""
    count = len(error.problems)
    summary = f"{count} mistakes in the manifest" if count > 1 else str(error)
    if count > MISTAKES_REPORTED:
        summary = f"{summary}, of which the first {MISTAKES_REPORTED} are listed"
    listed = error.problems[:MISTAKES_REPORTED]
    return errors.InvalidManifestError(summary, listed, error.identity)


def _with_hint_on_curl(problem: Mistake) -> Mistake:
    """Return a mistake in a manifest of one line, with what probably made it one."""
    if not problem.message.startswith(("this is not YAML", "the document is empty")):
        return problem
    hint = "all of it is one line: curl -d removes line ends, --data-binary keeps them"
    return replace(problem, message=f"{problem.message}; {hint}")


def _requiring(pod: Pod, request: Request) -> Pod:
    """Return the pod with what the query requires of its allocation, beside its annotation."""
    required = request.parameter("require", "")
    if not required:
        return pod
    unknown = unknown_qualities(required)
    if unknown:
        message = f"require has {unknown[0][:32]!r}, which is not one of {', '.join(Quality)}"
        raise errors.RequestError(message, (Mistake("require", "qualities"),))
    both = ",".join(filter(None, (pod.annotations.get(REQUIRE), required)))
    return replace(pod, annotations=MappingProxyType({**pod.annotations, REQUIRE: both}))


def _since(request: Request) -> float:
    """Return the Unix time from which on entries are asked for, in seconds."""
    text = request.parameter("since", "0")
    if _TIME.fullmatch(text) is None:
        raise InvalidParameterError("since", "a Unix time in seconds", text, "time")
    return float(text)


def _admission_status(answer: AdmissionDocument) -> HTTPStatus:
    if not answer.admitted:
        return HTTPStatus.CONFLICT
    if answer.already_admitted or answer.dry_run:
        return HTTPStatus.OK
    return HTTPStatus.CREATED

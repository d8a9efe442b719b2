"""The API as an OpenAPI document: `docs/openapi.json`, which `make docs` writes.

Routes, their query parameters and the schemas of documents are the agent's own. What a request
does, and which document answers it with which status, stands in the tables of `docs/api.md` and
nowhere else: `*failed pod*` there is `FailedPodDocument` here. `NAMED` has those with another name.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

import agent
import agent.api
from agent.api.documents.admissions import BindDocument, BindRequest
from agent.api.documents.document import Document
from agent.api.documents.errors import ErrorDocument
from agent.api.documents.maintenance import CordonRequest
from agent.api.documents.moves import MoveRequest
from agent.api.documents.pods import PodListDocument
from agent.api.topology import TopologyView
from agent.server.handlers import MOST_COPIES, Api
from tests.docs.hosts import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.server.controller import Controller

PAGE: Final = ROOT / "docs/api.md"

#: Documents whose name is not made of the word for them in the reference.
NAMED: Final[Mapping[str, type]] = {"binding": BindDocument}
#: Values of the core that are documents as they are, and what they are called as documents.
CORE: Final[Mapping[str, str]] = {
    "Advice": "AdviceDocument",
    "DeviceNode": "DeviceNodeDocument",
    "FreeCpus": "FreeCpusDocument",
    "Mistake": "ErrorDetail",
    "Mount": "MountDocument",
    "Shortage": "ShortageDocument",
    "SlowCause": "SlowCauseDocument",
    "Slowness": "SlownessDocument",
    "Violation": "ViolationDocument",
    "Writer": "WriterDocument",
}
#: Answers that the reference does not name by a word.
ANSWERS: Final[Mapping[tuple[str, str], type]] = {
    ("GET", "/v1/pods"): PodListDocument,
    ("GET", "/v1/topology"): TopologyView,
}
#: Bodies that have a type; of others the reference shows an example.
BODIES: Final[Mapping[tuple[str, str], type]] = {
    ("POST", "/v1/pods/{uid}/containers/{name}/bind"): BindRequest,
    ("POST", "/v1/pods/{uid}/move"): MoveRequest,
    ("POST", "/v1/cordon"): CordonRequest,
    ("POST", "/v1/uncordon"): CordonRequest,
    ("POST", "/v1/drain"): CordonRequest,
}
#: Query parameters that are more than text.
QUERY: Final[Mapping[str, Mapping[str, object]]] = {
    "dryRun": {"type": "boolean", "default": False},
    "replace": {"type": "boolean", "default": False},
    "advice": {"type": "boolean", "default": False},
    "require": {"type": "string", "description": "Qualities, separated by commas."},
    "most": {"type": "integer", "minimum": 1, "maximum": MOST_COPIES, "default": MOST_COPIES},
}
#: Statuses of errors that every request may end with; those of requests with a body, for one pod,
#: of those that change something, and of those that change a pod.
_ALWAYS: Final = ("400", "403", "431", "500", "503")
_WITH_BODY: Final = ("408", "413", "422")
_OF_POD: Final = ("404",)
_CHANGING: Final = ("507",)
_CONFLICTING: Final = ("409",)

_ROW: Final = re.compile(r"^\| `([A-Z]+) (/v1/[^`?]*)[^`]*` \| (.+) \| (.+) \|$", re.MULTILINE)
_ERROR: Final = re.compile(r"^\| (\d{3}) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
_STATUS: Final = re.compile(r"\b([2-5]\d\d)\b( `\w+`)?")
_DOCUMENT: Final = re.compile(r"\*([a-z ]+)\*")
_EXAMPLE: Final = re.compile(r"`(\{.*?\})`")
_COMMENT: Final = re.compile(r"((?: {4}#: .*\n)+) {4}(\w+):")
_REFERENCE: Final = "#/components/schemas/{name}"


class Route(NamedTuple):
    """A request of the API, with what the reference says that it does and answers."""

    method: str
    path: str
    does: str
    answers: str

    @property
    def key(self) -> tuple[str, str]:
        """The method and the path."""
        return self.method, self.path


def openapi_text() -> str:
    """Return the document as JSON."""
    return json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"


def openapi() -> dict[str, Any]:
    """Return the document; raises `LookupError` for what the reference says of no known type."""
    documents = _documents()
    text = PAGE.read_text()
    routes = routes_in(text)
    types: list[type] = [ErrorDocument, *ANSWERS.values(), *BODIES.values(), *documents.values()]
    _, schemas = msgspec.json.schema_components(
        dict.fromkeys(types), ref_template=_REFERENCE.format(name="{name}")
    )
    _describe_fields(schemas)
    schemas = _as_documents(schemas)
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].split())
    paths: dict[str, dict[str, Any]] = {}
    errors = errors_in(text)
    for route in routes:
        operation = _operation(route, documents, errors)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Numawarden admission API",
            "version": agent.__version__,
            "summary": "HTTP over the Unix socket of the agent, for users that it admits",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://numawarden", "description": "over agent.socketPath"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": {f"Error{status}": _error(rows) for status, rows in errors.items()},
        },
    }


def served() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the query parameters of each route of the agent, by method and path."""
    progress = SimpleNamespace(part=lambda _name: None)
    state = SimpleNamespace(parts=SimpleNamespace(progress=progress))
    controller = SimpleNamespace(worker=SimpleNamespace(clock=None), state=state)
    api = Api(cast("Controller", controller), lambda _: b"")
    return {
        (route.method, "/" + "/".join(route.path)): route.parameters or ()
        for route in api._routes.routes
    }


def routes_in(text: str) -> list[Route]:
    """Return the requests of the reference; further rows of one add to what it does."""
    found: dict[tuple[str, str], Route] = {}
    for method, path, does, answers in _ROW.findall(text):
        first = found.get((method, path))
        said = does if first is None else f"{first.does}\n\n{does}"
        found[method, path] = Route(method, path, said, first.answers if first else answers)
    return list(found.values())


def errors_in(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the codes of errors and what they mean, by their status."""
    section = text.partition("\n## Errors\n")[2].partition("\n## ")[0]
    errors: dict[str, list[tuple[str, str]]] = {}
    for status, codes, means in _ERROR.findall(section):
        errors.setdefault(status, []).extend(
            (code, means) for code in re.findall(r"`(.+?)`", codes)
        )
    return dict(sorted(errors.items()))


def _as_documents(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return schemas with the names of documents for values of the core."""
    text = json.dumps(schemas)
    for name, document in CORE.items():
        for lead in (_REFERENCE.format(name=""), '"title": "'):
            text = text.replace(f'{lead}{name}"', f'{lead}{document}"')
    return {CORE.get(name, name): schema for name, schema in json.loads(text).items()}


def _documents() -> dict[str, type]:
    """Return the type of every document by the word for it, of all modules of `agent.api`."""
    for module in pkgutil.walk_packages(agent.api.__path__, "agent.api."):
        import_module(module.name)
    ours = (kind for kind in _below(Document) if kind.__module__.startswith("agent.api."))
    named = {_word(kind.__name__): kind for kind in ours}
    return {**named, **NAMED}


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _word(name: str) -> str:
    """Return `failed pod` for `FailedPodDocument`."""
    return " ".join(re.findall("[A-Z][a-z]*", name.removesuffix("Document"))).lower()


def _operation(
    route: Route, documents: Mapping[str, type], errors: Mapping[str, list[tuple[str, str]]]
) -> dict[str, Any]:
    summary, _, more = route.does.partition("\n\n")
    operation: dict[str, Any] = {"summary": _plain(summary)}
    if more:
        operation["description"] = _plain(more)
    parameters = [*_parameters(route)]
    if parameters:
        operation["parameters"] = parameters
    body = _body(route)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    changing = route.method != "GET" and "nothing is changed" not in route.does
    of_pod = "{uid}" in route.path
    statuses = [
        *_ALWAYS,
        *(_WITH_BODY if body else ()),
        *(_OF_POD if of_pod else ()),
        *(_CHANGING if changing else ()),
        *(_CONFLICTING if changing and of_pod else ()),
    ]
    responses = {
        status: {"$ref": f"#/components/responses/Error{status}"}
        for status in statuses
        if status in errors
    }
    for status, code in _STATUS.findall(route.answers):
        responses[status] = (
            {"$ref": f"#/components/responses/Error{status}"}
            if code
            else _answer(route, status, documents)
        )
    operation["responses"] = dict(sorted(responses.items()))
    return operation


def _answer(route: Route, status: str, documents: Mapping[str, type]) -> dict[str, Any]:
    words = _DOCUMENT.findall(route.answers)
    unknown = [word for word in words if word not in documents]
    kinds = [documents[word] for word in words if word in documents]
    kinds = [ANSWERS[route.key]] if route.key in ANSWERS else kinds
    if unknown or not kinds:
        raise LookupError(
            f"docs/api.md says {route.answers!r} of {route.method} {route.path}: no type of"
            f" agent.api is called {unknown}; name it in tests/docs/openapi.py (NAMED, ANSWERS)"
        )
    media = "application/jsonl" if " lines" in route.answers else "application/json"
    schemas = [{"$ref": _REFERENCE.format(name=kind.__name__)} for kind in kinds]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    description = "rejected" if status == "409" else " or ".join(words) or kinds[0].__name__
    return {"description": description, "content": {media: {"schema": schema}}}


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name in served().get(route.key, ()):
        schema = QUERY.get(name, {"type": "string"})
        yield {"name": name, "in": "query", "schema": dict(schema)}


def _body(route: Route) -> dict[str, Any] | None:
    """Return the content of the request's body, None for requests without one."""
    if "Pod manifest" in route.does:
        schema = {"type": "object", "description": "a v1.Pod"}
        return {kind: {"schema": schema} for kind in ("application/yaml", "application/json")}
    if not re.search(r"\bbody `", route.does):
        return None
    examples = [json.loads(text) for text in _EXAMPLE.findall(route.does)]
    kind = BODIES.get(route.key)
    schema = {"$ref": _REFERENCE.format(name=kind.__name__)} if kind else {"type": "object"}
    return {"application/json": {"schema": schema, "example": examples[0]}}


def _describe_fields(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Give each field of a document the comment that stands at it."""
    structs = {kind.__name__: kind for kind in _below(msgspec.Struct)}
    for name, schema in schemas.items():
        kind = structs.get(name)
        if kind is None:
            continue
        keys = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
        for comment, field in _COMMENT.findall(inspect.getsource(kind)):
            text = " ".join(comment.replace("#:", "").split())
            schema["properties"][keys[field]]["description"] = text


def _error(rows: Iterable[tuple[str, str]]) -> dict[str, Any]:
    rows = list(rows)
    described = "\n".join(
        f"- `{code}`{f': {_plain(means)}' if means else ''}" for code, means in rows
    )
    schema = {"$ref": _REFERENCE.format(name=ErrorDocument.__name__)}
    return {
        "description": described,
        "content": {"application/json": {"schema": schema}},
        "x-error-codes": [code for code, _ in rows],
    }


def _plain(text: str) -> str:
    """Return a cell of a table without its links and emphasis."""
    return re.sub(r"\*([a-z ]+)\*", r"\1", re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text))

"""An API server of a cluster as far as the agent asks it: over TLS, with faults on request.

It keeps NodeResourceTopologies with their field managers and Events, and checks what is sent as the
real one would: the required fields of the CustomResourceDefinition (v1alpha2), the token, who owns
what is applied.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN: Final = "a-token-of-the-agent"  # noqa: S105  # of this fake alone
TOPOLOGIES: Final = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/"
_NODES: Final = "/api/v1/nodes/"
_EVENTS: Final = re.compile(r"/api/v1/namespaces/([^/]+)/events(?:/([^/]+))?")
#: The pattern of a quantity in the CustomResourceDefinition.
_QUANTITY: Final = re.compile(
    r"(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?"
)


class Fault(Enum):
    """What the server does instead of answering."""

    HANG = "never answers"
    DRIP = "answers a byte now and then, without end"
    GARBAGE = "answers what is not HTTP"
    ENDLESS = "answers more than anyone could read"
    CLOSE = "closes the connection"
    HTML = "answers 200 with a page"
    TRUNCATED = "announces more than it sends"


@dataclass(frozen=True)
class Failure:
    """An answer with a status; `text` in plain text instead of a Status object."""

    status: int
    message: str = ""
    text: str = ""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    content_type: str
    body: dict[str, Any]


@dataclass
class FakeApiServer:
    """What the server has, what it was asked, and what it is to do wrong.

    `faults` are taken one by one, `always` stays.
    """

    port: int = 0
    topologies: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    #: The versions of each node's kubelet, an answer each.
    kubelets: dict[str, list[str]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault | Failure] = field(default_factory=list)
    always: Fault | Failure | None = None
    token: str = TOKEN
    ending: threading.Event = field(default_factory=threading.Event)
    uids: int = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def paths(self, method: str) -> list[str]:
        return [request.path for request in self.requests if request.method == method]

    def answer(self, request: Request, token: str) -> tuple[int, dict[str, Any] | str]:
        """Return status and body: an object, or plain text."""
        if token != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if request.path.startswith(TOPOLOGIES):
            return self._topology(request, request.path.removeprefix(TOPOLOGIES))
        if request.path.startswith(_NODES):
            version = self.kubelets[request.path.removeprefix(_NODES)].pop(0)
            return 200, {"kind": "Node", "status": {"nodeInfo": {"kubeletVersion": version}}}
        if match := _EVENTS.fullmatch(request.path):
            return self._event(request, match[1], match[2])
        return 404, "404 page not found\n"

    def _topology(self, request: Request, name: str) -> tuple[int, dict[str, Any] | str]:
        known = self.topologies.get(name)
        if request.method == "PATCH":
            return self._apply(request, name)
        if known is None:
            what = f'noderesourcetopologies.topology.node.k8s.io "{name}" not found'
            return _status(404, what)
        if request.method == "DELETE":
            if request.body["preconditions"]["uid"] != known["metadata"]["uid"]:
                return _status(409, "the UID in the precondition does not match the UID in record")
            del self.topologies[name]
        return 200, known

    def _apply(self, request: Request, name: str) -> tuple[int, dict[str, Any] | str]:
        manager = request.query["fieldManager"][0]
        assert request.content_type == "application/apply-patch+yaml"
        assert request.body["metadata"] == {"name": name}
        if wrong := crd_mistakes(request.body):
            return _status(422, "; ".join(wrong))
        known = self.topologies.get(name)
        if known is None:
            self.uids += 1
            metadata = {"name": name, "uid": f"uid-{self.uids}"}
            made = {**request.body, "metadata": metadata}
            metadata["managedFields"] = [{"manager": manager}]  # type: ignore[assignment]
            self.topologies[name] = made
            return 201, made
        owners = [owner["manager"] for owner in known["metadata"]["managedFields"]]
        if owners != [manager] and known["zones"] != request.body["zones"]:
            other = next(owner for owner in owners if owner != manager)
            return _status(409, f'Apply failed with 1 conflict: conflict with "{other}": .zones')
        self.topologies[name] = {**request.body, "metadata": known["metadata"]}
        return 200, self.topologies[name]

    def _event(
        self, request: Request, namespace: str, name: str | None
    ) -> tuple[int, dict[str, Any] | str]:
        if request.method == "POST":
            made = request.body
            assert made["metadata"]["namespace"] == made["involvedObject"]["namespace"] == namespace
            self.events[namespace, made["metadata"]["name"]] = made
            return 201, made
        assert name is not None
        assert request.content_type == "application/merge-patch+json"
        known = self.events.get((namespace, name))
        if known is None:
            return _status(404, f'events "{name}" not found')
        known.update(request.body)
        return 200, known


def crd_mistakes(document: dict[str, Any]) -> list[str]:
    """Return what the schema of the CustomResourceDefinition (v1alpha2) rejects, a line each."""
    wrong = [] if "zones" in document else ["zones: Required value"]
    wrong += _unknown(document, {"apiVersion", "kind", "metadata", "attributes", "zones"}, "")
    for attribute in document.get("attributes", ()):
        wrong += _texts(attribute, ("name", "value"), "attributes")
    for zone in document.get("zones", ()):
        where = f"zones[{zone.get('name')}]"
        wrong += _unknown(zone, {"name", "type", "costs", "resources", "attributes", "parent"}, "")
        wrong += _texts({key: zone.get(key) for key in ("name", "type")}, ("name", "type"), where)
        for cost in zone.get("costs", ()):
            if not isinstance(cost.get("value"), int) or not isinstance(cost.get("name"), str):
                wrong.append(f"{where}.costs: {cost}")
        for resource in zone.get("resources", ()):
            amounts = ("capacity", "allocatable", "available")
            wrong += _texts(resource, ("name", *amounts), where)
            wrong += [
                f"{where}.{resource['name']}.{key}: {resource[key]}"
                for key in amounts
                if not _QUANTITY.fullmatch(str(resource.get(key)))
            ]
    return wrong


def _texts(found: dict[str, Any], keys: tuple[str, ...], where: str) -> list[str]:
    missing = [f"{where}.{key}: Required value" for key in keys if type(found.get(key)) is not str]
    return missing + _unknown(found, set(keys), where)


def _unknown(found: dict[str, Any], keys: set[str], where: str) -> list[str]:
    return [f"{where}.{key}: unknown field" for key in sorted(found.keys() - keys)]


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        fake = self.server.fake
        length = int(self.headers["Content-Length"])
        content = self.rfile.read(length)
        url = urlsplit(self.path)
        request = Request(
            self.command,
            url.path,
            parse_qs(url.query),
            self.headers["Content-Type"],
            json.loads(content) if content else {},
        )
        fake.requests.append(request)
        fault = fake.faults.pop(0) if fake.faults else fake.always
        if isinstance(fault, Fault):
            self.close_connection = True
            with suppress(OSError):
                self._fail(fault)
            return
        if fault is not None:
            failure = _status(fault.status, fault.message)[1]
            self._reply(fault.status, fault.text or failure)
            return
        self._reply(*fake.answer(request, self.headers["Authorization"]))

    do_GET = do_PATCH = do_POST = do_DELETE = _serve  # noqa: N815  # names of the base class

    def _reply(self, status: int, body: dict[str, Any] | str) -> None:
        """Answer as the real one does: long answers in chunks."""
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        kind = "text/plain" if isinstance(body, str) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for start in range(0, len(content), 100):
            chunk = content[start : start + 100]
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _fail(self, fault: Fault) -> None:
        ending = self.server.fake.ending
        match fault:
            case Fault.HANG:
                ending.wait()
            case Fault.DRIP:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not ending.wait(0.01):
                    self.wfile.write(b"x")
            case Fault.GARBAGE:
                self.wfile.write(b"\x00\xff\x16 SSH-2.0-OpenSSH\r\n\r\n" * 3)
            case Fault.ENDLESS:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while not ending.is_set():
                    self.wfile.write(b"x" * 65536)
            case Fault.HTML:
                page = b"<html>a proxy</html>"
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + page)
            case Fault.TRUNCATED:
                self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a": 1}')
            case Fault.CLOSE:
                pass

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # of the base class
        """Keep quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    fake: FakeApiServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: a client that goes away is part of the tests."""


@contextmanager
def api_server(certificate: Path) -> Iterator[FakeApiServer]:
    """Serve with a certificate and its key in one PEM file, until the block ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        server.fake = FakeApiServer(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.fake
        finally:
            server.fake.ending.set()
            server.shutdown()
            thread.join()

"""A client of the admission API over its Unix socket, on the standard library alone.

The command line starts in a tenth of a second because this needs no HTTP framework.
"""

from __future__ import annotations

import errno
import http.client
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from agent.api.documents.admissions import (
    AdmissionDocument,
    BindDocument,
    BindRequest,
    FitDocument,
    RemovalDocument,
)
from agent.api.documents.document import Document, decode, encode
from agent.api.documents.errors import ErrorBody, ErrorDocument
from agent.api.documents.history import EventDocument, HistoryDocument
from agent.api.documents.maintenance import CordonRequest, CordonsDocument, DrainDocument
from agent.api.documents.map import MapDocument
from agent.api.documents.moves import DefragmentDocument, MovesDocument
from agent.api.documents.pods import PodDocument, PodListDocument
from agent.api.documents.rejections import FailedPodDocument
from agent.api.documents.status import StatusDocument
from agent.api.documents.verification import ReconcileDocument, VerificationDocument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.admissions import ResizeRequest
    from agent.api.documents.moves import MoveRequest


_Document = TypeVar("_Document", bound=Document)

DEFAULT_TIMEOUT: Final = 60.0
#: A request that the agent had no room for is sent again after so many seconds (its `Retry-After`).
AGAIN_SECONDS: Final = 1.0


class Unreachable(Exception):  # noqa: N818  # named after the state
    """The agent does not respond at `path`; `why` has the reason and a remedy."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"cannot reach the agent at {path}: {why}")


class AgentError(Exception):  # named after its source
    """The agent answered with an error; `status` is the HTTP status, `body` the whole answer."""

    def __init__(self, status: int, error: ErrorBody, body: bytes) -> None:
        # A single mistake is the message already.
        details = error.details if len(error.details) > 1 else ()
        found = f" (operation {error.operation})" if error.operation else ""
        super().__init__("\n".join((f"{error.message}{found}", *map(str, details))))
        self.status = status
        self.error = error
        self.body = body


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect; where the agent's backlog is full, wait for room in it, first come first served.

        That is what a blocking connect(2) does; its deadline is that of sending (socket(7)).
        """
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if self.timeout is not None:
            whole, part = divmod(self.timeout, 1)
            limit = struct.pack("@ll", int(whole), max(1, int(part * 1e6)))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.sock.connect(self._path)
        self.sock.settimeout(self.timeout)


class AgentClient:
    """One connection per call to the agent that listens at `socket_path`.

    Every call but `watch`, once events flow, ends `timeout` seconds after the agent's last sign of
    life with `Unreachable`.
    """

    def __init__(self, socket_path: Path | str, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._path = str(socket_path)
        self._timeout = timeout

    @property
    def timeout(self) -> float:
        """How long a call waits for the agent, in seconds."""
        return self._timeout

    def admit(
        self,
        manifest: bytes,
        *,
        dry_run: bool = False,
        require: str = "",
        replace: bool = False,
        advice: bool = False,
    ) -> AdmissionDocument:
        """Ask to admit the pod of a manifest (YAML or JSON); a rejection is not an error.

        `require` are names of what the allocation has to have, separated by commas. With `replace`
        the pod takes the place of the admitted pod of its name. With `advice` the answer to a
        rejected pod says which changes would let it be admitted; they are tried before the answer.
        """
        asked = {
            "dryRun": "true" if dry_run else "",
            "require": require,
            "replace": "true" if replace else "",
            "advice": "true" if advice else "",
        }
        query = urlencode({name: text for name, text in asked.items() if text})
        path = f"/v1/pods?{query}" if query else "/v1/pods"
        try:
            return self._call("POST", path, AdmissionDocument, manifest)
        except AgentError as rejected:
            decided = _as(rejected.body, AdmissionDocument)
            if decided is None:
                raise
            return decided

    def fit(self, manifest: bytes, most: int) -> FitDocument:
        """Return how many copies of the pod of a manifest would be admitted now, up to `most`."""
        return self._call("POST", f"/v1/fit?most={most}", FitDocument, manifest)

    def remove(self, uid: str) -> RemovalDocument:
        """Remove the pod of a uid."""
        return self._call("DELETE", f"/v1/pods/{_segment(uid)}", RemovalDocument)

    def pods(self) -> tuple[PodDocument, ...]:
        """Return all pods in the order of admission."""
        return self.pod_list().pods

    def pod_list(self) -> PodListDocument:
        """Return all pods in the order of admission, and the latest that are not admitted."""
        return self._call("GET", "/v1/pods", PodListDocument)

    def pod(self, uid: str) -> PodDocument:
        """Return one pod with its explanation and the kernel's settings."""
        return self._call("GET", f"/v1/pods/{_segment(uid)}", PodDocument)

    def failed(self, uid: str) -> FailedPodDocument | None:
        """Return the status of a pod that was rejected, None when it is not (or not kept)."""
        try:
            answer = self._request("GET", f"/v1/pods/{_segment(uid)}", None)
        except AgentError as rejected:
            if rejected.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise
        return _as(answer, FailedPodDocument)

    def resize(
        self, uid: str, request: ResizeRequest, *, dry_run: bool = False
    ) -> AdmissionDocument:
        """Give a running pod other amounts; return the answer, also if it is rejected."""
        return self._changed(uid, "resize", encode(request), dry_run=dry_run)

    def move(self, uid: str, request: MoveRequest, *, dry_run: bool = False) -> AdmissionDocument:
        """Give a running pod other CPUs and nodes; return the answer, also if it is rejected."""
        return self._changed(uid, "move", encode(request), dry_run=dry_run)

    def _changed(self, uid: str, what: str, body: bytes, *, dry_run: bool) -> AdmissionDocument:
        path = f"/v1/pods/{_segment(uid)}/{what}{'?dryRun=true' if dry_run else ''}"
        try:
            return self._call("POST", path, AdmissionDocument, body)
        except AgentError as error:
            if (answer := _as(error.body, AdmissionDocument)) is None:
                raise
            return answer

    def plan(self, manifest: bytes) -> MovesDocument:
        """Return which moves would make room for the pod of a manifest."""
        return self._call("POST", "/v1/plan", MovesDocument, manifest)

    def defragment(self) -> DefragmentDocument:
        """Return which moves would give one NUMA node more free CPUs."""
        return self._call("GET", "/v1/defragment", DefragmentDocument)

    def bind(self, uid: str, container: str, request: BindRequest) -> BindDocument:
        """Bind a container to a cgroup."""
        path = f"/v1/pods/{_segment(uid)}/containers/{_segment(container)}/bind"
        return self._call("POST", path, BindDocument, encode(request))

    def unbind(self, uid: str, container: str) -> BindDocument:
        """Remove the binding of a container; the answer has the cgroup that was bound."""
        path = f"/v1/pods/{_segment(uid)}/containers/{_segment(container)}/bind"
        return self._call("DELETE", path, BindDocument)

    def status(self) -> StatusDocument:
        """Return the agent's status."""
        return self._call("GET", "/v1/status", StatusDocument)

    def verify(self) -> VerificationDocument:
        """Return a comparison of the kernel with the ledger."""
        return self._call("GET", "/v1/verify", VerificationDocument)

    def reconcile(self) -> ReconcileDocument:
        """Reconcile the kernel with the ledger now."""
        return self._call("POST", "/v1/reconcile", ReconcileDocument)

    def cordon(self, request: CordonRequest) -> CordonsDocument:
        """Take CPUs, cores or NUMA nodes out of use."""
        return self._call("POST", "/v1/cordon", CordonsDocument, encode(request))

    def uncordon(self, request: CordonRequest) -> CordonsDocument:
        """Use CPUs, cores or NUMA nodes again."""
        return self._call("POST", "/v1/uncordon", CordonsDocument, encode(request))

    def drain(self, target: str) -> DrainDocument:
        """Return which pods would have to end before a target is empty."""
        body = encode(CordonRequest(target=target))
        return self._call("POST", "/v1/drain?dryRun=true", DrainDocument, body)

    def topology(self) -> bytes:
        """Return the observed host as JSON (`numawarden topology --output json`)."""
        return self._request("GET", "/v1/topology", None)

    def map(self) -> MapDocument:
        """Return who uses which CPU, memory and device."""
        return self._call("GET", "/v1/map", MapDocument)

    def history(self, *, pod: str = "", since: float = 0.0, limit: int) -> HistoryDocument:
        """Return the latest entries of the history, the latest first: at most `limit`.

        `pod` is a uid, name or namespace/name ("": all), `since` a Unix time in seconds.
        """
        query = urlencode({"pod": pod, "since": f"{since:.6f}", "limit": limit})
        return self._call("GET", f"/v1/history?{query}", HistoryDocument)

    def watch(self) -> Iterator[EventDocument]:
        """Yield events as they happen, until the agent stops; only the first answer has a limit."""
        connection = _UnixConnection(self._path, self._timeout)
        try:
            connection.connect()
            stream = connection.sock
            response = self._open(connection, "GET", "/v1/watch", None)
            stream.settimeout(None)
            if response.status != http.HTTPStatus.OK:
                raise _rejected(self._path, response.status, response.read())
            while line := response.readline():
                yield decode(line, EventDocument)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(self._path, self._why(error)) from error
        finally:
            connection.close()

    def _why(self, error: OSError | http.client.HTTPException) -> str:
        if isinstance(error, ConnectionRefusedError) and not Path(self._path).is_socket():
            return "it is not a socket; name the agent's (agent.socketPath)"
        return reason_of(error, self._timeout)

    def _call(
        self, method: str, path: str, kind: type[_Document], body: bytes | None = None
    ) -> _Document:
        answer = self._request(method, path, body)
        document = _as(answer, kind)
        if document is None:
            raise Unreachable(self._path, "what answers there is not a numawarden of this version")
        return document

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        """Return the answer to a request, which is sent again where that is safe.

        That is after `Busy`, with which nothing was begun, and for a question whose connection
        ended without an answer. A change whose connection ends may have been made.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            again = time.monotonic() + AGAIN_SECONDS < deadline
            connection = _UnixConnection(self._path, self._timeout)
            try:
                response = self._open(connection, method, path, body)
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                if not (again and method == "GET" and isinstance(error, _ENDED)):
                    raise Unreachable(self._path, self._why(error)) from error
            else:
                if response.status < http.HTTPStatus.BAD_REQUEST:
                    return answer
                failed = _rejected(self._path, response.status, answer)
                if not (again and isinstance(failed, AgentError) and failed.error.code == "Busy"):
                    raise failed
            finally:
                connection.close()
            time.sleep(AGAIN_SECONDS)

    @staticmethod
    def _open(
        connection: _UnixConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, path, body=body)
        except (BrokenPipeError, ConnectionResetError) as error:
            return _early_answer(connection, error)
        return connection.getresponse()


def _early_answer(
    connection: http.client.HTTPConnection, sending: OSError
) -> http.client.HTTPResponse:
    """Return the agent's response if it closed the connection early, else raise the error."""
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException):
        raise sending from None


def _segment(text: str) -> str:
    return quote(text, safe="")


def _as(body: bytes, kind: type[_Document]) -> _Document | None:
    try:
        return decode(body, kind)
    except msgspec.DecodeError:
        return None


def _rejected(path: str, status: int, body: bytes) -> Exception:
    document = _as(body, ErrorDocument)
    if document is None:
        return Unreachable(path, f"it answered with HTTP status {status} and no explanation")
    return AgentError(status, document.error, body)


#: How the agent ends a connection without an answer.
_ENDED: Final = (ConnectionResetError, BrokenPipeError)
_SEE: Final = "see 'systemctl status numawarden' and 'journalctl -u numawarden'"
_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (FileNotFoundError, f"there is no such socket; is the agent running, with this one? {_SEE}"),
    (ConnectionRefusedError, f"no process listens there; start the agent, or {_SEE}"),
    (BlockingIOError, "too many processes wait to connect to it; try again"),
    (PermissionError, "permission denied; run as root or as a member of the agent's group"),
    (ConnectionError, "it closed the connection; see the agent's log"),
)


def reason_of(error: OSError | http.client.HTTPException, timeout: float) -> str:
    """Return why the agent cannot be reached, with a remedy; `timeout` is what it was given."""
    if isinstance(error, TimeoutError):
        watched = "systemd ends an agent whose watchdog is silent"
        return f"no answer within {timeout:g} s; {_SEE}: {watched}"
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    if isinstance(error, OSError):
        if error.errno == errno.EPROTOTYPE:
            return "it is a socket of another program; name the agent's (agent.socketPath)"
        return error.strerror or str(error) or type(error).__name__
    return f"it does not speak HTTP ({type(error).__name__})"

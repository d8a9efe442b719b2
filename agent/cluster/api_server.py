"""Requests to the API server of a cluster: each with a deadline, each answer with a bound.

A request has a connection of its own. Requests are rare (a change of what pods have, an Event), and
so the token and the certificate authority are read for each, as both are replaced while the agent
runs. Nothing of it blocks the event loop or the thread that writes cgroups.

Where the server is and which files hold token and authority is configured (`api_access`); what the
configuration leaves out comes from the unit's credentials (`LoadCredential`, systemd.exec) and else
from the service account that Kubernetes puts into every container of a pod.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
import stat
from enum import StrEnum
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from msgspec import Struct

from agent import __version__
from agent.text import printable_line
from agent.versions import ReportedVersion, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config.cluster import KubernetesConfig

#: Where Kubernetes puts the files of a pod's service account.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: The names of the unit's credentials.
TOKEN_CREDENTIAL: Final = "kubernetes-token"  # noqa: S105  # the name of a file
CA_CREDENTIAL: Final = "kubernetes-ca"
#: Where systemd has them as long as the unit runs, readable for root.
UNIT_CREDENTIALS: Final = Path("/run/credentials/numawarden.service")
_HTTPS_PORT: Final = 443

#: How long a request may take from the first byte to the last, in seconds.
DEADLINE_SECONDS: Final = 10.0
#: In bytes; a NodeResourceTopology of 64 nodes with a hundred resources each has 0.8 MiB.
LONGEST_ANSWER: Final = 4 << 20
_LONGEST_TOKEN: Final = 64 << 10
_LONGEST_MESSAGE: Final = 400
_CHUNK: Final = 64 << 10

APPLY: Final = "application/apply-patch+yaml"
JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"

_SUCCESS: Final = range(200, 300)
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500


class AccessError(Exception):
    """The API server cannot be asked; `key` is of `agent.kubernetes`, with a remedy."""

    def __init__(self, key: str, found: str, remedy: str) -> None:
        super().__init__(f"agent.kubernetes.{key}: {found}; {remedy}")
        self.key = key
        self.found = found
        self.remedy = remedy

    @property
    def advice(self) -> str:
        """What was found and what to do, without the key."""
        return f"{self.found}; {self.remedy}"


class ApiAccess(Struct, frozen=True):
    """How the API server is reached; `prefix` is the path before `/api`, mostly ""."""

    host: str
    port: int
    prefix: str
    token_file: Path
    ca_file: Path

    @property
    def url(self) -> str:
        """The URL of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}{self.prefix}"


def api_access(
    config: KubernetesConfig,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
) -> ApiAccess:
    """Return how to reach the API server; the files are not looked at.

    Raises `AccessError` if neither configuration nor environment names a server.
    """
    token = config.token_file or _default(TOKEN_CREDENTIAL, "token", environ, service_account)
    ca = config.ca_file or _default(CA_CREDENTIAL, "ca.crt", environ, service_account)
    if config.server:
        url = urlsplit(config.server)
        return ApiAccess(url.hostname or "", url.port or _HTTPS_PORT, url.path, token, ca)
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "") or str(_HTTPS_PORT)
    if not host or not port.isascii() or not port.isdigit():
        raise AccessError(
            "server",
            "not set, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT of this process name "
            "no server",
            "set it to the URL of the API server, such as https://10.0.0.1:6443",
        )
    return ApiAccess(host, int(port), "", token, ca)


def node_name(config: KubernetesConfig, environ: Mapping[str, str]) -> str:
    """Return the name of this host as a node: configured, of `$NODE_NAME`, or the host's name.

    The kubelet names its node by the host's name in lower case, too (`--hostname-override`).
    """
    return config.node_name or environ.get("NODE_NAME", "") or socket.gethostname().lower()


def with_credentials_of_unit(
    environ: Mapping[str, str], directory: Path = UNIT_CREDENTIALS
) -> Mapping[str, str]:
    """Return the environment of a command with the credentials of the agent's unit, if it runs."""
    if "CREDENTIALS_DIRECTORY" in environ or not directory.is_dir():
        return environ
    return {**environ, "CREDENTIALS_DIRECTORY": str(directory)}


def access_problems(access: ApiAccess) -> Iterator[AccessError]:
    """Yield what is wrong with the files of the token and of the certificate authority."""
    for key, file in (("tokenFile", access.token_file), ("caFile", access.ca_file)):
        try:
            mode = file.stat().st_mode
        except OSError as error:
            remedy = _REMEDIES[key]
            yield AccessError(key, f"{file}: {error.strerror or error}", remedy)
            continue
        if not stat.S_ISREG(mode):
            yield AccessError(key, f"{file}: not a regular file", _REMEDIES[key])


#: What to do where a file is missing.
_REMEDIES: Final = {
    "tokenFile": "name a file with the token of a service account, or give the unit the credential "
    f"{TOKEN_CREDENTIAL} (LoadCredential={TOKEN_CREDENTIAL}:FILE)",
    "caFile": "name a file with the certificate of the cluster's certificate authority, or give "
    f"the unit the credential {CA_CREDENTIAL} (LoadCredential={CA_CREDENTIAL}:FILE)",
}


def _default(credential: str, name: str, environ: Mapping[str, str], service_account: Path) -> Path:
    """Return the file of a credential if the unit has it, else that of the service account."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if directory and (file := Path(directory) / credential).exists():
        return file
    return service_account / name


class Outcome(StrEnum):
    """What became of a request."""

    DONE = "done"
    #: A file with the token or the certificate authority cannot be used, or the token is not valid.
    CREDENTIALS = "credentials"
    FORBIDDEN = "forbidden"
    #: The object, or its namespace, does not exist.
    NOT_FOUND = "not_found"
    #: The server does not know the kind of object.
    NOT_SERVED = "not_served"
    CONFLICT = "conflict"
    #: The server does not accept what was sent, or answers in a way that is not Kubernetes'.
    REJECTED = "rejected"
    TLS = "tls"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"


class ApiServerError(Exception):
    """A request failed; the message says what was asked, what was answered and what to do."""

    def __init__(self, outcome: Outcome, asked: str, found: str, remedy: str) -> None:
        super().__init__(f"{asked}: {found}; {remedy}")
        self.outcome = outcome
        self.asked = asked
        self.found = found
        self.remedy = remedy


class ApiResource(Struct, frozen=True):
    """A kind of object: its path below the server, and what to do where it cannot be used.

    `verbs` are those that a role has to allow on `rule`. `missing` is what to do where the server
    does not know the kind, or another version of it.
    """

    path: str
    rule: str
    verbs: str
    missing: str


class ApiServer:
    """A client of one API server; `seconds` is the deadline of a request."""

    def __init__(self, access: ApiAccess, seconds: float = DEADLINE_SECONDS) -> None:
        self._access = access
        self._seconds = seconds

    async def call(
        self,
        method: str,
        resource: ApiResource,
        path: str,
        body: Mapping[str, object] | None = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """Return the object that the server answers with.

        `path` is the rest of the path, with its query. Raises `ApiServerError`.
        """
        target = f"{self._access.prefix}{resource.path}{path}"
        asked = f"{method} {self._access.url}{resource.path}{path.partition('?')[0]}"
        content = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(self._seconds):
                raw = await self._exchange(method, target, content, content_type, asked)
        except TimeoutError:
            found, remedy = f"no answer within {self._seconds:g} s", _REACH
            raise ApiServerError(Outcome.TIMEOUT, asked, found, remedy) from None
        except ssl.SSLError as error:
            found = f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
            raise ApiServerError(Outcome.TLS, asked, found, self._trust()) from error
        except OSError as error:
            found = error.strerror or str(error) or type(error).__name__
            remedy = _ALLOW if isinstance(error, PermissionError) else _REACH
            raise ApiServerError(Outcome.UNAVAILABLE, asked, found, remedy) from error
        return self._answer(raw, method, resource, asked)

    async def _exchange(
        self, method: str, target: str, content: bytes, content_type: str, asked: str
    ) -> bytes:
        """Send a request and return all bytes of the answer, head included."""
        # In a thread: the files may be on a file system that hangs.
        token = await asyncio.to_thread(_read_token, self._access.token_file, asked)
        context = await asyncio.to_thread(_trusting, self._access.ca_file, asked)
        host, port = self._access.host, self._access.port
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            head = (
                f"{method} {target} HTTP/1.1\r\n"
                f"Host: {f'[{host}]' if ':' in host else host}:{port}\r\n"
                f"Authorization: Bearer {token}\r\n"
                f"User-Agent: numawarden/{__version__}\r\n"
                f"Accept: {JSON}\r\nContent-Type: {content_type}\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode("ascii") + content)
            await writer.drain()
            received = bytearray()
            while chunk := await reader.read(_CHUNK):
                received += chunk
                if len(received) > LONGEST_ANSWER:
                    found = f"the answer has more than {LONGEST_ANSWER} bytes"
                    raise ApiServerError(Outcome.REJECTED, asked, found, _OTHER_SERVER)
            return bytes(received)
        finally:
            # All of the answer is there, or no more is waited for: no need to close politely.
            writer.transport.abort()

    def _answer(self, raw: bytes, method: str, resource: ApiResource, asked: str) -> dict[str, Any]:
        try:
            response = HTTPResponse(_Received(raw), method=method)  # type: ignore[arg-type]  # all that it uses
            response.begin()
            content = response.read()
        except (HTTPException, ValueError, OverflowError) as error:  # the last: of a length
            found = f"not an answer of HTTP ({type(error).__name__})"
            raise ApiServerError(Outcome.REJECTED, asked, found, _OTHER_SERVER) from error
        document = _object_of(content)
        if response.status not in _SUCCESS:
            said = _said(document, content)
            raise self._error(response.status, resource, asked, said, is_status=bool(document))
        if not document:
            found = f"{response.status} without a JSON object"
            raise ApiServerError(Outcome.REJECTED, asked, found, _OTHER_SERVER)
        return document

    def _error(
        self, status: int, resource: ApiResource, asked: str, said: str, *, is_status: bool
    ) -> ApiServerError:
        found = f"{status} {said}".strip()
        if status == _UNAUTHORIZED:
            remedy = f"renew the token in {self._access.token_file}"
            return ApiServerError(Outcome.CREDENTIALS, asked, found, remedy)
        if status == _FORBIDDEN:
            remedy = (
                f"allow the agent's service account the verbs {resource.verbs} on {resource.rule}"
            )
            return ApiServerError(Outcome.FORBIDDEN, asked, found, remedy)
        if status == _NOT_FOUND:
            # The API server answers in plain text for a kind that it does not serve.
            outcome = Outcome.NOT_FOUND if is_status else Outcome.NOT_SERVED
            remedy = "the object is gone" if is_status else resource.missing
            return ApiServerError(outcome, asked, found, remedy)
        if status == _CONFLICT:
            remedy = "stop the other program that writes this object"
            return ApiServerError(Outcome.CONFLICT, asked, found, remedy)
        if status >= _SERVER_ERRORS or status == _TOO_MANY:
            remedy = "see the log of the API server; the agent tries again"
            return ApiServerError(Outcome.UNAVAILABLE, asked, found, remedy)
        # A Status says what is wrong with the object: the server knows another version of its kind.
        remedy = resource.missing if is_status else _OTHER_SERVER
        return ApiServerError(Outcome.REJECTED, asked, found, remedy)

    def _trust(self) -> str:
        return (
            f"let {self._access.ca_file} (agent.kubernetes.caFile) be the certificate authority of "
            "the cluster, and agent.kubernetes.server a name in the server's certificate"
        )


_REACH: Final = "check agent.kubernetes.server and the network; the agent tries again"
#: The unit of the package reaches localhost only.
_ALLOW: Final = (
    "let the unit reach the API server: systemctl edit numawarden, and below [Service] "
    "IPAddressAllow= with its address"
)
_OTHER_SERVER: Final = "check that agent.kubernetes.server is a Kubernetes API server"


#: Its role cannot be narrowed to one node: `resourceNames` are the same for all agents.
_NODES: Final = ApiResource("/api/v1/nodes", "nodes", "get", _OTHER_SERVER)


async def kubelet_version(server: ApiServer, node: str) -> ReportedVersion:
    """Return the version in a Node's `status.nodeInfo`, or why none is known; raises nothing."""
    try:
        found: object = await server.call("GET", _NODES, f"/{quote(node, safe='')}")
    except ApiServerError as error:
        return ReportedVersion(problem=str(error))
    for name in ("status", "nodeInfo", "kubeletVersion"):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, str) or version_of(found) is None:
        return ReportedVersion(problem=f"the Node {node} has no version of a kubelet")
    return ReportedVersion("kubelet", found, f"the Node {node}")


class _Received:
    """The bytes of an answer in the form of a socket, for `http.client`."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        """Return a file with the bytes."""
        del mode
        return io.BytesIO(self._content)


def _object_of(content: bytes) -> dict[str, Any]:
    """Return a JSON object, {} for content that is none."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _said(document: Mapping[str, object], content: bytes) -> str:
    """Return what a server says of a failure, in one printable line of bounded length."""
    message = document.get("message")
    text = message if isinstance(message, str) else content.decode(errors="replace")
    return printable_line(text[: 2 * _LONGEST_MESSAGE], _LONGEST_MESSAGE)


def _read_token(file: Path, asked: str) -> str:
    """Return the token; raises `ApiServerError` where the file has none."""
    remedy = f"put the token of a service account into {file} (agent.kubernetes.tokenFile)"
    try:
        with file.open("rb") as opened:
            token = opened.read(_LONGEST_TOKEN).strip()
    except OSError as error:
        found = f"{file}: {error.strerror or error}"
        raise ApiServerError(Outcome.CREDENTIALS, asked, found, remedy) from error
    text = token.decode("ascii", "replace")
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        found = f"{file} has no token" if not text else f"{file} has more than a token"
        raise ApiServerError(Outcome.CREDENTIALS, asked, found, remedy)
    return text


def _trusting(file: Path, asked: str) -> ssl.SSLContext:
    """Return a context that trusts one certificate authority; raises `ApiServerError`."""
    try:
        context = ssl.create_default_context(cafile=str(file))
    except OSError as error:  # of the file, or of what is in it (SSLError)
        why = "not a certificate in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
        remedy = (
            f"put the certificate of the cluster's certificate authority into {file} "
            "(agent.kubernetes.caFile)"
        )
        raise ApiServerError(Outcome.CREDENTIALS, asked, f"{file}: {why}", remedy) from error
    # Python 3.13 demands extensions that certificates of many clusters lack; client-go does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context

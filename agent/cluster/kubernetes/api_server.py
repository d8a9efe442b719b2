"""Requests to the API server of a cluster: each with a deadline, each answer with a limit.

A request has a connection of its own. Requests are rare (pods changed, an Event), and so each reads
the token and the certificate authority, which are replaced while the agent runs. A request blocks
neither the event loop nor the thread that writes cgroups.
"""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Final

from agent import __version__
from agent.cluster.kubernetes.request_errors import (
    ALLOW,
    OTHER_SERVER,
    REACH,
    ApiResource,
    ApiServerError,
    Outcome,
    error_of_status,
)
from agent.text import printable_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.cluster.kubernetes.access import ApiAccess


#: How long a request may take from the first byte to the last, in seconds.
DEADLINE_SECONDS: Final = 10.0
#: The longest answer in bytes; a NodeResourceTopology of 64 nodes with a hundred resources each has
#: 0.8 MiB.
LONGEST_ANSWER: Final = 4 << 20
_LONGEST_TOKEN: Final = 64 << 10
_LONGEST_MESSAGE: Final = 400
_CHUNK: Final = 64 << 10
_SUCCESS: Final = range(200, 300)
APPLY: Final = "application/apply-patch+yaml"
JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"


class ApiServer:
    """The client of one API server; `seconds` is the deadline of a request."""

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
            found, remedy = f"no answer within {self._seconds:g} s", REACH
            raise ApiServerError(Outcome.TIMEOUT, asked, found, remedy) from None
        except ssl.SSLError as error:
            found = f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
            raise ApiServerError(Outcome.TLS, asked, found, self._trust()) from error
        except OSError as error:
            found = error.strerror or str(error) or type(error).__name__
            remedy = ALLOW if isinstance(error, PermissionError) else REACH
            raise ApiServerError(Outcome.UNAVAILABLE, asked, found, remedy) from error
        return self._answer(raw, method, resource, asked)

    async def _exchange(
        self, method: str, target: str, content: bytes, content_type: str, asked: str
    ) -> bytes:
        """Send a request and return all bytes of the answer, head included."""
        # In a thread: the files may be on a file system that hangs, and the event loop must not.
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
                    raise ApiServerError(Outcome.REJECTED, asked, found, OTHER_SERVER)
            return bytes(received)
        finally:
            # The answer is complete or given up: a polite close would only wait for the server.
            writer.transport.abort()

    def _answer(self, raw: bytes, method: str, resource: ApiResource, asked: str) -> dict[str, Any]:
        try:
            response = HTTPResponse(_Received(raw), method=method)  # type: ignore[arg-type]  # all that it uses
            response.begin()
            content = response.read()
        except (HTTPException, ValueError, OverflowError) as error:  # the last: of a length
            found = f"not an answer of HTTP ({type(error).__name__})"
            raise ApiServerError(Outcome.REJECTED, asked, found, OTHER_SERVER) from error
        document = _object_of(content)
        if response.status not in _SUCCESS:
            raise error_of_status(
                response.status,
                resource,
                asked,
                _said(document, content),
                is_object=bool(document),
                token_file=self._access.token_file,
            )
        if not document:
            found = f"{response.status} without a JSON object"
            raise ApiServerError(Outcome.REJECTED, asked, found, OTHER_SERVER)
        return document

    def _trust(self) -> str:
        """Return what to do where TLS does not accept the server."""
        return (
            f"let {self._access.ca_file} (agent.kubernetes.caFile) be the certificate authority of "
            "the cluster, and agent.kubernetes.server a name in the server's certificate"
        )


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


class _Received:
    """The bytes of an answer in the form of a socket, for `http.client`."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        """Return a file with the bytes."""
        del mode
        return io.BytesIO(self._content)

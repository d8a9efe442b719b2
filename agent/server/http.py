"""Requests and responses, the handlers that routes lead to, and the errors of a request."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from agent.yaml import Mistake

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from contextlib import AbstractContextManager


_OF_METRICS: Final = ("/metrics", "/healthz", "/readyz")


class HttpError(Exception):
    """An HTTP error response, with `headers` and `details`."""

    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST
    headers: tuple[tuple[str, str], ...] = ()
    details: tuple[Mistake, ...] = ()


class NotFoundError(HttpError):
    """There is no resource of that path."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, path: str) -> None:
        elsewhere = "; the metrics listener has it (agent.metrics)" if path in _OF_METRICS else ""
        super().__init__(f"there is no resource {path} here{elsewhere}; see docs/api.md")


class MethodNotAllowedError(HttpError):
    """The resource does not support this method."""

    status = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        listed = ", ".join(allowed)
        super().__init__(f"{method} is not possible here; use {listed}")
        self.headers = (("Allow", listed),)


class UnknownParameterError(HttpError):
    """The query names a parameter that this resource does not have.

    Ignoring the parameter could do more than was requested, such as admitting instead of a dry run.
    """

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        listed = ", ".join(known) or "none"
        super().__init__(f"unknown query parameter {name!r}; this resource knows {listed}")
        self.details = (Mistake(name, "unknown"),)


class BodyTooLargeError(HttpError):
    """The body exceeds the limit."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")


class BrokenBodyError(HttpError):
    """The body does not match its head, or ends too early."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the body cannot be read: {reason}")


PLAIN = "text/plain; charset=utf-8"

#: How many characters of a library's error message are shown.
_LONGEST_REASON: Final = 120


class RequestTarget(Struct, frozen=True):
    """A request's target: the decoded segments of its path, and its query."""

    segments: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> RequestTarget:
        """Parse a request's target; raises `ValueError`.

        An encoded slash stays within its segment. `http://host/path` means `/path` (RFC 9112
        section 3.2.2).
        """
        # "//x/y" is a path here, not a host.
        parts = urlsplit(f"//host{text}" if text.startswith("/") else text)
        segments = tuple(unquote(segment) for segment in parts.path.removeprefix("/").split("/"))
        return cls(segments, tuple(parse_qsl(parts.query, keep_blank_values=True)))

    @property
    def path(self) -> str:
        """The decoded path, for messages."""
        return "/" + "/".join(self.segments)


class Request(Struct, frozen=True):
    """One request.

    `read` returns the whole body and raises what `Exchange.read` does. `parameters` are the
    named segments of the route's path. `connection` is None if the peer has disconnected.
    """

    method: str
    target: RequestTarget
    read: Callable[[], Awaitable[bytes]]
    connection: TransportSocket | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


class Response(Struct, frozen=True):
    """A complete response."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()


class Stream(Struct, frozen=True):
    """A response without a fixed end; `open` yields its pieces."""

    open: Callable[[], AbstractContextManager[AsyncIterator[bytes]]]
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


Answer: TypeAlias = Response | Stream
Handler: TypeAlias = "Callable[[Request], Awaitable[Answer]]"
#: Makes the response to a request that is not served from a status and a message.
Failure: TypeAlias = "Callable[[HTTPStatus, str], Response]"


def plain_failure(status: HTTPStatus, message: str) -> Response:
    """Return a response of one line of text."""
    return Response(f"{message}\n".encode(), status)


def one_line(text: str) -> str:
    """Return a library's error message as one short line for logs and responses."""
    line = " ".join(text.split())
    return ascii(line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}...")


class Routes:
    """Handlers by method and path; `{name}` in a path stands for any one segment, not empty.

    `parameters` are the allowed query parameters by method and path (none if not listed); None
    allows any.
    """

    def __init__(
        self,
        handlers: Iterable[tuple[str, str, Handler]],
        parameters: Mapping[tuple[str, str], tuple[str, ...]] | None = None,
    ) -> None:
        self._handlers = [
            (
                method,
                tuple(path.removeprefix("/").split("/")),
                handler,
                None if parameters is None else parameters.get((method, path), ()),
            )
            for method, path, handler in handlers
        ]

    async def __call__(self, request: Request) -> Answer:
        """Call the handler of a request; raises an `HttpError`."""
        found = {
            method: (parameters, handler, known)
            for method, pattern, handler, known in self._handlers
            if (parameters := _match(pattern, request.target)) is not None
        }
        if not found:
            raise NotFoundError(request.target.path)
        if request.method not in found:
            raise MethodNotAllowedError(request.method, tuple(sorted(found)))
        parameters, handler, known = found[request.method]
        for name, _ in request.target.query:
            if known is not None and name not in known:
                raise UnknownParameterError(name, known)
        return await handler(replace(request, parameters=parameters))


def _match(pattern: tuple[str, ...], target: RequestTarget) -> dict[str, str] | None:
    """Return the named segments, None if the path does not match."""
    if len(pattern) != len(target.segments):
        return None
    parameters = {}
    for desired, segment in zip(pattern, target.segments, strict=True):
        if desired.startswith("{") and segment:
            parameters[desired.strip("{}")] = segment
        elif desired != segment:
            return None
    return parameters

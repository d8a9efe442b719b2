"""Requests and answers as handlers see them, and the routes from a request to its handler.

In goes a request whose head was read (`agent.server.connection`). Out comes the answer of its
handler, or an `HttpError` that says what is wrong with the request. A handler is called only with a
method, a path and query parameters of its route.
"""

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

PLAIN: Final = "text/plain; charset=utf-8"
#: How many characters of a library's error message are shown.
_LONGEST_MESSAGE: Final = 120
#: How many characters of a wrong value of a query parameter are shown.
_LONGEST_VALUE: Final = 32
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
#: Resources of the metrics listener; the API's error for them says that it has them.
_OF_METRICS: Final = ("/metrics", "/healthz", "/readyz")


class RequestTarget(Struct, frozen=True):
    """The path and the query that a request asks for."""

    #: The decoded segments of the path.
    segments: tuple[str, ...]
    #: The decoded names and values, in their order.
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
    """One request."""

    method: str
    target: RequestTarget
    #: Returns the whole body; raises what `Exchange.read` does.
    read: Callable[[], Awaitable[bytes]]
    #: The peer's socket, None if the peer has disconnected.
    connection: TransportSocket | None = None
    #: The segments of the path that the route has names for, by name.
    path_parameters: Mapping[str, str] = field(default_factory=dict)

    def parameter(self, name: str, default: str) -> str:
        """Return a query parameter; of several with that name the first."""
        return next((value for key, value in self.target.query if key == name), default)

    def flag(self, name: str) -> bool:
        """Return a query parameter that is true or false, false without it.

        Raises `InvalidParameterError`.
        """
        value = self.parameter(name, "false")
        if value not in _BOOLEANS:
            raise InvalidParameterError(name, "true or false", value, "boolean")
        return _BOOLEANS[value]

    def number(self, name: str, most: int, default: int) -> int:
        """Return a query parameter that is a whole number from 1 to `most`.

        Raises `InvalidParameterError`.
        """
        value = self.parameter(name, str(default))
        # Nine digits are more than any `most`, and `int` takes long for very many of them.
        if not (value.isascii() and value.isdecimal() and 1 <= int(value[:9]) <= most):
            raise InvalidParameterError(name, f"a whole number from 1 to {most}", value, "number")
        return int(value)


class Response(Struct, frozen=True):
    """A complete response."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()


class Stream(Struct, frozen=True):
    """A response without a fixed end."""

    #: Yields the pieces of the body.
    open: Callable[[], AbstractContextManager[AsyncIterator[bytes]]]
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


Answer: TypeAlias = Response | Stream
Handler: TypeAlias = "Callable[[Request], Awaitable[Answer]]"
#: Makes the response to a request that no handler answers, from a status and a message.
Failure: TypeAlias = "Callable[[HTTPStatus, str], Response]"


class Route(Struct, frozen=True):
    """A method and a path, and the handler of requests for them."""

    method: str
    #: The segments of the path; `{name}` stands for any segment that is not empty.
    path: tuple[str, ...]
    handler: Handler
    #: The allowed query parameters, None: any.
    parameters: tuple[str, ...] | None

    def match(self, target: RequestTarget) -> Mapping[str, str] | None:
        """Return the path parameters of a target, None if its path is another one."""
        if len(self.path) != len(target.segments):
            return None
        parameters = {}
        for pattern, segment in zip(self.path, target.segments, strict=True):
            if pattern.startswith("{") and segment:
                parameters[pattern.strip("{}")] = segment
            elif pattern != segment:
                return None
        return parameters


class Routes:
    """Calls the handler of a request.

    `handlers` are methods, paths (`/pods/{uid}`) and handlers. `parameters` are the allowed query
    parameters by method and path (none if not listed); None allows any.
    """

    def __init__(
        self,
        handlers: Iterable[tuple[str, str, Handler]],
        parameters: Mapping[tuple[str, str], tuple[str, ...]] | None = None,
    ) -> None:
        self.routes = [
            Route(
                method,
                tuple(path.removeprefix("/").split("/")),
                handler,
                None if parameters is None else parameters.get((method, path), ()),
            )
            for method, path, handler in handlers
        ]

    async def __call__(self, request: Request) -> Answer:
        """Call the handler of a request; raises an `HttpError`."""
        by_method = {
            route.method: (route, path_parameters)
            for route in self.routes
            if (path_parameters := route.match(request.target)) is not None
        }
        if not by_method:
            raise NotFoundError(request.target.path)
        if request.method not in by_method:
            raise MethodNotAllowedError(request.method, tuple(sorted(by_method)))
        route, path_parameters = by_method[request.method]
        for name, _ in request.target.query:
            if route.parameters is not None and name not in route.parameters:
                raise UnknownParameterError(name, route.parameters)
        return await route.handler(replace(request, path_parameters=path_parameters))


class HttpError(Exception):
    """What is wrong with a request: a status, a message, and what programs read."""

    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST
    #: Headers of the response.
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
        names = ", ".join(allowed)
        super().__init__(f"{method} is not possible here; use {names}")
        self.headers = (("Allow", names),)


class UnknownParameterError(HttpError):
    """The query names a parameter that this resource does not have.

    Ignoring the parameter could do more than was requested, such as admitting instead of a dry run.
    """

    def __init__(self, name: str, allowed: tuple[str, ...]) -> None:
        names = ", ".join(allowed) or "none"
        super().__init__(f"unknown query parameter {name!r}; this resource knows {names}")
        self.details = (Mistake(name, "unknown"),)


class InvalidParameterError(HttpError):
    """A query parameter has a value that it cannot have; `kind` is for programs."""

    def __init__(self, name: str, expected: str, value: str, kind: str) -> None:
        super().__init__(f"{name} is {expected}, found {value[:_LONGEST_VALUE]!r}")
        self.details = (Mistake(name, kind),)


class BodyTooLargeError(HttpError):
    """The body exceeds the limit."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")


class BrokenBodyError(HttpError):
    """The body does not match its head, or ends too early."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the body cannot be read: {reason}")


def plain_failure(status: HTTPStatus, message: str) -> Response:
    """Return a response of one line of text."""
    return Response(f"{message}\n".encode(), status)


def one_line(text: str) -> str:
    """Return a library's error message as one short line for logs and responses."""
    line = " ".join(text.split())
    return ascii(line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}...")

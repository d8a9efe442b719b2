"""Requests and responses."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct, field

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

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

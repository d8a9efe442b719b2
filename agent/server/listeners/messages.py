"""What is asked and what is answered."""

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

#: How many characters of a library's words on a message are shown.
_LONGEST_REASON: Final = 120


class RequestTarget(Struct, frozen=True):
    """What a request is for: the segments of its path, decoded, and its query."""

    segments: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> RequestTarget:
        """Parse a request's target; raises `ValueError`.

        An encoded slash stays within its segment. `http://host/path` means `/path` (RFC 9112
        section 3.2.2).
        """
        # "//x/y" is a path here, and not a host's name.
        parts = urlsplit(f"//host{text}" if text.startswith("/") else text)
        segments = tuple(unquote(segment) for segment in parts.path.removeprefix("/").split("/"))
        return cls(segments, tuple(parse_qsl(parts.query, keep_blank_values=True)))

    @property
    def path(self) -> str:
        """The path, decoded, for people."""
        return "/" + "/".join(self.segments)


class Request(Struct, frozen=True):
    """One request.

    `read` returns the whole body and raises what `Exchange.read` does. `parameters` are those
    segments of the path that the route has names for. `connection` is None when the peer is gone.
    """

    method: str
    target: RequestTarget
    read: Callable[[], Awaitable[bytes]]
    connection: TransportSocket | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


class Response(Struct, frozen=True):
    """An answer that is there as a whole."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()


class Stream(Struct, frozen=True):
    """An answer without an end of its own; `open` gives the pieces, from its opening on."""

    open: Callable[[], AbstractContextManager[AsyncIterator[bytes]]]
    content_type: str


Answer: TypeAlias = Response | Stream
Handler: TypeAlias = "Callable[[Request], Awaitable[Answer]]"
#: Makes the answer to a request that is not served, of its status and what there is to say.
Failure: TypeAlias = "Callable[[HTTPStatus, str], Response]"


def plain_failure(status: HTTPStatus, message: str) -> Response:
    """Return a line of text."""
    return Response(f"{message}\n".encode(), status)


def one_line(text: str) -> str:
    """Return what a library says of a peer's message as one short line for logs and answers."""
    line = " ".join(text.split())
    return ascii(line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}...")

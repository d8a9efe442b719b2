"""Caps the connections of a listener's callers, and the bytes of their bodies and answers.

In go what happens to a connection: it comes, begins a stream, receives a body, sends an answer. Out
comes room, for which other connections may be closed, or an error. `Caps` keeps the connections and
closes them; the functions below it choose which. Always true: connections of privileged callers are
not counted, capped or closed for others; a caller at its own cap displaces nothing but its own
connections.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec import Struct

from agent.server.http import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from agent.server.log import LimitedLog


class Caller(Struct, frozen=True):
    """The owner of connections: a user on the Unix socket and of the host, an address on TCP."""

    name: str
    #: Root, or the agent's own user.
    privileged: bool = False


class Limit(Struct, frozen=True):
    """The most connections, or bytes, of callers that are not privileged."""

    #: Of all of them together.
    everyone: int
    #: Of each.
    caller: int

    def times(self, size: int) -> Limit:
        """Return this limit multiplied by a size."""
        return Limit(self.everyone * size, self.caller * size)


class Limits(Struct, frozen=True):
    """The limits of a listener's connections; times in seconds."""

    #: Connections with requests, and connections that follow a stream.
    requests: Limit
    watchers: Limit
    #: Bytes of unanswered requests, and of unread answers.
    bodies: Limit
    answers: Limit
    #: From the connection, or the first byte of a later head, to the end of the head; also for a
    #: TLS handshake.
    head_seconds: float
    #: From an answer to the next request, with the time to read the answer; for a watcher, the time
    #: to read a piece.
    idle_seconds: float
    #: Bytes of one body.
    body_bytes: int = 0


class Connection(Protocol):
    """What the caps count of a connection, and how they close it."""

    caller: Caller
    #: Bytes of a body whose request is not answered.
    body_size: int
    #: Bytes of an answer until all of it is read.
    unread: int

    @property
    def answering(self) -> bool:
        """Whether a request has begun and has no answer yet."""

    @property
    def watching(self) -> bool:
        """Whether the connection follows a stream."""

    def cut(self, last: bytes = b"") -> None:
        """End the connection at once; `last` is for a peer of which no request was begun."""


class Caps:
    """The connections of a listener; `gives_way` is said to one that is closed for another."""

    def __init__(self, limits: Limits, lines: LimitedLog, gives_way: bytes) -> None:
        self._limits = limits
        self._lines = lines
        self._gives_way = gives_way
        #: In the order of their last activity.
        self.connections: dict[Connection, None] = {}
        #: Locked while a request begins whose caller is not privileged.
        self._beginning = asyncio.Lock()

    def enter(self, connection: Connection) -> None:
        """Add a new connection; raises `FullError`."""
        self.make_place(connection)
        self.connections[connection] = None

    def make_place(self, newcomer: Connection) -> None:
        """Close a connection for a new one or a new watcher if need be; raises `FullError`."""
        leaving = place(newcomer, self.connections, self._limits)
        if leaving is not None:
            self._close(leaving)

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended; one that is not here is ignored."""
        self.connections.pop(connection, None)

    def active(self, connection: Connection) -> None:
        """Record activity; a connection that is not here is ignored."""
        if connection in self.connections:
            del self.connections[connection]
            self.connections[connection] = None

    def turn(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """Return the context that a request begins in: root's at once, others one at a time."""
        return nullcontext() if caller.privileged else self._beginning

    def receive(self, connection: Connection, size: int) -> None:
        """Count so many bytes more of a body; raises `NoRoomError`."""
        demand_room(connection, size, self.connections, self._limits)
        connection.body_size += size

    def send(self, connection: Connection, size: int) -> None:
        """Count the bytes of an answer; connections that read nothing are closed for them."""
        for leaving in displaced(connection, size, self.connections, self._limits):
            self._lines.warning("slow reader disconnected", caller=leaving.caller.name)
            self._close(leaving)
        connection.unread = size

    def _close(self, connection: Connection) -> None:
        del self.connections[connection]
        connection.cut(self._gives_way)


_Connection = TypeVar("_Connection", bound=Connection)

#: When to retry, in seconds: most bodies and answers take less.
RETRY_SECONDS: Final = 1


class FullError(Exception):
    """The cap of connections is reached, and none of them is idle."""

    def __init__(self, caller: Caller, count: int) -> None:
        super().__init__(
            f"no place for a connection of {caller.name}: {count} wait for responses already;"
            " retry when one of them is answered"
        )
        self.caller = caller
        self.count = count


class NoRoomError(HttpError):
    """The cap of bytes is reached."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = (("Retry-After", str(RETRY_SECONDS)),)

    def __init__(self, caller: Caller, size: int, used: int) -> None:
        super().__init__(
            f"no room for {size} bytes of {caller.name}: unfinished requests use {used} already;"
            " send fewer at a time, or retry later"
        )


def place(
    newcomer: _Connection, present: Iterable[_Connection], limits: Limits
) -> _Connection | None:
    """Return the connection that is closed for a newcomer; None if there is a place.

    It is the longest idle one: of the same caller if that is at its cap, else of all. Those that
    watch are counted apart, and all of them are idle. Raises `FullError` if none is idle.
    """
    watching = newcomer.watching
    limit = limits.watchers if watching else limits.requests
    alike = {other: 1 for other in present if other.watching == watching and other is not newcomer}
    full = _exceeded(newcomer.caller, alike, 1, limit)
    if full is None:
        return None
    idle = next((connection for connection in full if watching or not connection.answering), None)
    if idle is None:
        raise FullError(newcomer.caller, len(full))
    return idle


def demand_room(
    newcomer: _Connection, size: int, present: Iterable[_Connection], limits: Limits
) -> None:
    """Raise `NoRoomError` if so many bytes of a newcomer's body do not fit beside other bodies."""
    bodies = {connection: connection.body_size for connection in present}
    full = _exceeded(newcomer.caller, bodies, size, limits.bodies)
    if full is not None:
        raise NoRoomError(newcomer.caller, size, sum(bodies[connection] for connection in full))


def displaced(
    newcomer: _Connection, size: int, present: Iterable[_Connection], limits: Limits
) -> list[_Connection]:
    """Return the connections that are closed for an answer of so many bytes to a newcomer.

    They are those that read nothing for longest: of the same caller if that is at its cap, else of
    all. The answer is sent in any case: a change is made already.
    """
    size = min(size, limits.answers.caller)  # a larger one has the whole cap
    unread = {reader: reader.unread for reader in present if reader.unread}
    leaving = []
    while full := _exceeded(newcomer.caller, unread, size, limits.answers):
        leaving.append(full[0])
        del unread[full[0]]
    return leaving


def _exceeded(
    caller: Caller, sizes: Mapping[_Connection, int], more: int, limit: Limit
) -> list[_Connection] | None:
    """Return the connections whose cap `more` of a caller would exceed; None if it fits."""
    if caller.privileged:
        return None
    of_caller = [connection for connection in sizes if connection.caller == caller]
    if sum(map(sizes.__getitem__, of_caller)) + more > limit.caller:
        return of_caller
    of_all = [connection for connection in sizes if not connection.caller.privileged]
    return of_all if sum(map(sizes.__getitem__, of_all)) + more > limit.everyone else None

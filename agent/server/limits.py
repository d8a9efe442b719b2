"""Limits the connections and bodies of a listener, and selects what gives way when it is full.

No caller can lock out another: each has a limit below that of all callers together, and when a
limit is reached, the longest idle connection is closed for the new one. Privileged callers are
counted separately, so that no other caller can take their places.
"""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from agent.server.http import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Caller(Struct, frozen=True):
    """The owner of connections: a user on the Unix socket, an address on TCP.

    Connections of others do not limit a `privileged` caller (root, the agent's own user).
    """

    name: str
    privileged: bool = False


class Limit(Struct, frozen=True):
    """The most connections or bytes of all callers together, and of each caller.

    Each privileged caller has a limit of `everyone` of its own.
    """

    everyone: int
    caller: int

    def times(self, size: int) -> Limit:
        """Return this limit multiplied by a size."""
        return Limit(self.everyone * size, self.caller * size)


class Limits(Struct, frozen=True):
    """The limits of a listener's connections; times in seconds.

    `requests` limits connections with requests, `watchers` those that follow a stream, `bodies` the
    bytes of unanswered requests, `answers` the bytes of unread responses. A request's head must be
    complete within `head_seconds` of the connection or of the head's first byte; so must a TLS
    handshake. From a response to the next request, including the time to read the response, at
    most `idle_seconds` pass; a watcher must read each piece within that time. A body has at most
    `body_bytes`. `cut_answers`: if a caller at its limit has no idle connection, its oldest request
    is aborted for the new connection; otherwise the new connection is rejected. `open_in_turn`:
    connections that are not privileged are set up a few at a time, so that those which give way to
    others cost next to nothing, and a privileged one is reached behind however many of them.
    """

    requests: Limit
    watchers: Limit
    bodies: Limit
    answers: Limit
    head_seconds: float
    idle_seconds: float
    body_bytes: int = 0
    cut_answers: bool = False
    open_in_turn: bool = False


class PlaceHolder(Protocol):
    """What `Places` and `Room` need of a connection."""

    @property
    def caller(self) -> Caller:
        """The caller that the connection is counted for."""

    @property
    def answering(self) -> bool:
        """Whether one of its requests is being answered."""


_Connection = TypeVar("_Connection", bound=PlaceHolder)


class FullError(Exception):
    """The limit is reached and no connection can be closed."""

    def __init__(self, caller: Caller, count: int) -> None:
        super().__init__(
            f"{caller.name} has {count} connections that all wait for a response; retry"
            " when one of them is answered"
        )
        self.caller = caller
        self.count = count


class Places(Generic[_Connection]):
    """Connections by caller, in the order of their last activity."""

    def __init__(self, limit: Limit, *, cut_answers: bool) -> None:
        self._limit = limit
        self._cut_answers = cut_answers
        self._connections: dict[Caller, dict[_Connection, None]] = {}
        self._common = 0

    def __iter__(self) -> Iterator[_Connection]:
        return (connection for of_caller in self._connections.values() for connection in of_caller)

    def __len__(self) -> int:
        return sum(map(len, self._connections.values()))

    def enter(self, newcomer: _Connection) -> _Connection | None:
        """Add a connection; return the one to be closed for it, None if there was room.

        Raises `FullError` if the limit is reached and no connection can be closed.
        """
        leaving = self._leaving_for(newcomer.caller)
        if leaving is not None:
            self.leave(leaving)
        self._connections.setdefault(newcomer.caller, {})[newcomer] = None
        self._common += not newcomer.caller.privileged
        return leaving

    def touch(self, connection: _Connection) -> None:
        """Record activity of a connection; unknown connections are ignored."""
        of_caller = self._connections.get(connection.caller, {})
        if connection in of_caller:
            del of_caller[connection]
            of_caller[connection] = None

    def leave(self, connection: _Connection) -> None:
        """Remove a connection; unknown connections are ignored."""
        of_caller = self._connections.get(connection.caller, {})
        if connection not in of_caller:
            return
        del of_caller[connection]
        self._common -= not connection.caller.privileged
        if not of_caller:
            del self._connections[connection.caller]

    def _leaving_for(self, caller: Caller) -> _Connection | None:
        own = self._connections.get(caller, {})
        most = self._limit.everyone if caller.privileged else self._limit.caller
        if len(own) >= most:
            return self._longest_idle(caller, cut=self._cut_answers)
        if caller.privileged or self._common < self._limit.everyone:
            return None
        largest = max(
            (known for known in self._connections if not known.privileged),
            key=lambda known: len(self._connections[known]),
        )
        # A caller with more connections than others loses one even if all wait for responses.
        fair = self._cut_answers or len(self._connections[largest]) > len(own) + 1
        return self._longest_idle(largest, cut=fair)

    def _longest_idle(self, caller: Caller, *, cut: bool) -> _Connection:
        own = self._connections[caller]
        idle = next((connection for connection in own if not connection.answering), None)
        if idle is not None:
            return idle
        if cut:
            return next(iter(own))
        raise FullError(caller, len(own))


#: When to retry, in seconds: most bodies and responses take less.
RETRY_SECONDS: Final = 1


class NoRoomError(HttpError):
    """The bytes exceed the limit of the caller or of all callers."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = (("Retry-After", str(RETRY_SECONDS)),)

    def __init__(self, caller: Caller, size: int, used: int) -> None:
        super().__init__(
            f"no room for {size} bytes: unfinished requests use {used}, including those of"
            f" {caller.name}; send fewer at a time, or retry later"
        )


class Room(Generic[_Connection]):
    """Bytes in use by connection, of each caller in the order of their last progress.

    `limit` is in bytes.
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._sizes: dict[Caller, dict[_Connection, int]] = {}

    def used(self, caller: Caller | None = None) -> int:
        """Return how many bytes a caller uses; None means all callers that are not privileged."""
        if caller is not None:
            return sum(self._sizes.get(caller, {}).values())
        return sum(self.used(known) for known in self._sizes if not known.privileged)

    @contextmanager
    def space(self, connection: _Connection) -> Iterator[None]:
        """Release at the end of the block all bytes of a connection."""
        try:
            yield
        finally:
            self._leave(connection)

    def take(self, connection: _Connection, size: int) -> None:
        """Add bytes of a connection; raises `NoRoomError` where they do not fit."""
        caller = connection.caller
        if not self._fits(caller, size):
            raise NoRoomError(caller, size, self.used(caller if caller.privileged else None))
        self._add(connection, size)

    def claim(self, connection: _Connection, size: int) -> list[_Connection]:
        """Add bytes of a connection in any case; return the connections to be closed for them.

        These are the ones without progress for longest: of the same caller if its share is used
        up, else of the caller with the most bytes. Bytes above the whole limit displace all others.
        """
        leaving: list[_Connection] = []
        while not self._fits(connection.caller, size):
            victim = self._without_progress(connection)
            if victim is None:
                break
            leaving.append(victim)
            self._leave(victim)
        self._add(connection, size)
        return leaving

    def progressed(self, connection: _Connection) -> None:
        """Record that the peer read or sent bytes; unknown connections are ignored."""
        sizes = self._sizes.get(connection.caller, {})
        if connection in sizes:
            sizes[connection] = sizes.pop(connection)

    def _add(self, connection: _Connection, size: int) -> None:
        sizes = self._sizes.setdefault(connection.caller, {})
        sizes[connection] = sizes.pop(connection, 0) + size

    def _leave(self, connection: _Connection) -> None:
        sizes = self._sizes.get(connection.caller, {})
        sizes.pop(connection, None)
        if not sizes:
            self._sizes.pop(connection.caller, None)

    def _fits(self, caller: Caller, size: int) -> bool:
        own = self.used(caller) + size
        if caller.privileged:
            return own <= self._limit.everyone
        return own <= self._limit.caller and self.used() + size <= self._limit.everyone

    def _without_progress(self, newcomer: _Connection) -> _Connection | None:
        caller = newcomer.caller
        own = [
            connection for connection in self._sizes.get(caller, {}) if connection is not newcomer
        ]
        if own or caller.privileged:
            return next(iter(own), None)
        others = [known for known in self._sizes if not known.privileged and known != caller]
        largest = max(others, key=self.used, default=None)
        return None if largest is None else next(iter(self._sizes[largest]))

"""Limits the memory of a listener's connections, and selects which ones are closed for it.

A limit of connections does not limit memory: a body may have megabytes, and a response is buffered
until the client reads it. As with places (`agent.server.listeners.limits`), each caller has a share
below the limit of all together, and privileged callers are counted separately.
"""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from agent.server.listeners.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.server.listeners.limits import Caller, Limit, PlaceHolder

#: When to retry, in seconds: most bodies and responses take less.
RETRY_SECONDS: Final = 1

_Connection = TypeVar("_Connection", bound="PlaceHolder")


class NoRoomError(HttpError):
    """The bytes exceed the limit of the caller or of all callers."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = (("Retry-After", str(RETRY_SECONDS)),)

    def __init__(self, caller: Caller, size: int, used: int) -> None:
        super().__init__(
            f"no room for {size} bytes: unfinished requests use {used}, including those of"
            f" {caller.name}; send fewer at a time, or retry later"
        )
        self.caller = caller
        self.size = size
        self.used = used


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

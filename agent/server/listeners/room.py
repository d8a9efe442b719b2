"""How many bytes the connections of a listener hold at a time, and which ones give way.

The number of connections bounds no memory: a body may have megabytes, and an answer stays until its
reader takes it. As with places (`agent.server.listeners.limits`), each caller has a share below the
bound of all together, and privileged callers are counted apart, so that no other takes their room.
"""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from agent.server.listeners.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.server.listeners.limits import Caller, Limit, PlaceHolder

#: When to ask again, in seconds: most bodies and answers take less.
RETRY_SECONDS: Final = 1

_Held = TypeVar("_Held", bound="PlaceHolder")


class NoRoomError(HttpError):
    """The bytes do not fit beside those that the caller, or all callers, hold already."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = (("Retry-After", str(RETRY_SECONDS)),)

    def __init__(self, caller: Caller, size: int, held: int) -> None:
        super().__init__(
            f"no room for {size} bytes: unfinished requests hold {held}, those of {caller.name}"
            " included; send fewer at a time, or ask again"
        )
        self.caller = caller
        self.size = size
        self.held = held


class Room(Generic[_Held]):
    """The bytes of one kind that connections hold, of each caller in the order of their progress.

    `limit` counts bytes.
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._sizes: dict[Caller, dict[_Held, int]] = {}

    def held(self, caller: Caller | None = None) -> int:
        """Return how many bytes a caller holds; None means all who are not privileged."""
        if caller is not None:
            return sum(self._sizes.get(caller, {}).values())
        return sum(self.held(known) for known in self._sizes if not known.privileged)

    @contextmanager
    def space(self, held: _Held) -> Iterator[None]:
        """Give back all that a connection takes inside."""
        try:
            yield
        finally:
            self._leave(held)

    def take(self, held: _Held, size: int) -> None:
        """Take so many bytes more; raises `NoRoomError` where they do not fit."""
        caller = held.caller
        if not self._fits(caller, size):
            raise NoRoomError(caller, size, self.held(caller if caller.privileged else None))
        self._add(held, size)

    def claim(self, held: _Held, size: int) -> list[_Held]:
        """Take so many bytes more in any case; return the connections that give way for them.

        Those are the ones without progress for longest, of the caller where its share is used up,
        else of the caller with the most. What is larger than all of the room is alone in it.
        """
        leaving: list[_Held] = []
        while not self._fits(held.caller, size):
            victim = self._without_progress(held)
            if victim is None:
                break
            leaving.append(victim)
            self._leave(victim)
        self._add(held, size)
        return leaving

    def progressed(self, held: _Held) -> None:
        """Note that the peer took or sent some bytes; a connection without any is passed over."""
        sizes = self._sizes.get(held.caller, {})
        if held in sizes:
            sizes[held] = sizes.pop(held)

    def _add(self, held: _Held, size: int) -> None:
        sizes = self._sizes.setdefault(held.caller, {})
        sizes[held] = sizes.pop(held, 0) + size

    def _leave(self, held: _Held) -> None:
        sizes = self._sizes.get(held.caller, {})
        sizes.pop(held, None)
        if not sizes:
            self._sizes.pop(held.caller, None)

    def _fits(self, caller: Caller, size: int) -> bool:
        own = self.held(caller) + size
        if caller.privileged:
            return own <= self._limit.everyone
        return own <= self._limit.caller and self.held() + size <= self._limit.everyone

    def _without_progress(self, newcomer: _Held) -> _Held | None:
        caller = newcomer.caller
        own = [held for held in self._sizes.get(caller, {}) if held is not newcomer]
        if own or caller.privileged:
            return next(iter(own), None)
        others = [known for known in self._sizes if not known.privileged and known != caller]
        largest = max(others, key=self.held, default=None)
        return None if largest is None else next(iter(self._sizes[largest]))

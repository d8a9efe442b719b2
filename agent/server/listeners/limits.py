"""Who may be connected to a listener, and who gives way when it is full.

No caller locks out another: each has a bound of its own below that of all together, and where a
bound is reached the longest idle connection makes room for the new one. Privileged callers are
counted apart, so nobody else can take their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator


class Caller(Struct, frozen=True):
    """Whom connections are counted for: a user on the Unix socket, an address on TCP.

    A `privileged` caller (root, the agent's own user) is let in whatever others hold.
    """

    name: str
    privileged: bool = False


class Limit(Struct, frozen=True):
    """At most so many (connections, bytes) of all callers together, and of each one of them.

    Each privileged caller may hold as many as all others together.
    """

    everyone: int
    caller: int

    def times(self, size: int) -> Limit:
        """Return the limit of so many things of a size."""
        return Limit(self.everyone * size, self.caller * size)


class Limits(Struct, frozen=True):
    """What the connections of a listener may cost; times in seconds.

    `requests` bounds the connections that ask, `watchers` those that follow a stream, `bodies` the
    bytes of requests that are not answered yet, `answers` those that are not taken yet. A request's
    head must be whole within `head_seconds` of the connection or of its first byte, a TLS handshake
    too. Between an answer and the next request, the taking of the answer included, at most
    `idle_seconds` pass; a watcher takes each piece within that time. No body is larger than
    `body_bytes`. `cut_answers`: where a caller has no idle connection, the one that asked first
    gives way to its next one; otherwise the next one is rejected, and its work in progress goes on.
    """

    requests: Limit
    watchers: Limit
    bodies: Limit
    answers: Limit
    head_seconds: float
    idle_seconds: float
    body_bytes: int = 0
    cut_answers: bool = False


class PlaceHolder(Protocol):
    """A connection as far as places are concerned."""

    @property
    def caller(self) -> Caller:
        """Whom it counts for."""

    @property
    def answering(self) -> bool:
        """Return whether a request of it is being answered."""


_Held = TypeVar("_Held", bound=PlaceHolder)


class FullError(Exception):
    """There is no place, and nobody who would have to give way."""

    def __init__(self, caller: Caller, held: int) -> None:
        super().__init__(
            f"{caller.name} holds {held} connections and waits for an answer on each; ask again"
            " when one of them is answered"
        )
        self.caller = caller
        self.held = held


class Places(Generic[_Held]):
    """The connections of one kind, those of each caller in the order of their last activity."""

    def __init__(self, limit: Limit, *, cut_answers: bool) -> None:
        self._limit = limit
        self._cut_answers = cut_answers
        self._held: dict[Caller, dict[_Held, None]] = {}
        self._common = 0

    def __iter__(self) -> Iterator[_Held]:
        return (held for of_caller in self._held.values() for held in of_caller)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def enter(self, newcomer: _Held) -> _Held | None:
        """Give a place to a connection; return the one that left for it, None where there was room.

        Raises `FullError` when nobody has to leave.
        """
        leaving = self._leaving_for(newcomer.caller)
        if leaving is not None:
            self.leave(leaving)
        self._held.setdefault(newcomer.caller, {})[newcomer] = None
        self._common += not newcomer.caller.privileged
        return leaving

    def touch(self, held: _Held) -> None:
        """Note that a connection was active; whoever holds no place is passed over."""
        of_caller = self._held.get(held.caller, {})
        if held in of_caller:
            del of_caller[held]
            of_caller[held] = None

    def leave(self, held: _Held) -> None:
        """Take a connection's place back, if it has one."""
        of_caller = self._held.get(held.caller, {})
        if held not in of_caller:
            return
        del of_caller[held]
        self._common -= not held.caller.privileged
        if not of_caller:
            del self._held[held.caller]

    def _leaving_for(self, caller: Caller) -> _Held | None:
        own = self._held.get(caller, {})
        most = self._limit.everyone if caller.privileged else self._limit.caller
        if len(own) >= most:
            return self._longest_idle(caller, cut=self._cut_answers)
        if caller.privileged or self._common < self._limit.everyone:
            return None
        largest = max(
            (known for known in self._held if not known.privileged),
            key=lambda known: len(self._held[known]),
        )
        # Whoever holds more than others has to give them room, whatever it waits for.
        fair = self._cut_answers or len(self._held[largest]) > len(own) + 1
        return self._longest_idle(largest, cut=fair)

    def _longest_idle(self, caller: Caller, *, cut: bool) -> _Held:
        held = self._held[caller]
        idle = next((one for one in held if not one.answering), None)
        if idle is not None:
            return idle
        if cut:
            return next(iter(held))
        raise FullError(caller, len(held))

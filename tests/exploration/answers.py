"""What a caller was answered, whichever way it asked."""

from __future__ import annotations

from msgspec import Struct


class Answer(Struct, frozen=True):
    """The answer to one request."""

    uid: str
    admitted: bool
    #: The exclusive CPUs that were said, None where none are said.
    cpus: str | None = None
    #: Whether all of it is enforced, as far as was said.
    enforced: bool = True
    #: Whether a lack of room is the reason of a rejection.
    no_room: bool = False

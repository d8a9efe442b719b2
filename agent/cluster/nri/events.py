"""The events of NRI that the agent subscribes to.

In: what a runtime says of itself. Out: the events, and their bits in a ConfigureResponse. A runtime
that does not know an event of the subscription forgets the plugin: it logs an error, keeps the
connection, and never sends anything again. So an event is subscribed to only if the runtime is
known to have it.
"""

from __future__ import annotations

import re
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class NriEvent(IntEnum):
    """The events of pods and containers, by their numbers (enum Event of NRI)."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13

    @property
    def method(self) -> str:
        """The name of the event's own method."""
        return "".join(word.capitalize() for word in self.name.split("_"))


#: The events by the names of their methods.
EVENTS: Final[Mapping[str, NriEvent]] = MappingProxyType(
    {event.method: event for event in NriEvent}
)

#: The events that every runtime has. POST_START_CONTAINER says that a container's process runs.
_ALWAYS: Final = (
    NriEvent.RUN_POD_SANDBOX,
    NriEvent.STOP_POD_SANDBOX,
    NriEvent.REMOVE_POD_SANDBOX,
    NriEvent.CREATE_CONTAINER,
    NriEvent.POST_START_CONTAINER,
    NriEvent.UPDATE_CONTAINER,
    NriEvent.STOP_CONTAINER,
    NriEvent.REMOVE_CONTAINER,
)
#: The events that a runtime has since NRI 0.10. Before NRI 0.12 a runtime does not say which NRI it
#: has, so its own version is looked up.
_SINCE_0_10: Final = (NriEvent.UPDATE_POD_SANDBOX,)
_FIRST_WITH_0_10: Final = MappingProxyType({"containerd": (2, 2), "cri-o": (1, 34)})
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)")


def subscription(runtime: str, version: str, nri_version: str) -> Collection[NriEvent]:
    """Return the events to subscribe to, from what a runtime says of itself in Configure."""
    has_0_10 = _has_0_10(runtime, version, nri_version)
    return (*_ALWAYS, *_SINCE_0_10) if has_0_10 else _ALWAYS


def smallest_subscription() -> Collection[NriEvent]:
    """Return the events that every runtime has."""
    return _ALWAYS


def event_mask(events: Collection[NriEvent]) -> int:
    """Return the bits of a ConfigureResponse."""
    return sum(1 << (event - 1) for event in events)


def _has_0_10(runtime: str, version: str, nri_version: str) -> bool:
    if nri_version:
        return _at_least(nri_version, (0, 10))
    first = _FIRST_WITH_0_10.get(runtime.lower())
    return first is not None and _at_least(version, first)


def _at_least(version: str, first: tuple[int, int]) -> bool:
    match = _VERSION.match(version)
    return match is not None and (int(match[1]), int(match[2])) >= first

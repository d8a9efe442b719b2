"""The ways to a kubelet's pods: which one is in use, and why another is not.

In: the ways, and the outcome of each attempt. Out: the name of the way in use, and conditions.

| way in use | what is true | what ends it |
|-|-|-|
| none | no way has answered since one failed | a way answers |
| Pods API | it is watched | it fails |
| endpoint `/pods` | it is asked, since the API does not answer | it fails; the API answers |
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from msgspec import Struct

from agent.cluster.kubelet.pods import PodsUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from agent.clock import Clock
    from agent.cluster.kubelet.pods_api import PodsApi
    from agent.cluster.kubelet.pods_endpoint import PodsEndpoint

log = structlog.get_logger(__name__)

#: The first and the longest pause before a call is repeated that the kubelet rejected for its rate,
#: in seconds; each pause is twice the last. All clients together may call 100 times a second.
_RATE_PAUSE: Final = 0.02
_LONGEST_RATE_PAUSE: Final = 0.5
_TOO_MANY: Final = "RESOURCE_EXHAUSTED"
#: The answer of a kubelet from v1.37 on until it has read all of its sources, also after a restart.
_NOT_SYNCHRONIZED: Final = "FAILED_PRECONDITION"
#: How long that may last before it is a condition, in seconds.
SYNC_SECONDS: Final = 60.0
#: Statuses that say nothing about the gate. With the gate off, v1.37 serves the socket and answers
#: with other errors.
_PASSING: Final = frozenset(
    {"", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", _TOO_MANY, _NOT_SYNCHRONIZED}
)
_GATE: Final = (
    "enable the kubelet's feature gate PodsAPI (featureGates: {PodsAPI: true} in its configuration)"
)
_REMEDY: Final = f"{_GATE}, or set agent.kubelet.podsEndpoint and agent.kubelet.tokenFile"

AnswerT = TypeVar("AnswerT")


class KubeletDeadlines(Struct, frozen=True):
    """How long the kubelet may take, in seconds."""

    #: To begin a watch.
    watch: float = 10.0
    #: To list its pods.
    listing: float = 5.0


class KubeletWays(Struct, frozen=True):
    """The ways to a kubelet's pods."""

    api: PodsApi
    #: None: not configured.
    endpoint: PodsEndpoint | None
    deadlines: KubeletDeadlines = KubeletDeadlines()


class WayInUse:
    """The way in use, and why each other way failed last."""

    def __init__(self, ways: KubeletWays, clock: Clock) -> None:
        #: "" for none.
        self.name = ""
        self._api = ways.api.way
        self._clock = clock
        self._faults: dict[str, PodsUnavailableError] = {}
        #: Since when the API answers that the kubelet has not read its sources; None: it does not.
        self._waits_since: float | None = None

    def answered(self, way: str) -> None:
        """Note that a way answered: it is in use."""
        self._faults.pop(way, None)
        if way == self._api:
            self._waits_since = None
        if self.name != way:
            log.info("kubelet pods are known", way=way)
        self.name = way

    def failed(self, error: PodsUnavailableError) -> bool:
        """Note that a way failed; return whether none is in use now."""
        fault = self._faults.get(error.way)
        waits = error.code == _NOT_SYNCHRONIZED
        if error.way == self._api:
            began = self._clock.monotonic() if self._waits_since is None else self._waits_since
            self._waits_since = began if waits else None
        if not error.expected and str(fault) != str(error):
            level = log.info if waits else log.warning
            level("kubelet pods unavailable", way=error.way, why=error.found)
        self._faults[error.way] = error
        if self.name == error.way:
            self.name = ""
        return not self.name

    def conditions(self) -> Iterator[str]:
        """Yield why pods are not known, or known by the second way only."""
        remedy, began = _REMEDY, self._waits_since
        if began is not None:
            waited = self._clock.monotonic() - began
            if waited < SYNC_SECONDS:
                return
            remedy = (
                f"the kubelet has not read all of its sources for {waited:.0f} s: see in its log "
                "whether it reaches the API server"
            )
        faults = tuple(self._faults.values())
        if not self.name and faults:
            ways = "; ".join(map(str, faults))
            yield f"specifications of the kubelet's pods are not known: {ways}; {remedy}"
        elif self.name != self._api:
            for error in faults:
                if not error.expected:
                    line = "" if error.code in _PASSING else f"; {_GATE}"
                    yield f"pods of the kubelet are read over the {self.name}: {error}{line}"


def is_off(error: TimeoutError | PodsUnavailableError) -> bool:
    """Return whether the Pods API is not there, or its gate is off."""
    if isinstance(error, TimeoutError):
        return False
    return error.expected or error.code not in _PASSING


async def patiently(call: Callable[[], Awaitable[AnswerT]], seconds: float) -> AnswerT:
    """Return the answer to a call; repeat the call while the kubelet rejects it for its rate.

    After `seconds` the last rejection is raised.
    """
    pause, now = _RATE_PAUSE, asyncio.get_running_loop().time
    ends = now() + seconds
    while True:
        try:
            return await call()
        except PodsUnavailableError as error:
            if error.code != _TOO_MANY or now() + pause > ends:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_RATE_PAUSE)

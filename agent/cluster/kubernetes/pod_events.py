"""Events on pods, as `kubectl describe pod` shows them.

A pod gets one Event for each reason and message; a repetition is counted in that Event. A pod has
at most one request in a minute, and after a failure all pods wait. An Event that the server does
not accept is dropped: Events are for people, and the log and `numawarden show` say the same.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec import Struct

from agent.cluster.kubernetes.api_server import JSON, MERGE, ApiServer
from agent.cluster.kubernetes.request_errors import ApiResource, ApiServerError, Outcome
from agent.cluster.kubernetes.retries import Retries

if TYPE_CHECKING:
    from agent.pods.model import PodIdentity

#: The seconds between two requests of one pod.
POD_SECONDS: Final = 60.0
#: The number of pods with an Event; beyond it the pod that was noted first is forgotten.
MOST_PODS: Final = 1000
#: The length of an Event's message in characters, as in events.k8s.io.
LONGEST_MESSAGE: Final = 1024
_LONGEST_NAME: Final = 253
_COMPONENT: Final = "numawarden"
_EVENT: Final = ApiResource(
    path="/api/v1/namespaces",
    rule="events",
    verbs="create and patch",
    missing="check that agent.kubernetes.server is a Kubernetes API server",
)
#: The pod's namespace is gone, or the server does not accept the Event: no retry helps.
_HOPELESS: Final = frozenset({Outcome.NOT_FOUND, Outcome.CONFLICT, Outcome.REJECTED})


class PodEvents:
    """Collects Events on pods, and sends them one at a time.

    `error` is why the latest request failed, or None. `now` is seconds of a clock that never runs
    backwards, `time` is Unix time.
    """

    def __init__(self, server: ApiServer, node: str) -> None:
        self._server = server
        self._node = node
        self._events: OrderedDict[str, _PodEvent] = OrderedDict()
        self._not_before: dict[str, float] = {}
        self._retries = Retries()
        self.error: ApiServerError | None = None

    def note(self, pod: PodIdentity, reason: str, message: str, time: float) -> None:
        """Note an Event of a pod; a repetition of the pod's latest Event is counted."""
        shown = (
            message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 3]}..."
        )
        event = self._events.get(pod.uid)
        if event is not None and (event.reason, event.message) == (reason, shown):
            event.count += 1
            event.last = time
            return
        self._events[pod.uid] = _PodEvent(pod, reason, shown, first=time, last=time)
        self._events.move_to_end(pod.uid)
        if len(self._events) > MOST_PODS:
            forgotten, _ = self._events.popitem(last=False)
            self._not_before.pop(forgotten, None)

    def due(self, now: float) -> bool:
        """Return whether an Event is to be sent now."""
        return self._retries.allow(now) and self._next(now) is not None

    async def send(self, now: float) -> Outcome:
        """Send one Event that is due; raises `LookupError` if none is."""
        event = self._next(now)
        if event is None:
            raise LookupError("no Event is due")
        count = event.count
        # Before the request: also after a failure other pods are next.
        self._not_before[event.pod.uid] = now + POD_SECONDS
        try:
            await (self._create(event) if not event.name else self._count(event))
        except ApiServerError as error:
            return self._failed(event, error, now)
        event.sent = count
        self.error = None
        self._retries.succeeded()
        return Outcome.DONE

    def _next(self, now: float) -> _PodEvent | None:
        return next(
            (
                event
                for uid, event in self._events.items()
                if event.sent < event.count and now >= self._not_before.get(uid, now)
            ),
            None,
        )

    def _failed(self, event: _PodEvent, error: ApiServerError, now: float) -> Outcome:
        if error.outcome is Outcome.NOT_FOUND and event.name:
            event.name = ""  # the server keeps Events for an hour: this one is made again
            del self._not_before[event.pod.uid]
        elif error.outcome in _HOPELESS:
            event.sent = event.count
        else:
            self.error = error
            self._retries.failed(now)
        return error.outcome

    async def _create(self, event: _PodEvent) -> None:
        name = _event_name(event.pod.name)
        await self._server.call("POST", _EVENT, _path(event), self._document(event, name), JSON)
        event.name = name

    async def _count(self, event: _PodEvent) -> None:
        changes = {"count": event.count, "lastTimestamp": _timestamp(event.last)}
        path = f"{_path(event)}/{quote(event.name, safe='')}"
        await self._server.call("PATCH", _EVENT, path, changes, MERGE)

    def _document(self, event: _PodEvent, name: str) -> dict[str, Any]:
        pod = event.pod
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "reason": event.reason,
            "message": event.message,
            "type": "Warning",
            "count": event.count,
            "firstTimestamp": _timestamp(event.first),
            "lastTimestamp": _timestamp(event.last),
            "source": {"component": _COMPONENT, "host": self._node},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node,
        }


class _PodEvent(Struct):
    """The latest Event of a pod."""

    pod: PodIdentity
    reason: str
    message: str
    #: Unix time of the first and of the latest `note`.
    first: float
    last: float
    #: How often the Event was noted, and the count that the server has.
    count: int = 1
    sent: int = 0
    #: The name of the Event, "" while the server has none.
    name: str = ""


def _path(event: _PodEvent) -> str:
    return f"/{quote(event.pod.namespace, safe='')}/events"


def _event_name(pod: str) -> str:
    """Return a name for a new Event: the name of the pod, and a random suffix."""
    suffix = f".{secrets.token_hex(8)}"
    return f"{pod[: _LONGEST_NAME - len(suffix)].rstrip('.-')}{suffix}"


def _timestamp(time: float) -> str:
    """Return a Unix time as the API has it, to the second."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"

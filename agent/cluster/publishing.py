"""What the running agent publishes in a cluster: the topology of its node, Events on its pods.

Nothing waits for it: a change of the ledger is published after it is answered, and an API server
that fails or hangs is a condition, and is asked again later.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog
from msgspec import Struct

from agent.api.documents.rejections import INVALID_MANIFEST, RUNS_SHARED
from agent.clock import wait_for
from agent.cluster.api_server import (
    JSON,
    MERGE,
    AccessError,
    ApiResource,
    ApiServer,
    ApiServerError,
    Outcome,
    api_access,
    node_name,
)
from agent.cluster.topology import Retries, TopologyPublisher, node_topology
from agent.pods.model import PodIdentity
from agent.server import metrics as names
from agent.server.errors import StartError
from agent.server.lifecycle import Companion
from agent.sources.source import INVALID, SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.rejections import FailedPodDocument
    from agent.cluster.topology import NodeTopology
    from agent.config.cluster import KubernetesConfig
    from agent.managers.allocation import Source
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.server.controller import Controller
    from agent.server.events import Watcher

#: A pod has at most one request in so many seconds.
POD_SECONDS: Final = 60.0
#: The pods whose Events are remembered; the one that was noted first is forgotten.
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

log = structlog.get_logger(__name__)

#: The name of the source whose pods are those of the cluster (`agent.cluster.kubelet.source`).
CLUSTER_SOURCE: Final = "kubelet"
#: How often it is looked for changes that no event reports, and for what failed, in seconds.
PERIOD_SECONDS: Final = 10.0
#: Changes within so many seconds after the first are published together.
SETTLE_SECONDS: Final = 1.0
#: Events that are sent one after the other; the topology is looked at in between.
_EVENTS_AT_ONCE: Final = 20
#: Subjects of the conditions.
_TOPOLOGY: Final = "node topology"
_INCOMPLETE: Final = "node topology incomplete"
_EVENTS: Final = "pod events"


class _PodEvent(Struct):
    """The latest Event of a pod: how often it was noted, and what of that the server has."""

    pod: PodIdentity
    reason: str
    message: str
    first: float
    last: float
    count: int = 1
    sent: int = 0
    #: The name of the Event, "" before the server has it.
    name: str = ""


class PodEvents:
    """Collects Events on pods and sends them; `error` is why the latest request failed, or None.

    A pod gets one Event for each reason and message; what repeats is counted in the Event. Requests
    are limited for each pod, and all wait after a failure. An Event that the server does not accept
    is dropped: Events are for people, and the log and `numawarden show` say the same.

    `now` is seconds of a clock that never runs backwards, `time` is Unix time.
    """

    def __init__(self, server: ApiServer, node: str) -> None:
        self._server = server
        self._node = node
        self._events: OrderedDict[str, _PodEvent] = OrderedDict()
        self._not_before: dict[str, float] = {}
        self._retries = Retries()
        self.error: ApiServerError | None = None

    def note(self, pod: PodIdentity, reason: str, message: str, time: float) -> None:
        """Note what a pod's Event is to say; the same again is counted."""
        shown = (
            message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 3]}..."
        )
        known = self._events.get(pod.uid)
        if known is not None and (known.reason, known.message) == (reason, shown):
            known.count += 1
            known.last = time
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
        # Whatever becomes of it, Events of other pods are next.
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


#: The pod's namespace is gone, or the server does not accept the Event: no retry helps.
_HOPELESS: Final = frozenset({Outcome.NOT_FOUND, Outcome.CONFLICT, Outcome.REJECTED})


def _path(event: _PodEvent) -> str:
    return f"/{quote(event.pod.namespace, safe='')}/events"


def _event_name(pod: str) -> str:
    """Return a name for a new Event: that of the pod, and a suffix that no other Event has."""
    suffix = f".{secrets.token_hex(8)}"
    return f"{pod[: _LONGEST_NAME - len(suffix)].rstrip('.-')}{suffix}"


def _timestamp(time: float) -> str:
    """Return a Unix time as the API has it, to the second."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"


def publishing(config: KubernetesConfig, controller: Controller) -> Companion:
    """Return the companion that publishes what `agent.kubernetes` asks for.

    The files of token and certificate authority are looked at when they are used, since both may
    come later. Raises `StartError` if no API server is known.
    """
    server, node = api_server_and_node(config)
    return Companion("publishing", Publishing(controller, server, node, config).serve)


def api_server_and_node(config: KubernetesConfig) -> tuple[ApiServer, str]:
    """Return the API server and this node's name; raises `StartError` if no server is known."""
    try:
        access = api_access(config, os.environ)
    except AccessError as error:
        raise StartError(f"agent.kubernetes.{error.key}", error.found, error.remedy) from error
    return ApiServer(access), node_name(config, os.environ)


class _Seen(Struct, frozen=True):
    """What a topology was made of."""

    rules: EffectivePolicy
    ledger: Ledger
    pods: tuple[tuple[str, str], ...]
    kubelet: KubeletListing

    def is_same(self, other: _Seen) -> bool:
        """Return whether nothing changed; all but `pods` are new values after each change."""
        unchanged = self.rules is other.rules and self.ledger is other.ledger
        return unchanged and self.pods == other.pods and self.kubelet is other.kubelet


class Publishing:
    """Publishes to one API server for the node of a name."""

    def __init__(
        self, controller: Controller, server: ApiServer, node: str, config: KubernetesConfig
    ) -> None:
        self._changed = asyncio.Event()
        self._controller = controller
        self._node = node
        self._publisher = TopologyPublisher(server, node) if config.publish_topology else None
        self._events = PodEvents(server, node) if config.events else None
        self._shown: tuple[_Seen, NodeTopology] | None = None
        if self._events is not None:
            controller.rejections.follow(self._rejected)

    async def serve(self) -> None:
        """Publish what is due after each change, until the agent stops."""
        clock = self._controller.clock
        self._changed.set()  # nothing is published yet
        with self._controller.events.watch() as watcher:
            listening = asyncio.create_task(self._listen(watcher))
            try:
                while True:
                    await wait_for(self._changed, PERIOD_SECONDS, clock)
                    await clock.sleep(SETTLE_SECONDS)
                    self._changed.clear()
                    await self._publish_due()
            finally:
                listening.cancel()

    async def _listen(self, watcher: Watcher) -> None:
        async for _ in watcher:
            self._changed.set()

    async def _publish_due(self) -> None:
        """Publish what is due; what fails is a condition, and due again later."""
        if self._publisher is not None:
            await self._publish(self._publisher)
        if self._events is not None:
            await self._send(self._events)

    def _rejected(self, status: FailedPodDocument, source: Source) -> None:
        # Of a pod in the kubelet's file alone the name is known once its sandbox starts: this comes
        # again then. The API server takes no Event on a pod without a name.
        named = status.uid and status.name
        if self._events is not None and source.name == CLUSTER_SOURCE and named:
            pod = PodIdentity(status.uid, status.name, status.namespace)
            # The kubelet runs what the agent cannot read, and the agent gives it nothing exclusive.
            reason = RUNS_SHARED if status.reason == INVALID_MANIFEST else status.reason
            self._events.note(pod, reason, status.message, self._controller.clock.time())
            self._changed.set()

    async def _publish(self, publisher: TopologyPublisher) -> None:
        state, clock = self._controller.state, self._controller.clock
        topology = self._topology()
        self._note(_INCOMPLETE, "; ".join(topology.left_out))
        if not publisher.due(topology.document, clock.monotonic()):
            return
        outcome = await publisher.publish(topology.document, clock.monotonic())
        self._controller.metrics.add(names.TOPOLOGY_PUBLICATIONS, str(outcome))
        if self._is_news(_TOPOLOGY, publisher.error):
            log.warning("node topology not published", node=self._node, why=str(publisher.error))
        if publisher.error is None:
            if state.observed.last_publication is None:
                log.info("node topology published", node=self._node)
            state.observed.last_publication = clock.time()

    async def _send(self, events: PodEvents) -> None:
        clock = self._controller.clock
        for _ in range(_EVENTS_AT_ONCE):
            if not events.due(clock.monotonic()):
                return
            outcome = await events.send(clock.monotonic())
            self._controller.metrics.add(names.POD_EVENTS, str(outcome))
            if self._is_news(_EVENTS, events.error):
                log.warning("pod event not written", node=self._node, why=str(events.error))
        self._changed.set()

    def _topology(self) -> NodeTopology:
        """Return the topology as of now; it is made again only if something changed."""
        state = self._controller.state
        rules, ledger, kubelet = state.configured.rules, state.ledger, state.kubelet_listing
        seen = _Seen(rules, ledger, tuple(self._cluster_pods()), kubelet)
        if self._shown is None or not self._shown[0].is_same(seen):
            self._shown = (seen, node_topology(rules, ledger, self._node, seen.pods, kubelet))
        return self._shown[1]

    def _cluster_pods(self) -> Iterator[tuple[str, str]]:
        """Yield namespace and name of the pods that run as pods of the cluster.

        They are the admitted ones, and those that run in the shared pool without an allocation.
        """
        state, admitted = self._controller.state, self._controller.state.ledger.allocations
        for allocation in admitted.values():
            if allocation.source is not None and allocation.source.name == CLUSTER_SOURCE:
                yield allocation.namespace, allocation.name
        source = state.observed.sources.by_name.get(CLUSTER_SOURCE)
        for entry in () if source is None else source.entries.values():
            if entry.state in (INVALID, SHARED) and entry.name and entry.uid not in admitted:
                yield entry.namespace, entry.name

    def _is_news(self, subject: str, error: ApiServerError | None) -> bool:
        """Have a condition for a failure; return whether that is another one than before."""
        message = "" if error is None else str(error)
        news = bool(message) and self._controller.state.observed.conditions.get(subject) != message
        self._note(subject, message)
        return news

    def _note(self, subject: str, message: str) -> None:
        conditions = self._controller.state.observed.conditions
        if message:
            conditions[subject] = message
        else:
            conditions.pop(subject, None)

"""What the running agent publishes in a cluster: the topology of its node, Events on its pods.

A change of the ledger is answered first and published afterwards; no answer waits for the cluster.
An API server that fails or hangs is a condition, and is asked again later.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from agent.api.documents.rejections import INVALID_MANIFEST, RUNS_SHARED
from agent.clock import wait_for
from agent.cluster.kubernetes.access import AccessError, api_access, node_name
from agent.cluster.kubernetes.api_server import ApiServer
from agent.cluster.kubernetes.node_topology import node_topology
from agent.cluster.kubernetes.pod_events import PodEvents
from agent.cluster.kubernetes.topology_publisher import TopologyPublisher
from agent.pods.model import PodIdentity
from agent.server import metrics as names
from agent.server.errors import StartError
from agent.server.lifecycle import Companion
from agent.sources.source import INVALID, SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.rejections import FailedPodDocument
    from agent.cluster.kubernetes.node_topology import NodeTopology
    from agent.cluster.kubernetes.request_errors import ApiServerError
    from agent.config.cluster import KubernetesConfig
    from agent.managers.allocation import Source
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.server.controller import Controller
    from agent.server.events import Watcher


#: The name of the source whose pods are those of the cluster (`agent.cluster.kubelet.source`).
CLUSTER_SOURCE: Final = "kubelet"
#: The seconds after which the agent looks for changes without an event, and retries what failed.
PERIOD_SECONDS: Final = 10.0
#: The seconds after a change in which further changes join it, so that all are published at once.
SETTLE_SECONDS: Final = 1.0
#: The number of Events that are sent before the topology has its turn.
_EVENTS_AT_ONCE: Final = 20
#: Subjects of the conditions.
_TOPOLOGY: Final = "node topology"
_INCOMPLETE: Final = "node topology incomplete"
_EVENTS: Final = "pod events"


log = structlog.get_logger(__name__)


def publishing(config: KubernetesConfig, controller: Controller) -> Companion:
    """Return the companion that publishes what `agent.kubernetes` asks for.

    The files of token and certificate authority are read at each request: both may come later than
    the agent. Raises `StartError` if no API server is known.
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


class Publishing:
    """Publishes the topology of one node, and Events on its pods, to one API server."""

    def __init__(
        self, controller: Controller, server: ApiServer, node: str, config: KubernetesConfig
    ) -> None:
        self._changed = asyncio.Event()
        self._controller = controller
        self._node = node
        #: None where the configuration does not ask for the topology, or for Events.
        self._publisher = TopologyPublisher(server, node) if config.publish_topology else None
        self._events = PodEvents(server, node) if config.events else None
        self._shown: tuple[_Inputs, NodeTopology] | None = None
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
        # The API server takes no Event on a pod without a name. A pod that is known from the
        # kubelet's file alone gets its name with its sandbox, and is reported again then.
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
        self._set_condition(_INCOMPLETE, "; ".join(topology.left_out))
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
        self._changed.set()  # more Events may be due: they follow the topology

    def _topology(self) -> NodeTopology:
        """Return the topology of the present; the last one where its inputs are the same."""
        state = self._controller.state
        rules, ledger, kubelet = state.configured.rules, state.ledger, state.kubelet_listing
        inputs = _Inputs(rules, ledger, tuple(self._cluster_pods()), kubelet)
        if self._shown is None or not self._shown[0].is_same(inputs):
            self._shown = (inputs, node_topology(rules, ledger, self._node, inputs.pods, kubelet))
        return self._shown[1]

    def _cluster_pods(self) -> Iterator[tuple[str, str]]:
        """Yield namespace and name of the cluster's pods that run on this node.

        The admitted pods run, and pods that run in the shared pool without an allocation.
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
        """Set or clear the condition of a subject; return whether it has a new message."""
        message = "" if error is None else str(error)
        news = bool(message) and self._controller.state.observed.conditions.get(subject) != message
        self._set_condition(subject, message)
        return news

    def _set_condition(self, subject: str, message: str) -> None:
        """Set the condition of a subject; "" clears it."""
        conditions = self._controller.state.observed.conditions
        if message:
            conditions[subject] = message
        else:
            conditions.pop(subject, None)


class _Inputs(Struct, frozen=True):
    """The values that a topology was made of."""

    rules: EffectivePolicy
    ledger: Ledger
    pods: tuple[tuple[str, str], ...]
    kubelet: KubeletListing

    def is_same(self, other: _Inputs) -> bool:
        """Return whether nothing changed; all but `pods` are new values after each change."""
        unchanged = self.rules is other.rules and self.ledger is other.ledger
        return unchanged and self.pods == other.pods and self.kubelet is other.kubelet

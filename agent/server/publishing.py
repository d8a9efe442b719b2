"""What the running agent publishes in a cluster: the topology of its node, Events on its pods.

Nothing waits for it: a change of the ledger is published after it is answered, and an API server
that fails or hangs is a condition, and is asked again later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from agent.kubernetes.node_topology import NodeTopology, node_topology
from agent.kubernetes.pod_events import PodEvents, PodReference
from agent.kubernetes.publisher import TopologyPublisher
from agent.server.metrics import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents import FailedPodDocument
    from agent.config.config import KubernetesConfig
    from agent.kubernetes.api_server import ApiServer, ApiServerError
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.allocations.origin import Source
    from agent.managers.effective_policy import EffectivePolicy
    from agent.server.control.controller import Controller

log = structlog.get_logger(__name__)

#: The name of the source whose pods are those of the cluster.
CLUSTER_SOURCE: Final = "kubelet"
#: Changes within so many seconds after the first are published together.
SETTLE_SECONDS: Final = 1.0
#: Events that are sent one after the other; the topology is looked at in between.
_EVENTS_AT_ONCE: Final = 20
#: Subjects of the conditions.
_TOPOLOGY: Final = "node topology"
_INCOMPLETE: Final = "node topology incomplete"
_EVENTS: Final = "pod events"


class Publishing:
    """Publishes to one API server; `step` is run after each change, `changed` asks for it."""

    def __init__(
        self, controller: Controller, server: ApiServer, node: str, config: KubernetesConfig
    ) -> None:
        self.changed = asyncio.Event()
        self.changed.set()  # nothing is published yet
        self._controller = controller
        self._node = node
        self._publisher = TopologyPublisher(server, node) if config.publish_topology else None
        self._events = PodEvents(server, node) if config.events else None
        self._shown: tuple[EffectivePolicy, Ledger, NodeTopology] | None = None
        if self._events is not None:
            controller.rejections.watch = self._rejected

    async def listen(self) -> None:
        """Ask for a step whenever the agent reports an event, until the agent stops."""
        with self._controller.events.watch() as watcher:
            async for _ in watcher:
                self.changed.set()

    async def step(self) -> None:
        """Publish what is due; what fails is a condition, and due again later."""
        clock = self._controller.clock
        await clock.sleep(SETTLE_SECONDS)
        if self._publisher is not None:
            await self._publish(self._publisher)
        if self._events is not None:
            await self._send(self._events)

    def pod_event(self, pod: PodReference, reason: str, message: str) -> None:
        """Have an Event written on a pod of the cluster, if Events are configured."""
        if self._events is not None:
            self._events.note(pod, reason, message, self._controller.clock.time())
            self.changed.set()

    def _rejected(self, status: FailedPodDocument, source: Source) -> None:
        if source.name == CLUSTER_SOURCE and status.uid:
            pod = PodReference(status.namespace, status.name, status.uid)
            self.pod_event(pod, status.reason, status.message)

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
            if state.last_publication is None:
                log.info("node topology published", node=self._node)
            state.last_publication = clock.time()

    async def _send(self, events: PodEvents) -> None:
        clock = self._controller.clock
        for _ in range(_EVENTS_AT_ONCE):
            if not events.due(clock.monotonic()):
                return
            outcome = await events.send(clock.monotonic())
            self._controller.metrics.add(names.POD_EVENTS, str(outcome))
            if self._is_news(_EVENTS, events.error):
                log.warning("pod event not written", node=self._node, why=str(events.error))
        self.changed.set()

    def _topology(self) -> NodeTopology:
        """Return the topology as of now; it is made only if policy or ledger changed."""
        rules, ledger = self._controller.state.configured.rules, self._controller.state.ledger
        if self._shown is None or self._shown[0] is not rules or self._shown[1] is not ledger:
            made = node_topology(rules, ledger, self._node, _cluster_pods(ledger))
            self._shown = (rules, ledger, made)
        return self._shown[2]

    def _is_news(self, subject: str, error: ApiServerError | None) -> bool:
        """Have a condition for a failure; return whether that is another one than before."""
        message = "" if error is None else str(error)
        news = bool(message) and self._controller.state.conditions.get(subject) != message
        self._note(subject, message)
        return news

    def _note(self, subject: str, message: str) -> None:
        conditions = self._controller.state.conditions
        if message:
            conditions[subject] = message
        else:
            conditions.pop(subject, None)


def _cluster_pods(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of the admitted pods that are pods of the cluster."""
    for allocation in ledger.allocations.values():
        if allocation.source is not None and allocation.source.name == CLUSTER_SOURCE:
            yield allocation.namespace, allocation.name

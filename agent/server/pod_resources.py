"""The podresources listener: the kubelet's podresources API (gRPC) on a Unix socket.

Monitoring asks here which pod has which CPUs, memory and devices. The methods, their statuses, the
limit on requests and the metrics are those of kubelet v1.36 (pkg/kubelet/apis/podresources), the
fields of the answers those of the configured version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from agent.api.pod_resources import Listing, allocatable_message
from agent.managers.versions import OLDEST
from agent.rpc.calls import CallError
from agent.rpc.pod_resources import FIRST_LISTER, POD_RESOURCES_LISTER, V1
from agent.rpc.server import server
from agent.server import metrics as names
from agent.server.errors import StartError
from agent.server.sockets import make_room, socket_mode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from grpc.aio import Server

    from agent.clock import Clock
    from agent.managers.metrics import MetricSpec
    from agent.managers.versions import KubernetesVersion
    from agent.rpc.messages import Message, MessageClass
    from agent.rpc.server import Handler
    from agent.server.counters import Counters
    from agent.server.state import AgentState


log = structlog.get_logger(__name__)

#: The kubelet's limit on requests of all clients together: a second, and at once.
REQUESTS_PER_SECOND: Final = 100
BURST: Final = 10
#: In bytes; the name and the namespace of a pod have 316 at most.
LONGEST_REQUEST: Final = 4 << 10
#: A client of Go opens 100 streams before it knows the server's limit, and does not try again what
#: is rejected then.
_STREAMS: Final = 100
#: A connection whose client does not speak HTTP/2 in time is closed, one without requests after a
#: while. A connection takes a descriptor, and 2.2 MiB with all of its streams in use (measured).
OPTIONS: Final[Mapping[str, int]] = {
    "grpc.max_receive_message_length": LONGEST_REQUEST,
    "grpc.max_allowed_incoming_connections": 128,
    "grpc.max_concurrent_streams": _STREAMS,
    # gRPC drops requests at random (CANCELLED) above its 1,000 that wait, half ones too: as many
    # may wait as all connections have.
    "grpc.server.max_pending_requests": 128 * _STREAMS,
    "grpc.server.max_pending_requests_hard_limit": 2 * 128 * _STREAMS,
    "grpc.server_handshake_timeout_ms": 5_000,
    "grpc.max_connection_idle_ms": 60_000,
}
#: Requests whose handler runs; handlers wait for nothing, so that there is one.
_CONCURRENT: Final = 16
#: Values of the label `server_api_version`.
_V1: Final = "v1"
_FIRST: Final = "v1alpha1"
#: How long requests in progress may take when the agent stops, in seconds.
_GRACE_SECONDS: Final = 1.0


class RateLimit:
    """A token bucket: `burst` requests at once, and `per_second` on average."""

    def __init__(self, per_second: float, burst: int, clock: Clock) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled = clock.monotonic()

    def allows(self) -> bool:
        """Return whether one more request is within the limit, and count the request if so."""
        now = self._clock.monotonic()
        gained = (now - self._filled) * self._per_second
        self._tokens, self._filled = min(self._burst, self._tokens + gained), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PodResourcesListener:
    """The API on its socket; `start` in a running event loop, and `stop` in the end.

    Requests are answered from a ledger that does not change, so that they wait for no admission.
    Raises `StartError` if no socket can be made at the path.
    """

    def __init__(
        self,
        path: Path,
        state: AgentState,
        counters: Counters,
        clock: Clock,
        version: KubernetesVersion = OLDEST,
    ) -> None:
        make_room(path)
        self._path = path
        self._state = state
        self._counters = counters
        self._limit = RateLimit(REQUESTS_PER_SECOND, BURST, clock)
        self._listing = Listing(version)
        self._server: Server | None = None

    async def start(self) -> None:
        """Listen; raises `StartError` if another process took the socket meanwhile."""
        make_room(self._path)
        try:
            with socket_mode():
                made = server(
                    self._path,
                    POD_RESOURCES_LISTER,
                    self._methods(),
                    concurrent=_CONCURRENT,
                    options=OPTIONS,
                    also={
                        FIRST_LISTER: {"List": (V1["ListPodResourcesRequest"], self._list_first)}
                    },
                )
        except RuntimeError as error:
            remedy = "see the agent's log, or name another path"
            raise StartError(f"socket {self._path}", str(error), remedy) from error
        self._server = made
        await made.start()
        log.info("podresources served", socket=str(self._path))

    async def stop(self, seconds: float = _GRACE_SECONDS) -> None:
        """Finish requests in progress within some seconds, stop listening, remove the socket."""
        if self._server is not None:
            await self._server.stop(min(seconds, _GRACE_SECONDS))
            self._server = None

    def _methods(self) -> dict[str, tuple[MessageClass, Handler]]:
        return {
            "List": (V1["ListPodResourcesRequest"], self._list),
            "Get": (V1["GetPodResourcesRequest"], self._get),
            "GetAllocatableResources": (V1["AllocatableResourcesRequest"], self._get_allocatable),
        }

    async def _list(self, request: Message) -> bytes:
        del request  # it has no fields
        self._admit(names.POD_RESOURCES_LIST)
        return self._all()

    async def _list_first(self, request: Message) -> bytes:
        del request  # it has no fields
        # The kubelet counts lists of this version among all requests only.
        self._admit(names.POD_RESOURCES_REQUESTS, _FIRST)
        return self._all()

    def _all(self) -> bytes:
        rules, ledger = self._state.configured.rules, self._state.ledger
        return self._listing.all(rules, ledger, self._state.kubelet_listing)

    async def _get(self, request: Message) -> bytes:
        self._admit(names.POD_RESOURCES_GET)
        namespace, name = request.pod_namespace, request.pod_name
        rules, ledger = self._state.configured.rules, self._state.ledger
        found = self._listing.one(rules, ledger, namespace, name, self._state.kubelet_listing)
        if found is None:
            self._counters.add(names.POD_RESOURCES_GET_ERRORS, _V1)
            raise CallError("UNKNOWN", f"pod {name} in namespace {namespace} not found")
        return found

    async def _get_allocatable(self, request: Message) -> Message:
        del request  # it has no fields
        self._admit(names.POD_RESOURCES_GET_ALLOCATABLE)
        rules, ledger = self._state.configured.rules, self._state.ledger
        return allocatable_message(rules, ledger, self._state.kubelet_listing)

    def _admit(self, metric: MetricSpec, version: str = _V1) -> None:
        """Count a request; raises `CallError` for one beyond the limit, which is not counted."""
        if not self._limit.allows():
            raise CallError("RESOURCE_EXHAUSTED", "rejected by rate limit")
        for counted in dict.fromkeys((names.POD_RESOURCES_REQUESTS, metric)):
            self._counters.add(counted, version)

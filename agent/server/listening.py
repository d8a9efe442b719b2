"""The listeners of a running agent: the API, metrics, and podresources.

In go their open sockets (`Listeners`). Out comes that callers are answered from `start` to `stop`.
The API is listened on again where its socket file is gone or is another one. Connections that wait
and are not accepted are a part of the agent that stands still (`agent.progress`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.server.answers import answer_without_handler
from agent.server.connection import HttpServer
from agent.server.limits import Limit, Limits
from agent.server.listener import Listener
from agent.server.monitoring import Monitoring
from agent.server.peers import callers_of, user_caller

if TYPE_CHECKING:
    import socket
    import ssl

    from agent.server.controller import Controller
    from agent.server.handlers import Api
    from agent.server.pod_resources import PodResourcesListener
    from agent.server.sockets import UnixListener

log = structlog.get_logger(__name__)

#: Bytes of unread responses: the list of thousands of pods has some MiB.
ANSWERS: Final = Limit(everyone=32 << 20, caller=16 << 20)
#: The metrics listener is open to all users of the host, for scrapes and probes, which are answered
#: at once. All clients of another host share an address, so an address has many connections: a new
#: connection must not be closed in favour of later ones before its request is read.
METRICS_LIMITS: Final = Limits(
    requests=Limit(everyone=384, caller=256),
    watchers=Limit(everyone=0, caller=0),
    bodies=Limit(everyone=0, caller=0),
    answers=ANSWERS,
    head_seconds=10.0,
    idle_seconds=15.0,
)
#: The API listener has commands, which may wait long for a response, and watchers. `bodies` counts
#: bodies of the largest size.
ADMISSION_LIMITS: Final = Limits(
    requests=Limit(everyone=256, caller=128),
    watchers=Limit(everyone=128, caller=64),
    bodies=Limit(everyone=8, caller=2),
    answers=ANSWERS,
    head_seconds=10.0,
    idle_seconds=120.0,
)


class Listeners(Struct, frozen=True):
    """The sockets of the listeners."""

    #: That of the API.
    admission: UnixListener
    #: That of metrics, None without metrics.
    metrics: socket.socket | None = None
    #: How metrics are encrypted, None if they are not.
    tls: ssl.SSLContext | None = None
    #: None if podresources are not served.
    pod_resources: PodResourcesListener | None = None

    @property
    def metrics_port(self) -> int:
        """The actual port of the metrics listener; 0 without one."""
        return 0 if self.metrics is None else int(self.metrics.getsockname()[1])


class Listening:
    """Answers callers at all listeners."""

    def __init__(self, controller: Controller, api: Api, listeners: Listeners) -> None:
        self._controller = controller
        self._api = api
        self._listeners = listeners
        #: The listeners of HTTP that were started.
        self._http: list[Listener] = []
        self._pod_resources: PodResourcesListener | None = None
        self._accepting = controller.state.parts.progress.part("accepting of connections")

    async def start(self) -> None:
        """Start all listeners; after an error, `stop` stops those that were started."""
        if self._listeners.metrics is not None:
            await self._start(self._make_metrics(self._listeners.metrics))
        await self._start(self._make_api())
        if self._listeners.pod_resources is not None:
            self._pod_resources = self._listeners.pod_resources
            await self._pod_resources.start()

    async def check(self) -> None:
        """Note whether connections are accepted, and listen again without a socket file.

        Raises `StartError` if the API's socket file cannot be made.
        """
        standing = [how for listener in self._http if (how := listener.standing())]
        if not standing:
            self._accepting.rest()
        elif not self._accepting.owes:
            log.error("connections not accepted", why=standing)
            self._accepting.begin()
        admission = self._listeners.admission
        if not admission.has_file():
            log.warning("socket file gone or replaced", path=str(admission.path))
            admission.open_again()
            api = self._http[-1]
            await api.listen(admission.socket)
            log.info("listening again", path=str(admission.path))

    async def stop(self) -> None:
        """Let requests under way end, and close all connections."""
        listeners: list[Listener | PodResourcesListener] = [*self._http]
        if self._pod_resources is not None:
            listeners.append(self._pod_resources)
        await asyncio.gather(*(listener.stop() for listener in listeners))
        self._api.close()

    async def _start(self, listener: Listener) -> None:
        self._http.append(listener)
        await listener.start()

    def _make_metrics(self, listening: socket.socket) -> Listener:
        controller = self._controller
        monitoring = Monitoring(
            controller.metrics, controller.state.parts.progress, controller.state, controller.queue
        )
        callers = callers_of(listening)
        server = HttpServer(monitoring.routes(), METRICS_LIMITS, callers, self._listeners.tls)
        return Listener(server, listening)

    def _make_api(self) -> Listener:
        size = self._api.max_bytes
        bodies = ADMISSION_LIMITS.bodies.times(size)
        limits = replace(ADMISSION_LIMITS, body_bytes=size, bodies=bodies)
        server = HttpServer(self._api.answer, limits, user_caller, failed=answer_without_handler)
        return Listener(server, self._listeners.admission.socket)

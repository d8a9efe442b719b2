"""What monitoring asks over TCP: `/metrics`, `/healthz`, `/readyz`. It can change nothing.

Anybody on the host may ask, as often as the connection bears, so the metrics are rendered once a
second for all who ask.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from agent.http.messages import Response
from agent.http.routes import Routes
from agent.metrics.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from agent.http.messages import Request
    from agent.metrics.exposition import Metrics
    from agent.service.clock import Clock
    from agent.service.health import Health
    from agent.service.state import AgentState

#: How long a rendering serves everybody who asks, in seconds.
RENDERED_SECONDS: Final = 1.0


class Monitoring:
    """The routes of the metrics listener."""

    def __init__(self, metrics: Metrics, health: Health, state: AgentState, clock: Clock) -> None:
        self._metrics = metrics
        self._health = health
        self._state = state
        self._clock = clock
        self._rendered = b""
        self._rendered_until = float("-inf")

    def routes(self) -> Routes:
        """Return what answers over TCP."""
        handlers = {
            "/metrics": self._get_metrics,
            "/healthz": self._get_health,
            "/readyz": self._get_readiness,
        }
        return Routes(
            (method, path, handler)
            for path, handler in handlers.items()
            for method in ("GET", "HEAD")
        )

    async def _get_metrics(self, _request: Request) -> Response:
        now = self._clock.monotonic()
        if now >= self._rendered_until:
            self._rendered = self._metrics.render()
            self._rendered_until = now + RENDERED_SECONDS
        return Response(self._rendered, content_type=CONTENT_TYPE)

    async def _get_health(self, _request: Request) -> Response:
        return _verdict(self._health.problem())

    async def _get_readiness(self, _request: Request) -> Response:
        return _verdict(None if self._state.ready else "the state is being restored")


def _verdict(problem: str | None) -> Response:
    if problem is None:
        return Response(b"ok\n")
    return Response(f"{problem}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)

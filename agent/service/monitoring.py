"""What monitoring asks over TCP: `/metrics`, `/healthz`, `/readyz`. It can change nothing."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from agent.http.messages import Response
from agent.http.routes import Routes
from agent.metrics.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from agent.http.messages import Request
    from agent.metrics.exposition import Metrics
    from agent.service.health import Health
    from agent.service.state import AgentState


class Monitoring:
    """The routes of the metrics listener."""

    def __init__(self, metrics: Metrics, health: Health, state: AgentState) -> None:
        self._metrics = metrics
        self._health = health
        self._state = state

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
        return Response(self._metrics.render(), content_type=CONTENT_TYPE)

    async def _get_health(self, _request: Request) -> Response:
        return _verdict(self._health.problem())

    async def _get_readiness(self, _request: Request) -> Response:
        return _verdict(None if self._state.ready else "the state is being restored")


def _verdict(problem: str | None) -> Response:
    if problem is None:
        return Response(b"ok\n")
    return Response(f"{problem}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)

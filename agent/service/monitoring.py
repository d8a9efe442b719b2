"""What monitoring asks over TCP: `/metrics`, `/healthz`, `/readyz`. It can change nothing."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import web

from agent.metrics.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from agent.metrics.exposition import Metrics
    from agent.service.health import Health
    from agent.service.state import AgentState


class Monitoring:
    """The routes of the metrics listener."""

    def __init__(self, metrics: Metrics, health: Health, state: AgentState) -> None:
        self._metrics = metrics
        self._health = health
        self._state = state

    def application(self) -> web.Application:
        """Return the application to serve over TCP."""
        app = web.Application(client_max_size=0)
        app.add_routes(
            [
                web.get("/metrics", self._get_metrics),
                web.get("/healthz", self._get_health),
                web.get("/readyz", self._get_readiness),
            ]
        )
        return app

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _get_health(self, _request: web.Request) -> web.Response:
        return _verdict(self._health.problem())

    async def _get_readiness(self, _request: web.Request) -> web.Response:
        return _verdict(None if self._state.ready else "the state is being restored")


def _verdict(problem: str | None) -> web.Response:
    if problem is None:
        return web.Response(text="ok\n")
    return web.Response(text=f"{problem}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

"""The routes of the metrics listener: `/metrics`, `/healthz`, `/readyz`, all read-only.

In goes the state; out come metrics as text, and `ok` or one line that says why not. Any process on
the host may send requests at any rate: one text serves all scrapes within a second, unless an
action was finished meanwhile.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from agent.server.exposition import CONTENT_TYPE
from agent.server.http import Response, Routes

if TYPE_CHECKING:
    from agent.progress import Progress
    from agent.server.exposition import Metrics
    from agent.server.http import Request
    from agent.server.queue import SerialQueue
    from agent.server.state import AgentState

#: How long a text is served again if no action was finished, in seconds.
RENDERED_SECONDS: Final = 1.0


class Monitoring:
    """The routes of the metrics listener."""

    def __init__(
        self,
        metrics: Metrics,
        progress: Progress,
        state: AgentState,
        queue: SerialQueue,
    ) -> None:
        self._metrics = metrics
        self._progress = progress
        self._state = state
        self._queue = queue
        self._text = b""
        #: The monotonic time up to which the text is served, in seconds.
        self._valid_until = float("-inf")
        #: How many actions were finished when the text was made.
        self._finished = 0

    def routes(self) -> Routes:
        """Return the routes."""
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
        now, finished = self._progress.clock.monotonic(), self._queue.finished
        if now >= self._valid_until or finished != self._finished:
            self._text = self._metrics.render(self._state.reading())
            self._valid_until = now + RENDERED_SECONDS
            self._finished = finished
        return Response(self._text, content_type=CONTENT_TYPE)

    async def _get_health(self, _request: Request) -> Response:
        return _verdict(self._progress.failure())

    async def _get_readiness(self, _request: Request) -> Response:
        return _verdict(self._state.unready())


def _verdict(failure: str | None) -> Response:
    if failure is None:
        return Response(b"ok\n")
    return Response(f"{failure}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)

"""An agent that answers with documents a test has made, and a dashboard before any agent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web
from msgspec.structs import replace

from agent import __version__
from agent.api import views
from agent.api.documents.document import encode
from agent.api.documents.pods import PodListDocument
from agent.api.documents.status import StatusDocument
from agent.api.map import map_of_allocations
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.quality import verdict
from agent.tools.dashboard.server import Dashboard, address_of, listen
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.api.documents.document import Document
    from agent.api.documents.history import EventDocument
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from sysfs.host import Host

TOKEN: Final = "a-token-of-a-test-that-is-long-enough"  # noqa: S105  # of tests alone


@asynccontextmanager
async def dashboard_of(socket: Path, token: str = TOKEN) -> AsyncIterator[str]:
    """Serve a dashboard of the agent at a socket; give the address with its token."""
    with listen(0) as listening:
        async with Dashboard(socket, token).serving(listening):
            yield address_of(listening, token)


class FakeAgent:
    """Answers `GET` with `documents`, by path; `events` are sent to all that watch.

    `asked` has method, path and body of all requests.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self.answers: dict[str, web.Response] = {}
        self.asked: list[tuple[str, str, bytes]] = []
        self._watchers: set[asyncio.Queue[EventDocument]] = set()

    @asynccontextmanager
    async def listening(self, socket: Path) -> AsyncIterator[None]:
        """Listen at a socket until the block ends."""
        application = web.Application()
        application.router.add_get("/v1/watch", self._watch)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(socket)).start()
            yield
        finally:
            await runner.cleanup()

    def allocate(self, host: Host, rules: EffectivePolicy, ledger: Ledger) -> None:
        """Answer as the agent of a host does whose pods are in a ledger, all of them running."""
        allocations = tuple(ledger.allocations.values())
        pool = host.online - exclusive_cpus(ledger)
        pods = tuple(
            views.pod_document(each, pool, judgements=verdict(rules, each)) for each in allocations
        )
        self.documents = {
            "/v1/map": map_of_allocations(host, rules, ledger),
            "/v1/pods": PodListDocument(pods=pods),
            "/v1/status": StatusDocument(
                version=__version__,
                pid=1,
                started=0.0,
                ready=True,
                policy=views.policy_document(rules.policy),
                online_cpus=str(host.online),
                nodes=str(Mask.from_ids(node.id for node in host.nodes)),
                shared_pool=str(pool),
                exclusive_cpus=str(exclusive_cpus(ledger)),
                pods=len(pods),
                containers=sum(len(each.containers) for each in allocations),
                rejected=(),
                last_reconcile=None,
                manifests=(),
                conditions=(),
            ),
        }

    def change(self, path: str, **fields: object) -> None:
        """Answer a path with other fields than before."""
        self.documents[path] = replace(self.documents[path], **fields)

    def publish(self, event: EventDocument) -> None:
        """Send an event to all that watch."""
        for watcher in self._watchers:
            watcher.put_nowait(event)

    @property
    def watchers(self) -> int:
        """How many requests follow the events."""
        return len(self._watchers)

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path_qs, await request.read()))
        found = self.answers.get(request.path)
        if found is not None:
            return web.Response(
                body=found.body, status=found.status, content_type=found.content_type
            )
        document = self.documents.get(request.path)
        if document is None:
            return web.json_response({"error": {"code": "NotFound", "message": "none"}}, status=404)
        return web.Response(body=encode(document), content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs, b""))
        events: asyncio.Queue[EventDocument] = asyncio.Queue()
        response = web.StreamResponse()
        response.content_type = "application/jsonl"
        await response.prepare(request)
        self._watchers.add(events)
        try:
            while True:
                await response.write(encode(await events.get()) + b"\n")
        finally:
            self._watchers.discard(events)

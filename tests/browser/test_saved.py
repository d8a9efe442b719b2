"""A saved page in a real browser, opened as a file."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agent.tools.dashboard.saved import saved_answers, saved_page
from tests.agent.server.support import in_loop
from tests.browser.devtools import connected
from tests.browser.test_page import SCREENSHOTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.tools.playground import EmulatedHost
    from tests.browser.devtools import Page

WHEN = "2026-11-28 08:13:19Z"


@asynccontextmanager
async def saved(
    devtools: str, demo: EmulatedHost, file: Path, *, history: bool = True
) -> AsyncIterator[Page]:
    """Save the page of the demo's agent and open the file; fails where it asks for anything."""
    client = demo.client()
    past = await asyncio.to_thread(client.history, limit=100) if history else None
    drawn, status = await asyncio.to_thread(client.map), await asyncio.to_thread(client.status)
    pods = await asyncio.to_thread(client.pods)
    page = saved_page(saved_answers(drawn, pods, status, past), WHEN)
    await asyncio.to_thread(file.write_text, page)
    async with connected(devtools) as browser, browser.open(file.as_uri()) as opened:
        await opened.until("document.querySelectorAll('#parts .cpu').length === 32")
        yield opened
        assert opened.mistakes == []
        assert {url for url in opened.asked if not url.startswith("data:")} == {file.as_uri()}


@in_loop
async def test_a_saved_page_shows_map_pods_and_history_without_a_server(
    devtools: str, demo: EmulatedHost, tmp_path: Path
) -> None:
    async with saved(devtools, demo, tmp_path / "saved.html") as page:
        await page.screenshot(SCREENSHOTS / "saved.png")
        assert await page.texts("#state") == [f"saved {WHEN}"]
        assert await page.texts("#banner") == [""]
        assert await page.texts(".pod-name") == ["default/shared-only", "default/mixed"]
        assert await page.texts("#conditions li") == ["All is as it should be."]
        events = await page.texts("#events strong")
        assert events.count("PodAdmitted") == 2
        await page.click("#pods li:last-child button")
        assert await page.count("#parts .chosen") == 4
        await page.write("#events-filter", "shared-only")
        shown = "[...document.querySelectorAll('#events li')].filter((e) => !e.hidden).length"
        assert 0 < await page.run(shown) < len(events)


@in_loop
async def test_a_saved_page_offers_nothing_that_needs_an_agent(
    devtools: str, demo: EmulatedHost, tmp_path: Path
) -> None:
    async with saved(devtools, demo, tmp_path / "saved.html", history=False) as page:
        for card in ("trial", "events"):
            assert await page.run(f"document.querySelector('#{card}-card')") is None
        assert await page.run("document.querySelector('#map-title').checkVisibility()")

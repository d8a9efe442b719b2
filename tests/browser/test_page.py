"""The page in a real browser: what is on it, with the pods of `make demo` and their real agent."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.api.documents.admissions import ResizeRequest
from agent.api.documents.moves import MoveRequest
from agent.tools.map.marks import marks_of
from agent.tools.playground import EmulatedHost
from tests.agent.server.support import in_loop
from tests.browser.devtools import PageError, connected
from tests.browser.fake_agent import TOKEN, dashboard_of
from tests.demo.__main__ import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.browser.devtools import Page

SCREENSHOTS: Final = Path(__file__).resolve().parents[2] / ".cache" / "screenshots"
HEAD: Final = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n"
LIVE: Final = "document.querySelector('#state').dataset.state === 'live'"
#: The contrast of all visible texts against what is behind, by WCAG 2.2 (1.4.3); those that are
#: too small, with their texts.
CONTRAST: Final = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
  };
  const light = (part) => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) =>
    .2126 * light(red) + .7152 * light(green) + .0722 * light(blue);
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = rgba(getComputedStyle(each).backgroundColor);
      if (colour[3] > .99) return colour;
    }
    return [1, 1, 1, 1];
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const low = [];
  let seen = 0;
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest("noscript, .hidden, [data-size=small] .cpu")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [luminance(rgba(style.color)), luminance(behind(node))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    seen += 1;
    if (ratio < 4.5) low.push(`${walk.currentNode.data.trim()} (${node.className}): ${ratio}`);
  }
  return {seen, low};
})()"""


@asynccontextmanager
async def shown(
    devtools: str,
    host: EmulatedHost,
    width: int = 1440,
    height: int = 1000,
    *,
    dark: bool = False,
    moving: bool = False,
) -> AsyncIterator[Page]:
    """Open the page of the demo's agent; fails where the page has errors of any kind."""
    async with (
        dashboard_of(host.folder / "agent.sock") as address,
        connected(devtools) as browser,
        browser.open(address, width, height, dark=dark, moving=moving) as page,
    ):
        await page.until(LIVE)
        yield page
        assert page.mistakes == []
        assert {url for url in page.asked if not url.startswith(address.split("/#")[0])} == set()


def cpu(number: int) -> str:
    return f"#parts [data-cpu='{number}']"


async def label(page: Page, number: int) -> str:
    text = await page.run(f'document.querySelector("{cpu(number)}").ariaLabel')
    assert isinstance(text, str)
    return text


async def focused(page: Page) -> int:
    """Return the CPU that has the focus."""
    return int(await page.run("document.activeElement.dataset.cpu ?? -1"))


@in_loop
async def test_map_pods_and_figures_are_seen_and_named_for_assistive_technology(
    devtools: str, demo: EmulatedHost
) -> None:
    async with shown(devtools, demo) as page:
        document = await asyncio.to_thread(demo.client().map)
        await page.screenshot(SCREENSHOTS / "demo-light.png")
        assert await page.texts("#parts .part-title > span:first-child") == [
            "Package 0 · Node 0 · L3 0",
            "Package 1 · Node 1 · L3 8",
        ]
        assert await page.count("#parts [role=option]") == 32
        assert (await label(page, 0)).startswith("CPU 0: reserved; package 0, node 0")
        assert (await label(page, 1)).startswith("CPU 1: shared pool of pod default/shared-only;")
        assert (await label(page, 3)).startswith(
            "CPU 3: exclusive to container database of pod default/mixed;"
        )
        assert (await label(page, 8)).startswith("CPU 8: in the node's shared pool; package 1")
        marks = marks_of(document)
        signs = await page.run(
            "[...document.querySelectorAll('#parts .cpu')]"
            ".map((each) => [Number(each.dataset.cpu), each.innerText])"
        )
        expected = {each.id: marks.of(each).text.replace(".", "·") for each in document.cpus}
        assert dict(signs) == expected
        (memory, *_) = await page.texts(".node-details .amount")
        assert memory == "6.0 GiB free of 16 GiB"
        assert await page.texts(".pod-name") == ["default/shared-only", "default/mixed"]
        assert (await page.texts(".pod-has"))[1] == "CPUs 3-4, 19-20 · 4 GiB on node 0"
        assert await page.texts(".policies dd") == ["static", "Static", "restricted", "pod"]
        assert (await page.texts(".figure .value"))[:2] == ["8 of 30", "8 GiB of 27.9 GiB"]
        assert await page.texts("#conditions li") == ["All is as it should be."]
        assert await page.texts("#pods-count") == ["2"]
        tree = await page.accessible()
        for landmark in (
            ("banner", ""),
            ("main", "Map"),
            ("region", "Conditions"),
            ("region", "Pods"),
            ("region", "Try a pod"),
            ("region", "Events"),
            ("listbox", "CPUs of Package 0, Node 0, L3 0"),
            ("searchbox", "Filter pods by name"),
            ("textbox", "Manifest, YAML or JSON"),
        ):
            assert landmark in tree
        options = [name for role, name in tree if role == "option"]
        assert len(options) == 32
        assert all(name.startswith("CPU ") for name in options)
        unnamed = {role for role, name in tree if not name} & {"button", "textbox", "image", "link"}
        assert unnamed == set()


@in_loop
async def test_selecting_a_pod_marks_its_cpus_and_shows_its_containers(
    devtools: str, demo: EmulatedHost
) -> None:
    chosen = "[...document.querySelectorAll('#parts .chosen')].map((e) => +e.dataset.cpu)"
    async with shown(devtools, demo) as page:
        await page.click("#pods li:nth-child(2) .pod")
        assert sorted(await page.run(chosen)) == [3, 4, 19, 20]
        unknown = "no cgroup of a container has cpu.stat, cpu.pressure"
        await page.until(
            f"document.querySelector('#pods .remarks')?.innerText.includes('{unknown}')"
        )
        await page.screenshot(SCREENSHOTS / "demo-selected.png")
        names = await page.texts("#pods .details tbody th")
        assert names == ["database", "metrics", "logs"]
        opacity = 'getComputedStyle(document.querySelector("{}")).opacity'
        assert float(await page.run(opacity.format(cpu(3)))) == 1
        assert float(await page.run(opacity.format(cpu(9)))) < 0.5
        await page.press("Escape")
        assert await page.run(chosen) == []
        await page.click(cpu(1))
        assert sorted(await page.run(chosen)) == [1, 2, 17, 18]
        await page.click(cpu(1))
        assert await page.run(chosen) == []


@in_loop
async def test_the_map_is_used_with_keys_alone(devtools: str, demo: EmulatedHost) -> None:
    async with shown(devtools, demo) as page:
        for _ in range(9):
            await page.press("Tab")
            if await focused(page) >= 0:
                break
        assert await focused(page) == 0
        visited = []
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "PageDown", "End", "Home"):
            await page.press(key)
            visited.append(await focused(page))
        assert visited == [1, 17, 16, 0, 8, 31, 0]
        for _ in range(3):
            await page.press("ArrowRight")
        (readout,) = await page.texts("#readout")
        assert readout == await label(page, 3)
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.run(outline) == "solid"
        await page.press("Enter")
        assert await page.count("#parts [aria-selected=true]") == 4
        await page.screenshot(SCREENSHOTS / "demo-keys.png")
        await page.press("Escape")
        assert await page.count("#parts [aria-selected=true]") == 0
        stops = "document.querySelectorAll('#parts [tabindex=\"0\"]').length"
        assert await page.run(stops) == 1


@in_loop
async def test_arrows_go_on_in_the_next_row_of_a_narrow_page(
    devtools: str, demo: EmulatedHost
) -> None:
    async with shown(devtools, demo, 360, 780) as page:
        columns = await page.run(
            "getComputedStyle(document.querySelector('.cores'))"
            ".gridTemplateColumns.split(' ').length"
        )
        assert 1 < columns < 8
        await page.run(f'document.querySelector("{cpu(17)}").focus()')
        await page.press("ArrowDown")
        assert await focused(page) == 1 + columns
        await page.press("ArrowUp")
        assert await focused(page) == 17


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@in_loop
async def test_texts_have_contrast_in_light_and_in_dark(
    devtools: str, demo: EmulatedHost, *, dark: bool
) -> None:
    async with shown(devtools, demo, dark=dark) as page:
        await page.click("#pods li:nth-child(2) .pod")
        await page.write("#manifest", (EXAMPLES / "empty-pool.yaml").read_text())
        await page.click("#try")
        await page.until("document.querySelector('#outcome h3')")
        await page.press("Escape")
        found = await page.run(CONTRAST)
        assert found["seen"] > 100
        assert found["low"] == []


@in_loop
async def test_dark_mode_follows_the_user(devtools: str, demo: EmulatedHost) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    async with shown(devtools, demo, dark=True) as page:
        dark = await page.run(background)
        await page.screenshot(SCREENSHOTS / "demo-dark.png")
        await page.prefer(dark=False)
        light = await page.run(background)
        brightness = [sum(json.loads(f"[{each[4:-1]}]")) for each in (dark, light)]
        assert brightness[0] < 100
        assert brightness[1] > 600


@in_loop
async def test_nothing_moves_for_users_who_ask_for_that(devtools: str, demo: EmulatedHost) -> None:
    moving = "document.getAnimations().length"
    async with shown(devtools, demo) as page:
        assert await page.run(moving) == 0
        await page.prefer(moving=True)
        assert await page.until(moving) > 0


@pytest.mark.parametrize("width", [360, 768, 1280, 1440, 3840])
@in_loop
async def test_no_width_needs_sideways_scrolling(
    devtools: str, demo: EmulatedHost, width: int
) -> None:
    async with shown(devtools, demo, width, 900) as page:
        await page.click("#pods li:nth-child(2) .pod")
        await page.screenshot(SCREENSHOTS / f"demo-{width}.png")
        assert await page.run("document.documentElement.scrollWidth") == width
        narrow = "[...document.querySelectorAll('#parts .cpu')].filter((e) => e.clientWidth < 24)"
        assert await page.run(f"{narrow}.length") == 0


@in_loop
async def test_a_trial_shows_where_the_pod_would_be(devtools: str, demo: EmulatedHost) -> None:
    async with shown(devtools, demo) as page:
        await page.write("#manifest", (EXAMPLES / "guaranteed.yaml").read_text())
        await page.press("Enter", control=True)
        await page.until("document.querySelector('#outcome h3')")
        await page.screenshot(SCREENSHOTS / "trial-admitted.png")
        (title,) = await page.texts("#outcome h3")
        assert title == "default/guaranteed would be admitted"
        ringed = "[...document.querySelectorAll('#parts .preview')].map((e) => +e.dataset.cpu)"
        placed = await page.run(ringed)
        answer = await asyncio.to_thread(
            demo.client().admit, (EXAMPLES / "guaranteed.yaml").read_bytes(), dry_run=True
        )
        assert answer.pod is not None
        assert len(placed) == 3
        assert answer.pod.exclusive_cpus.replace(",", ", ") in (await page.texts("#outcome p"))[0]
        assert await page.texts("#outcome tbody th") == ["worker", "feeder"]
        await page.click("#examples button")
        assert await page.run(ringed) == []
        assert {pod.name for pod in await asyncio.to_thread(demo.client().pods)} == {
            "shared-only",
            "mixed",
        }


@in_loop
async def test_a_trial_that_fails_says_why_and_no_text_becomes_part_of_the_page(
    devtools: str, demo: EmulatedHost
) -> None:
    text = "<img src=x onerror=document.title='broken'>"
    async with shown(devtools, demo) as page:
        manifest = (EXAMPLES / "guaranteed.yaml").read_text().replace('cpu: "2"', 'cpu: "24"')
        await page.write("#manifest", manifest)
        await page.click("#try")
        await page.until("document.querySelector('#outcome h3')")
        await page.screenshot(SCREENSHOTS / "trial-rejected.png")
        answer = await asyncio.to_thread(
            demo.client().admit, manifest.encode(), dry_run=True, advice=True
        )
        assert answer.rejection is not None
        assert answer.rejection.advice
        assert await page.texts("#outcome h3") == ["default/guaranteed would be rejected"]
        assert await page.texts("#outcome .reason") == [answer.rejection.reason]
        shown_advice = " ".join(await page.texts("#outcome .advice li"))
        for each in answer.rejection.advice:
            assert each.text in shown_advice
        assert await page.count("#parts .preview") == 0
        await page.write("#manifest", f"{HEAD}spec: {{containers: [{{}}]}}\n")
        await page.click("#try")
        await page.until("document.querySelector('#outcome h3').innerText === 'No decision'")
        assert "spec.containers[0] name is missing" in await page.texts("#outcome .mistakes li")
        await page.write("#manifest", f"kind: {json.dumps(text)}\napiVersion: v1\n")
        await page.click("#try")
        await page.until("document.querySelector('#outcome').innerText.includes('<img')")
        assert await page.count("img[src=x]") == 0
        with pytest.raises(PageError, match=r"TrustedHTML"):
            await page.run("void (document.querySelector('#readout').innerHTML = '<b>x</b>')")
        page.mistakes.clear()
        assert (await page.run("document.title")).endswith("Numawarden")


@in_loop
async def test_an_admission_is_shown_as_it_happens_and_filtered(
    devtools: str, demo: EmulatedHost
) -> None:
    visible = "[...document.querySelectorAll('#events li')].filter((e) => e.checkVisibility())"
    texts = f"{visible}.map((e) => e.textContent).join()"
    async with shown(devtools, demo) as page:
        assert (await label(page, 5)).startswith("CPU 5: in the node's shared pool")
        await page.until(f"{visible}.length > 1")
        await page.write("#events-filter", "default/MIXED")
        assert "default/mixed" in await page.run(texts)
        assert "default/shared-only" not in await page.run(texts)
        manifest = (EXAMPLES / "guaranteed.yaml").read_bytes()
        admitted = await asyncio.to_thread(demo.client().admit, manifest)
        try:
            await page.until("document.querySelectorAll('.pod-name').length === 3")
            assert (await label(page, 5)).startswith("CPU 5: exclusive to container worker")
            await page.until("document.querySelector('#events').textContent.includes('guaranteed')")
            assert "guaranteed" not in await page.run(texts)
            await page.write("#events-filter", "PodAdmitted")
            latest = await page.run(f"{visible}[0].textContent")
            assert "PodAdmitted" in latest
            assert "default/guaranteed" in latest
            await page.screenshot(SCREENSHOTS / "demo-admitted.png")
        finally:
            await asyncio.to_thread(demo.client().remove, admitted.uid)
        await page.until("document.querySelectorAll('.pod-name').length === 2")
        assert (await label(page, 5)).startswith("CPU 5: in the node's shared pool")


@in_loop
async def test_a_resize_is_shown_as_it_happens(devtools: str, demo: EmulatedHost) -> None:
    has = "document.querySelector('.details td').textContent"
    manifest = (EXAMPLES / "guaranteed.yaml").read_bytes()
    async with shown(devtools, demo) as page:
        admitted = await asyncio.to_thread(demo.client().admit, manifest)
        assert admitted.pod is not None
        cpus = [admitted.pod.containers[0].cpus]
        try:
            await page.until("document.querySelectorAll('.pod-name').length === 3")
            await page.run("[...document.querySelectorAll('.pod')].at(-1).click()")
            for asked, event, tone in (
                ("4", "PodResized", "good"),
                ("40", "PodResizeRejected", "bad"),
                ("2", "PodResized", "good"),
            ):
                request = ResizeRequest(container="worker", cpus=asked)
                answer = await asyncio.to_thread(demo.client().resize, admitted.uid, request)
                cpus += [] if answer.pod is None else [answer.pod.containers[0].cpus]
                latest = "document.querySelector('#events li')"
                await page.until(f"{latest}.querySelector('strong').textContent === '{event}'")
                assert await page.run(f"{latest}.className") == tone
                text = f"{cpus[-1].replace(',', ', ')} exclusive"
                await page.until(f"{has} === '{text}'")
        finally:
            await asyncio.to_thread(demo.client().remove, admitted.uid)
    assert cpus[0] == cpus[2] != cpus[1]


_MOVABLE: Final = b"""\
apiVersion: v1
kind: Pod
metadata: {name: movable, annotations: {move.numawarden.dev/allow: cpus}}
spec:
  containers:
  - {name: own, image: x, resources: {requests: &two {cpu: 2, memory: 1Gi}, limits: *two}}
"""
_POOLED: Final = b"""\
apiVersion: v1
kind: Pod
metadata: {name: pooled, annotations: {cpu.numawarden.dev/pool: near}}
spec: {containers: [{name: rest, image: x}]}
"""


@in_loop
async def test_a_pool_and_a_move_are_shown(
    devtools: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    host = EmulatedHost(tmp_path_factory.mktemp("pools"))
    config = host.configure("pod")
    config.write_text(f"{config.read_text()}  pools: [{{name: near, cpus: 4-7}}]\n")
    with host.started(config):
        client = host.client()
        client.admit(_POOLED)
        admitted = client.admit(_MOVABLE)
        assert admitted.pod is not None
        cpus = admitted.pod.exclusive_cpus
        async with shown(devtools, host) as page:
            text = "document.querySelector('#pods').textContent"
            await page.until(f"{text}.includes('pool near')")
            request = MoveRequest(cpus=cpus, new_cpus="5,21", nodes="0", new_nodes="0")
            moved = await asyncio.to_thread(client.move, admitted.uid, request)
            assert moved.admitted
            await page.until(f"{text}.includes('CPUs 5, 21')")
            await page.until("document.querySelector('#events').textContent.includes('PodMoved')")
            assert (await label(page, 5)).startswith("CPU 5: exclusive to container own")


@in_loop
async def test_the_token_leaves_the_address_and_outlives_a_reload(
    devtools: str, demo: EmulatedHost
) -> None:
    async with shown(devtools, demo) as page:
        assert await page.run("location.hash") == ""
        assert TOKEN not in await page.run("location.href")
        await page.run("globalThis.before = true")
        await page.send("Page.reload")
        await page.until(f"globalThis.before === undefined && {LIVE}")
        assert await page.run("document.cookie") == ""


@pytest.mark.parametrize("fragment", ["", "#wrong-token-of-more-than-twenty-letters"])
@in_loop
async def test_without_the_token_the_page_says_what_to_do_and_asks_no_more(
    devtools: str, demo: EmulatedHost, fragment: str
) -> None:
    async with (
        dashboard_of(demo.folder / "agent.sock") as address,
        connected(devtools) as browser,
        browser.open(address.split("#")[0] + fragment) as page,
    ):
        await page.until("!document.querySelector('#banner').hidden")
        assert "numawarden dashboard" in (await page.texts("#banner"))[0]
        assert await page.texts("#state") == ["no access"]
        assert await page.texts("#parts .cpu") == []
        assert not any(url.endswith("/picture") for url in page.asked)

"""The page for hosts of other sizes and shapes, whose agent is a fake one."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web
from msgspec.structs import replace

from agent.api.documents.history import EventDocument
from agent.api.documents.maintenance import CordonDocument
from agent.api.documents.map import MapDocument
from agent.api.documents.pods import JudgementDocument, PodListDocument
from agent.api.documents.rejections import FailedPodDocument
from agent.api.documents.slowness import SlowCause, Slowness
from agent.api.documents.status import ConditionDocument
from agent.api.documents.verification import IntrusionDocument
from agent.api.map import map_of_allocations
from agent.config.model import Config
from agent.managers.admission import admit, remove
from agent.managers.machine import Machine
from agent.managers.policy import Cordon
from agent.server.configured import situate
from sysfs.described import regular_host, with_memory_only_nodes, with_offline
from sysfs.host import CoreKind, MemoryClass
from sysfs.mask import Mask
from tests.agent.server.support import in_loop
from tests.bench import hosts
from tests.browser.devtools import connected
from tests.browser.fake_agent import FakeAgent, dashboard_of
from tests.browser.test_page import LIVE, SCREENSHOTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.managers.ledger import Ledger
    from sysfs.host import Host
    from tests.browser.devtools import Page

LARGE = "64n4096c"
#: The most that an update of the largest host should take; reported, not asserted.
TARGET_MS = 100
EVENT = EventDocument(type="PodAdmitted", time=1_700_000_000.0, operation="x", pod="default/p")
#: How many elements of a selector are visible.
VISIBLE = "[...document.querySelectorAll('{}')].filter((e) => e.checkVisibility()).length"
CHANGED = "performance.getEntriesByName('update').filter((each) => each.detail.changed > 0)"


@asynccontextmanager
async def shown(
    devtools: str, directory: Path, agent: FakeAgent, width: int = 1440, *, dark: bool = False
) -> AsyncIterator[Page]:
    """Open the page of a fake agent; fails where the page has errors."""
    socket = directory / "agent.sock"
    async with (
        agent.listening(socket),
        dashboard_of(socket) as address,
        connected(devtools) as browser,
        browser.open(address, width, 1000, dark=dark) as page,
    ):
        await page.until(f"{LIVE} && {CHANGED}.length > 0")
        yield page
        assert page.mistakes == []


def ledger_of(host: Host, *asked: str) -> Ledger:
    """Return a ledger with a pod for each text of resources."""
    rules = hosts.rules_of(Machine.of(host))
    ledger = rules.empty_ledger()
    for number, resources in enumerate(asked):
        pod = replace(hosts.pod_of(f"uid-{number}", resources), name=f"pod-{number}")
        ledger = admit(rules, ledger, pod).ledger
    return ledger


def agent_of(host: Host, *asked: str) -> FakeAgent:
    agent = FakeAgent()
    agent.allocate(host, hosts.rules_of(Machine.of(host)), ledger_of(host, *asked))
    return agent


async def colours_of(page: Page, cpus: list[int]) -> list[str]:
    """Return the colours that are behind CPUs."""
    script = f"""{json.dumps(cpus)}.map((cpu) =>
        getComputedStyle(document.querySelector(`#parts [data-cpu='${{cpu}}']`)).backgroundColor)"""
    found: list[str] = await page.run(script)
    return found


@in_loop
async def test_4096_cpus_are_drawn_and_follow_an_admission(devtools: str, tmp_path: Path) -> None:
    """The time of an update is reported in `.cache/screenshots/updates.json`; it never fails."""
    host, rules = hosts.host(LARGE), hosts.rules(LARGE)
    half = hosts.ledger_on(LARGE, "half")
    agent = FakeAgent()
    agent.allocate(host, rules, half)
    async with shown(devtools, tmp_path, agent) as page:
        assert await page.count("#parts .cpu") == 4096
        assert await page.count("#parts .part.node") == 64
        added = admit(rules, half, hosts.pod_of("extra", "cpu=4 memory=1Gi")).ledger
        new = list(added.allocations["extra"].exclusive_cpus)
        before = await colours_of(page, new)
        ledgers: list[Ledger] = [
            added,
            half,
            added,
            half,
            hosts.ledger_on(LARGE, "fragmented"),
            half,
        ]
        for count, ledger in enumerate(ledgers, start=2):
            agent.allocate(host, rules, ledger)
            agent.publish(EVENT)
            await page.until(f"{CHANGED}.length >= {count}")
            after = await colours_of(page, new)
            chosen = [
                ledger is added and colour != old for old, colour in zip(before, after, strict=True)
            ]
            assert all(chosen) == (ledger is added)
        await page.screenshot(SCREENSHOTS / "cpus-4096.png", whole=False)
        measured = await page.run(f"{CHANGED}.map((each) => [each.detail.changed, each.duration])")
        parsed = await page.run("performance.getEntriesByName('parse').map((e) => e.duration)")
        await page.resize(3840, 2160)
        await page.screenshot(SCREENSHOTS / "cpus-4096-wide.png", whole=False)
    figures = [
        {"cpusChanged": changed, "milliseconds": round(duration, 1), "target": TARGET_MS}
        for changed, duration in measured
    ]
    report = json.dumps({"updates": figures, "longestParse": round(max(parsed), 1)}, indent=1)
    await asyncio.to_thread((SCREENSHOTS / "updates.json").write_text, report)
    print(report)
    assert [each["cpusChanged"] for each in figures[:4]] == [4096, 4, 4, 4]


@in_loop
async def test_each_pod_differs_in_colour_or_pattern_where_letters_do_not_fit(
    devtools: str, tmp_path: Path
) -> None:
    agent = agent_of(regular_host(1, 1, 600), *["cpu=2 memory=64Mi"] * 20)
    looks = """[...document.querySelectorAll('#parts .use-exclusive')].map((each) => {
        const style = getComputedStyle(each);
        return style.backgroundColor + style.backgroundImage;
    })"""
    async with shown(devtools, tmp_path, agent) as page:
        assert await page.run("document.querySelector('#parts').dataset.size") == "small"
        assert len(set(await page.run(looks))) == 20


@in_loop
async def test_a_small_host_has_its_name_and_large_cpus_with_their_numbers(
    devtools: str, tmp_path: Path
) -> None:
    agent = agent_of(regular_host(1, 1, 4), "cpu=2 memory=1Gi")
    agent.change("/v1/map", hostname="node-7.lab", time=1_700_000_000.0)
    async with shown(devtools, tmp_path, agent) as page:
        await page.screenshot(SCREENSHOTS / "cpus-8.png")
        assert await page.count("#parts .cpu") == 8
        number = "getComputedStyle(document.querySelectorAll('#parts .cpu')[2], '::before').content"
        assert await page.run(number) == '"1"'
        assert await page.texts("#conditions li") == ["All is as it should be."]
        assert await page.run("document.title") == "node-7.lab · Numawarden"
        assert await page.texts("#host") == ["node-7.lab"]
        assert (await page.texts("#as-of"))[0].startswith("as of 2023-11-1")
        heights = []
        for size in ("small", "medium", "large"):
            await page.click(f"#sizes [value={size}]")
            heights.append(await page.run("document.querySelector('#parts .cpu').clientHeight"))
            pressed = await page.run("document.querySelector('#sizes [aria-pressed=true]').value")
            assert pressed == size
        assert heights == sorted(set(heights))


@in_loop
async def test_devices_stand_at_their_node_with_their_pod(devtools: str, tmp_path: Path) -> None:
    agent = agent_of(
        regular_host(2, 2, 8),
        "cpu=2 memory=1Gi example.com/gpu=1",
        "cpu=4 memory=1Gi example.com/gpu=2",
    )
    async with shown(devtools, tmp_path, agent, dark=True) as page:
        await page.screenshot(SCREENSHOTS / "devices-dark.png")
        taken = await page.texts(".device.taken button")
        assert [text.split()[0] for text in taken] == ["A", "B", "B"]
        assert (await page.texts(".figure .name"))[2:4] == ["example.com/gpu", "example.com/nic"]
        assert (await page.texts(".figure .value"))[2] == "3 of 8"
        await page.click(".device.taken:last-child button")
        assert await page.texts("#pods .chosen .pod-name") == ["default/pod-1"]


@in_loop
async def test_kinds_offline_isolated_and_memory_only_are_shown(
    devtools: str, tmp_path: Path
) -> None:
    host = with_memory_only_nodes(regular_host(1, 2, 6), [32 << 30])
    [*with_cpus, memory_only] = host.nodes
    host = replace(host, nodes=(*with_cpus, replace(memory_only, backing=MemoryClass.CXL)))
    kinds = dict.fromkeys((4, 5, 16, 17), CoreKind.EFFICIENCY)
    cpus = tuple(
        replace(cpu, kind=kinds.get(cpu.id, CoreKind.PERFORMANCE), isolated=cpu.id == 3)
        for cpu in host.cpus
    )
    host = with_offline(replace(host, cpus=cpus), Mask.of(11))
    agent, rules = FakeAgent(), situate(Config(), host).rules
    agent.allocate(host, rules, rules.empty_ledger())
    async with shown(devtools, tmp_path, agent) as page:
        await page.screenshot(SCREENSHOTS / "irregular.png")
        titles = await page.texts("#parts .part-title > span:first-child")
        assert titles == [
            "Package 0",
            "Node 0 · L3 0",
            "Node 1 · L3 6",
            "Offline on node 1",
            "Node 2",
        ]
        assert "4 performance cores" in await page.texts("p.kind")
        assert "2 efficiency cores" in await page.texts("p.kind")
        signs = await page.run(
            "[3, 11].map((cpu) => document.querySelector(`#parts [data-cpu='${cpu}']`).innerText)"
        )
        assert signs == ["i", "\N{MULTIPLICATION SIGN}"]
        (facts,) = await page.texts(".part.bare .facts")
        assert facts.startswith("memory class cxl; nearest: node 0, 1")


@in_loop
async def test_a_core_of_two_pods_stands_out_and_is_named(devtools: str, tmp_path: Path) -> None:
    agent = agent_of(regular_host(1, 1, 4), "cpu=1 memory=1Gi", "cpu=1 memory=1Gi")
    async with shown(devtools, tmp_path, agent) as page:
        mixed = "[...document.querySelectorAll('#parts .mixed')].map((e) => +e.dataset.cpu)"
        assert await page.run(mixed) == [1, 5]
        label = await page.run("document.querySelector('#parts .mixed').ariaLabel")
        assert "its core has several users" in label
        assert "SharedCore" in (await page.texts("#conditions li"))[0]


@in_loop
async def test_a_pod_keeps_its_letter_while_others_end(devtools: str, tmp_path: Path) -> None:
    host = regular_host(1, 1, 8)
    agent = agent_of(host, *["cpu=2 memory=1Gi"] * 2)
    async with shown(devtools, tmp_path, agent) as page:
        assert await page.texts("#pods .swatch") == ["A", "B"]
        rules, ledger = hosts.rules_of(Machine.of(host)), ledger_of(host, *["cpu=2 memory=1Gi"] * 2)
        agent.allocate(host, rules, remove(rules, ledger, "uid-0"))
        agent.publish(EVENT)
        await page.until("document.querySelectorAll('#pods .swatch').length === 1")
        assert await page.texts("#pods .swatch") == ["B"]


@in_loop
async def test_conditions_have_remedy_and_pod(devtools: str, tmp_path: Path) -> None:
    agent = agent_of(regular_host(1), "cpu=2 memory=1Gi")
    condition = ConditionDocument(
        type="CheckpointSaved",
        reason="DiskFull",
        message="the checkpoint cannot be saved",
        remedy="free some space",
        since=1_700_000_000.0,
        uid="uid-0",
    )
    agent.change("/v1/status", conditions=(condition,))
    async with shown(devtools, tmp_path, agent) as page:
        (said,) = await page.texts("#conditions li")
        for text in ("CheckpointSaved", "DiskFull", "cannot be saved", "free some", "2023-11-1"):
            assert text in said
        await page.click("#conditions button")
        assert await page.count("#parts .chosen") == 2


@in_loop
async def test_containers_that_were_not_started_are_called_so(
    devtools: str, tmp_path: Path
) -> None:
    agent = agent_of(regular_host(1), "cpu=2 memory=1Gi", "cpu=2 memory=1Gi")
    picture = agent.documents["/v1/map"]
    assert isinstance(picture, MapDocument)
    first, second = picture.pods
    absent = replace(second, not_found=("c0",), absence="not started")
    agent.change("/v1/map", pods=(first, absent))
    async with shown(devtools, tmp_path, agent) as page:
        assert await page.texts("#pods .badge.warn") == ["1 not started"]


@in_loop
async def test_pods_that_are_not_admitted_are_listed_with_the_reason(
    devtools: str, tmp_path: Path
) -> None:
    agent = agent_of(regular_host(1), "cpu=2 memory=1Gi")
    failed = tuple(
        FailedPodDocument(
            uid=f"u-{number}",
            name=f"big-{number}",
            namespace="shop",
            source="api",
            reason="OutOfcpu",
            message="64 of cpu asked, <b>14</b> free",
            time=1_700_000_000.0,
        )
        for number in range(7)
    )
    agent.change("/v1/status", failed=failed)
    async with shown(devtools, tmp_path, agent) as page:
        listed = await page.texts("#failed li")
        names = [said.split()[0] for said in listed]
        assert names == [f"shop/big-{number}" for number in (6, 5, 4, 3, 2)]
        assert all(text in listed[0] for text in ("OutOfcpu", "<b>14</b> free", "2023-11-1"))


@in_loop
async def test_many_conditions_stand_behind_their_type_and_are_filtered(
    devtools: str, tmp_path: Path
) -> None:
    host = regular_host(1)
    agent = agent_of(host, "cpu=2 memory=1Gi")
    conditions = tuple(
        ConditionDocument(type=kind, reason="X", message=f"{kind} of pod-{number}")
        for kind, count in (("ContainersFound", 48), ("Enforced", 3), ("CheckpointSaved", 1))
        for number in range(count)
    )
    agent.change("/v1/status", conditions=conditions)
    async with shown(devtools, tmp_path, agent) as page:
        await page.screenshot(SCREENSHOTS / "conditions.png")
        assert await page.texts("#conditions-count") == ["52"]
        assert await page.texts("#conditions summary") == ["ContainersFound 48", "Enforced 3"]
        assert await page.run(VISIBLE.format("#conditions li")) == 3
        await page.write("#conditions-filter", "of pod-47")
        assert len(await page.texts("#conditions > li")) == 1
        assert "ContainersFound of pod-47" in (await page.texts("#conditions > li"))[0]


@in_loop
async def test_a_cordon_is_on_the_map_in_the_head_the_legend_and_the_conditions(
    devtools: str, tmp_path: Path
) -> None:
    host = regular_host(2, 1, 4)
    agent = agent_of(host, "cpu=2 memory=1Gi")
    rules = hosts.rules_of(Machine.of(host))
    policy = replace(rules.policy, cordon=Cordon(cpus=Mask.of(1), nodes=Mask.of(1)))
    drawn = agent.documents["/v1/map"]
    cordoned = map_of_allocations(host, replace(rules, policy=policy), rules.empty_ledger())
    assert isinstance(drawn, MapDocument)
    cpus = tuple(
        replace(cpu, cordoned=other.cordoned, use=cpu.use if cpu.owners else other.use)
        for cpu, other in zip(drawn.cpus, cordoned.cpus, strict=True)
    )
    agent.change("/v1/map", cpus=cpus, nodes=cordoned.nodes)
    cordons = (CordonDocument(cpus="", nodes="1", reason="DIMM 12 ECC", since=1_700_000_000.0),)
    agent.change("/v1/status", cordons=cordons)
    async with shown(devtools, tmp_path, agent) as page:
        await page.screenshot(SCREENSHOTS / "cordoned.png")
        signs = (
            "[...document.querySelectorAll('#parts .cordoned')]"
            ".map((e) => [+e.dataset.cpu, e.innerText])"
        )
        free = [4, 12, 5, 13, 6, 14, 7, 15]
        assert await page.run(signs) == [[1, "A"], *([cpu, "/"] for cpu in free)]
        label = await page.run("document.querySelector('#parts [data-cpu=\"1\"]').ariaLabel")
        assert "cordoned: nothing new is allocated from it" in label
        assert await page.count("#parts .part.cordoned-node") == 1
        assert any("cordoned" in text for text in await page.texts("#legend li"))
        assert "Cordoned" in await page.texts(".figure .name")
        (said,) = await page.texts("#conditions li")
        assert "node 1: DIMM 12 ECC" in said


@in_loop
async def test_equal_packages_share_a_line_that_opens_them(devtools: str, tmp_path: Path) -> None:
    agent = agent_of(regular_host(16, 2, 16), "cpu=4 memory=1Gi")
    visible = VISIBLE.format("#parts .part.package")
    async with shown(devtools, tmp_path, agent) as page:
        assert await page.run(visible) == 1
        (line,) = await page.texts("#parts summary")
        assert line.startswith("15 packages 1-15")
        assert "each 2 nodes" in line
        await page.click("#parts summary")
        assert await page.run(visible) == 16


@in_loop
async def test_events_follow_the_agents_history_the_latest_first(
    devtools: str, tmp_path: Path
) -> None:
    entries = [
        {
            "type": "PodRemoved",
            "time": 1_700_000_001.0,
            "uid": "u",
            "pod": "default/old",
            "requester": {"source": "api", "uid": 0, "pid": 7, "command": "numawarden"},
        },
        {"type": "PodAdmitted", "time": 1_700_000_000.0, "uid": "u", "pod": "default/old"},
    ]
    agent = agent_of(regular_host(1), "cpu=2 memory=1Gi")
    agent.answers["/v1/history"] = web.json_response({"entries": entries, "more": True})
    async with shown(devtools, tmp_path, agent) as page:
        await page.until("document.querySelectorAll('#events li').length === 2")
        agent.publish(EVENT)
        await page.until("document.querySelectorAll('#events li').length === 3")
        assert await page.texts("#events .message") == ["by uid 0, numawarden[7]"]
        assert await page.texts("#events strong") == ["PodAdmitted", "PodRemoved", "PodAdmitted"]
        assert await page.texts("#events-since") == ["the latest, and as they happen"]


@in_loop
async def test_a_filter_finds_pods_that_are_not_listed(devtools: str, tmp_path: Path) -> None:
    agent = agent_of(regular_host(1, 1, 100), *["cpu=2 memory=64Mi"] * 70)
    async with shown(devtools, tmp_path, agent) as page:
        assert await page.texts("#pods-count") == ["70"]
        assert await page.texts("#pods-more") == ["and 10 pods more: filter by name"]
        await page.write("#filter", "pod-69")
        assert await page.texts("#pods .pod-name") == ["default/pod-69"]


@in_loop
async def test_the_page_says_when_the_agent_ends_and_follows_the_next(
    devtools: str, tmp_path: Path
) -> None:
    agent = agent_of(regular_host(1), "cpu=2 memory=1Gi")
    socket = tmp_path / "agent.sock"
    async with (
        dashboard_of(socket) as address,
        connected(devtools) as browser,
        browser.open(address) as page,
    ):
        async with agent.listening(socket):
            await page.until(LIVE)
        await page.until("document.querySelector('#state').dataset.state === 'lost'")
        assert (await page.texts("#banner"))[0] != ""
        assert len(await page.texts("#parts .cpu")) == 8
        async with agent.listening(socket):
            await page.until(f"{LIVE} && document.querySelector('#banner').hidden")


@in_loop
async def test_a_pod_on_whose_cpus_others_may_run_is_not_exclusive_in_list_and_details(
    devtools: str, tmp_path: Path
) -> None:
    agent = agent_of(regular_host(2, 1, 4), *["cpu=2 memory=1Gi"] * 2)
    listed = agent.documents["/v1/pods"]
    assert isinstance(listed, PodListDocument)
    victim, other = listed.pods
    says = "CPUs 1 may be used by /kubepods/pod9 of pod shop/web: widened"
    intruding = IntrusionDocument(
        cgroup="/kubepods/pod9", cpus="1", user="shop/web", cause="unknown", message=says
    )
    lost = JudgementDocument(container="c", quality="exclusive", met=False, why=says)
    verdict = (lost, *(each for each in victim.verdict if each.quality != "exclusive"))
    victim = replace(victim, intruding=(intruding,), verdict=verdict)
    agent.change("/v1/pods", pods=(victim, other))
    async with shown(devtools, tmp_path, agent) as page:
        bad, good = await page.texts("#pods .badges")
        assert "not exclusive" in bad
        assert bad.count("exclusive") == 1
        assert "not exclusive" not in good
        await page.click("#pods .pod")
        assert await page.texts("#pods .remarks .bad") == [f"not exclusive: {says}"]
        assert not any("exclusive" in each for each in await page.texts("#pods .remarks .warn"))
        await page.screenshot(SCREENSHOTS / "not-exclusive.png")


@in_loop
async def test_of_a_selected_pod_it_is_asked_and_said_what_makes_it_slow(
    devtools: str, tmp_path: Path
) -> None:
    agent = agent_of(regular_host(2, 1, 4), "cpu=2 memory=1Gi")
    listed = agent.documents["/v1/pods"]
    assert isinstance(listed, PodListDocument)
    (pod,) = listed.pods
    causes = (
        SlowCause("throttled", "c", "<b>in 1 of 9 periods"),
        SlowCause("heat", "", "CPUs 1"),
        SlowCause("not_aligned", "c", "a verdict says it"),
    )
    path = f"/v1/pods/{pod.uid}"
    agent.documents[path] = replace(pod, slow=Slowness(causes, ("cpu.pressure",)))
    async with shown(devtools, tmp_path, agent) as page:
        assert not any(asked[1] == path for asked in agent.asked)
        await page.click("#pods .pod")
        await page.until("document.querySelector('#pods .remarks')?.innerText.includes('slow')")
        said = [each for each in await page.texts("#pods .remarks li") if "aligned" not in each]
        assert said == [
            "slow: c throttled: <b>in 1 of 9 periods",
            "slow: heat: CPUs 1",
            "no cgroup of a container has cpu.pressure",
        ]
        del agent.documents[path]
        agent.publish(EVENT)
        await page.until("!document.querySelector('#pods .remarks')?.innerText.includes('slow')")

"""A saved page has all that it needs, and nothing in it is taken for HTML or a script."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections import Counter
from typing import TYPE_CHECKING, Final

from agent.api.documents.document import encode
from agent.api.documents.history import HistoryDocument, HistoryEntry, RequesterDocument
from agent.api.documents.map import MapDocument
from agent.api.documents.pods import PodListDocument
from agent.api.documents.status import StatusDocument
from agent.managers.admission import admit
from agent.managers.machine import Machine
from agent.tools.dashboard.saved import saved_answers, saved_page
from agent.tools.dashboard.server import page_files
from sysfs.described import regular_host
from tests.bench.hosts import guaranteed_pod, rules_of
from tests.browser.fake_agent import FakeAgent

if TYPE_CHECKING:
    from agent.tools.dashboard.saved import SavedAnswers

WHEN: Final = "2026-11-28 08:13:19Z"
#: A process may have any name.
NAME: Final = "</script><script>alert(1)</script><!--\\"
HISTORY: Final = HistoryDocument(
    entries=(
        HistoryEntry("PodRemoved", 1.0, requester=RequesterDocument("api", 0, 7, command=NAME)),
    )
)


def answers(history: HistoryDocument | None = HISTORY) -> SavedAnswers:
    """Return the answers of an agent with one pod."""
    host, agent = regular_host(1), FakeAgent()
    rules = rules_of(Machine.of(host))
    agent.allocate(host, rules, admit(rules, rules.empty_ledger(), guaranteed_pod("u")).ledger)
    drawn, pods, status = (agent.documents[f"/v1/{name}"] for name in ("map", "pods", "status"))
    assert isinstance(drawn, MapDocument)
    assert isinstance(pods, PodListDocument)
    assert isinstance(status, StatusDocument)
    return saved_answers(drawn, pods.pods, status, history)


def scripts(page: str) -> tuple[str, str]:
    """Return the answers and the script of a page, which has no other script."""
    data, script = re.findall(r"<script type=[^>]*>(.*?)</script>", page, re.DOTALL)
    assert page.count("<script") == 2
    return data, script


def test_a_page_has_the_answers_as_they_are_whatever_names_are_in_them() -> None:
    asked = answers()
    data, _ = scripts(saved_page(asked, WHEN))
    assert "<" not in data
    found = json.loads(data)
    assert found == json.loads(encode(asked))
    assert found["history"]["entries"][0]["requester"]["command"] == NAME
    assert [pod["uid"] for pod in found["pods"]] == ["u"]
    assert len(found["picture"]["map"]["cpus"]) == 8
    assert json.loads(scripts(saved_page(answers(None), WHEN))[0])["history"] is None


def test_a_page_says_at_its_top_when_it_was_saved_and_not_that_it_connects() -> None:
    page = saved_page(answers(), WHEN)
    head = page.partition("<header")[2].partition("</header>")[0]
    assert f'data-state="saved">saved {WHEN}<' in head
    assert "connecting" not in page


def test_a_page_loads_nothing_from_elsewhere() -> None:
    page = saved_page(answers(), WHEN)
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {address.partition(",")[0] for address in loaded} == {
        "#map",
        "data:image/svg+xml;base64",
    }
    assert re.search(r"@import|\burl\(|^import |^export ", page, re.MULTILINE) is None


def test_the_policy_allows_the_script_and_the_styles_of_the_page_alone() -> None:
    page = saved_page(answers(), WHEN)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    texts = [scripts(page)[1], *styles]
    hashes = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    assert sorted(re.findall(r"'sha256-([^']*)'", policy[1])) == sorted(hashes)
    assert len(styles) == 2
    assert policy[1].startswith("default-src 'none'; ")
    assert "connect-src" not in policy[1]


def test_the_script_has_every_module_once_each_after_those_that_it_needs() -> None:
    _, script = scripts(saved_page(answers(), WHEN))
    places: dict[str, int] = {}
    for name, file in page_files().items():
        if name.endswith(".js"):
            first = file.body.decode().partition("\n")[0]
            assert script.count(f"{first}\n") == 1, name
            places[name] = script.index(first)
    for name, place in places.items():
        for other in re.findall(r'from "\.(/\w+\.js)"', page_files()[name].body.decode()):
            assert places[other] < place


def test_no_two_modules_declare_the_same_name() -> None:
    """All stand in one script, where a second declaration is a syntax error."""
    _, script = scripts(saved_page(answers(), WHEN))
    declared = Counter(
        re.findall(r"^(?:async )?(?:const|let|class|function) (\w+)", script, re.MULTILINE)
    )
    assert len(declared) > 40
    assert [name for name, times in declared.items() if times > 1] == []

"""docs/rollout.md and docs/scopes.md name only what exists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click
import pytest
import yaml

from agent.cli.main import numawarden
from agent.config.model import Config
from agent.managers.decision import Reason, Rule
from agent.managers.metrics import ASSIGNMENT_TYPES
from agent.managers.registry import MANAGERS
from agent.server import metrics as names
from tests.docs.consoles import shown_in
from tests.docs.hosts import ROOT
from tests.docs.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS: Final = {name: page.file.read_text() for name, page in PAGES.items()}
ROLLOUT: Final = TEXTS["rollout"]
#: Names in backticks of the prose, in which a name may go on in the next line.
QUOTED: Final = {
    name: re.findall(
        r"`([^`]+)`", re.sub(r"\s+", " ", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    )
    for name, text in TEXTS.items()
}
METRIC: Final = re.compile(r"(numawarden|kubelet|resource_manager)_(\w+)(\{.*\})?")


def metrics(page: str) -> list[tuple[str, dict[str, str]]]:
    """Return every metric that is named, with the labels it is named with."""
    found = [METRIC.fullmatch(text) for text in QUOTED[page]]
    return [
        (f"{match[1]}_{match[2]}", dict(re.findall(r'(\w+)="([^"]*)"', match[3] or "")))
        for match in found
        if match is not None
    ]


def test_every_metric_and_label_exists() -> None:
    known = {name: metric for metric in names.all_of(MANAGERS) for name in metric.names}
    assert len(metrics("rollout")) > 10
    for name, labels in metrics("rollout"):
        assert name in known
        assert labels.keys() <= set(known[name].labels)
        for label, value in labels.items():
            values = dict(zip(known[name].labels, known[name].domain, strict=False))
            assert value in values.get(label, (value,)), name


def test_assignment_types_exist() -> None:
    assert {"pod_exclusive", "pod_shared"} <= set(QUOTED["rollout"]) & set(ASSIGNMENT_TYPES)


def command_lines(page: str) -> Iterator[list[str]]:
    """Yield the words of every numawarden command of a page, run or only named."""
    lines = [shown.command for shown in shown_in(TEXTS[page])]
    lines += [line for line in TEXTS[page].splitlines() if line.startswith("    ")]
    lines += [text for text in QUOTED[page] if text.startswith("numawarden ")]
    for line in lines:
        for part in re.findall(r"\bnumawarden ([a-z][^;|>]*)", line):
            yield part.split()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_exists(page: str) -> None:
    asked = list(command_lines(page))
    assert asked
    for words in asked:
        command: click.Command | None = numawarden
        while isinstance(command, click.Group) and words:
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, words
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_rules_reasons_alerts_events_and_lines_of_the_log_exist() -> None:
    sources = "\n".join(file.read_text() for file in sorted((ROOT / "agent").rglob("*.py")))
    (group,) = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    flat = re.sub(r"\s+", " ", ROLLOUT)
    for named, known in (
        (r"\blog `([^`]+)`", re.findall(r'log\.\w+\(\s*"([^"]+)"', sources)),
        (r"\bevent `([^`]+)`", re.findall(r'\.publish\(\s*"(\w+)"', sources)),
        (r"`(\w+Error)`", list(map(str, Reason))),
        (r"\b[Aa]lert `([^`]+)`", [rule["alert"] for rule in group["rules"]]),
    ):
        found = set(re.findall(named, flat))
        assert found
        assert found <= set(known)


def test_settings_and_rules_of_other_switches_exist() -> None:
    rows = ROLLOUT.partition("| setting | pods that run | found by rule |\n")[2].splitlines()[1:]
    cells = [line.strip("|").split("|") for line in rows[: rows.index("")]]
    rules = {rule for row in cells for rule in re.findall(r"`([^`]+)`", row[2])}
    known = set(map(str, Rule))
    assert rules - known == {"single-numa-node"}
    settings = [name for row in cells for name in re.findall(r"`([a-z]+[A-Z][^`]*)`", row[0])]
    assert len(settings) >= len(cells) - 1
    assert {name.partition(".")[0] for name in settings} <= {key.name for key in Config.keys}


@pytest.mark.parametrize("page", PAGES)
def test_every_section_that_is_linked_exists(page: str) -> None:
    for file, section in re.findall(r"\]\(([\w-]+\.md)#([\w-]+)\)", TEXTS[page]):
        text = (ROOT / "docs" / file).read_text()
        headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
        assert section in slugs

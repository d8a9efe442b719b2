"""docs/rollout.md names only what exists."""

from __future__ import annotations

import re
from typing import Final

import yaml

from agent.config.model import Config
from agent.managers.decision import Reason
from agent.managers.metrics import ASSIGNMENT_TYPES
from agent.managers.registry import MANAGERS
from agent.managers.violations import Rule
from agent.server import metrics as names
from tests.docs.hosts import ROOT

ROLLOUT: Final = (ROOT / "docs/rollout.md").read_text()
FLAT: Final = re.sub(r"\s+", " ", ROLLOUT)
#: Names in backticks of the prose, in which a name may go on in the next line.
QUOTED: Final = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", FLAT))
METRIC: Final = re.compile(r"((?:numawarden|kubelet|resource_manager)_\w+)(\{.*\})?")


def test_every_metric_label_and_assignment_type_exists() -> None:
    known = {name: metric for metric in names.all_of(MANAGERS) for name in metric.names}
    found = [match for match in map(METRIC.fullmatch, QUOTED) if match is not None]
    assert len(found) > 10
    for match in found:
        metric = known[match[1]]
        values = dict(zip(metric.labels, metric.domain, strict=False))
        for label, value in re.findall(r'(\w+)="([^"]*)"', match[2] or ""):
            assert label in metric.labels
            assert value in values.get(label, (value,)), match[1]
    assert {"pod_exclusive", "pod_shared"} <= set(QUOTED) & set(ASSIGNMENT_TYPES)


def test_rules_reasons_alerts_events_and_lines_of_the_log_exist() -> None:
    sources = "\n".join(file.read_text() for file in sorted((ROOT / "agent").rglob("*.py")))
    (group,) = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    for named, known in (
        (r"\blog `([^`]+)`", re.findall(r'log\.\w+\(\s*"([^"]+)"', sources)),
        (r"\bevent `([^`]+)`", re.findall(r'\.publish\(\s*"(\w+)"', sources)),
        (r"`(\w+Error)`", list(map(str, Reason))),
        (r"\b[Aa]lert `([^`]+)`", [rule["alert"] for rule in group["rules"]]),
    ):
        found = set(re.findall(named, FLAT))
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

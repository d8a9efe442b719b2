"""Every alert fires by its fault, none on a healthy agent: the rules on what agents exported."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from structlog.testing import capture_logs

from agent.reconcile.tasks import Task
from agent.server.conditions import ConditionType
from sysfs.mask import Mask
from tests.agent.server.support import in_loop, make_world, running
from tests.prometheus import ROOT, program
from tests.prometheus.faults import FAULTS, POD, healthy, the_agent_is_stopped, with_pod
from tests.prometheus.tape import ALERTS, Tape, TapeClock, firing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.server.support import World

RULES: Final = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
NOTHING: Final[frozenset[str]] = frozenset()


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """Draw no tracebacks: a fault of minutes has dozens, which take longer than all else."""
    with capture_logs():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


@pytest.fixture
def tape(world: World) -> Tape:
    program("promtool")
    world.clock = TapeClock()
    return Tape(world.clock)


@pytest.mark.parametrize("name", FAULTS)
@in_loop
async def test_a_fault_raises_its_alerts_and_no_others(
    world: World, tape: Tape, tmp_path: Path, name: str
) -> None:
    await FAULTS[name].provoke(world, tape)
    assert firing(tape, tmp_path, {60: NOTHING, tape.seconds: FAULTS[name].alerts}) == ""


@in_loop
async def test_nothing_fires_on_a_healthy_agent_at_any_minute(
    world: World, tape: Tape, tmp_path: Path
) -> None:
    await healthy(world, tape)
    assert tape.seconds >= 3600 - 60
    assert firing(tape, tmp_path, dict.fromkeys(range(0, tape.seconds + 1, 60), NOTHING)) == ""


@in_loop
async def test_a_prometheus_without_agents_is_noticed(
    world: World, tape: Tape, tmp_path: Path
) -> None:
    other = Tape(tape.clock, job="another")
    await the_agent_is_stopped(world, other)
    other.down(3)
    expected = {240: NOTHING, other.seconds: frozenset({"NumawardenAbsent"})}
    assert firing(other, tmp_path, expected) == ""


@in_loop
async def test_alerts_end_with_what_raised_them(world: World, tape: Tape, tmp_path: Path) -> None:
    async with running(world) as agent:
        await with_pod(agent, tape)
        world.tasks.append(Task(4711, "busy", Mask.of(1), "system.slice/busy.service"))
        await tape.run(agent, 14, lambda: world.kernel.write(POD, "cpuset.cpus", "0-15"))
        undone = tape.seconds
        world.tasks.clear()
        await tape.run(agent, 20)
    raised = FAULTS["another_process_undoes_every_repair"].alerts
    raised |= FAULTS["a_process_is_placed_on_the_cpus_of_a_pod"].alerts
    assert firing(tape, tmp_path, {undone: raised, tape.seconds: NOTHING}) == ""


def test_every_alert_is_raised_by_a_fault() -> None:
    raised = {alert for fault in FAULTS.values() for alert in fault.alerts} | {"NumawardenAbsent"}
    assert raised == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("kind", ConditionType)
def test_every_type_of_condition_raises_an_alert(kind: ConditionType) -> None:
    chosen = [
        (operator, re.compile(pattern))
        for rule in RULES
        for operator, pattern in re.findall(
            r'numawarden_conditions\{type(=~?|!~)"([^"]+)"\}', rule["expr"]
        )
    ]
    own = {
        ConditionType.REPAIRS_LAST,
        ConditionType.ALLOCATION_VALID,
        ConditionType.ENTRY_ADMITTED,
        ConditionType.CONTAINERS_FOUND,
    }
    assert chosen
    assert kind in own or any(
        bool(pattern.fullmatch(kind)) is operator.startswith("=") for operator, pattern in chosen
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_says_how_bad_it_is_what_it_means_and_where_to_read_on(
    rule: dict[str, dict[str, str]],
) -> None:
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert anchor in slugs


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("test rules", "alerts.test.yaml"),
        ("check rules", "alerts.yaml"),
        ("check config --syntax-only", "scrape.yaml"),
    ],
)
def test_promtool_has_nothing_against_what_is_delivered(command: str, name: str) -> None:
    promtool = [program("promtool"), *command.split(), str(ALERTS.with_name(name))]
    done = subprocess.run(promtool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_of_the_rules_have_every_rule_fire() -> None:
    examples = yaml.safe_load(ALERTS.with_name("alerts.test.yaml").read_text())["tests"]
    checks = [check for example in examples for check in example["alert_rule_test"]]
    fire = {check["alertname"] for check in checks if check.get("exp_alerts")}
    assert fire == {rule["alert"] for rule in RULES}


def test_what_is_advised_puts_an_address_in_front_of_every_runbook(tmp_path: Path) -> None:
    (advice,) = re.findall(
        r"^#   (sed -i .*) alerts\.yaml$", ALERTS.read_text(), flags=re.MULTILINE
    )
    copy = tmp_path / "alerts.yaml"
    copy.write_text(ALERTS.read_text())
    subprocess.run([*shlex.split(advice), str(copy)], check=True)
    changed = yaml.safe_load(copy.read_text())["groups"][0]["rules"]
    assert [rule["annotations"]["runbook_url"] for rule in changed] == [
        f"https://docs.example.com/numawarden/{rule['annotations']['runbook_url']}"
        for rule in RULES
    ]

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.guest import scenarios
from tests.guest.__main__ import main
from tests.guest.inside.pods import CONTAINER_SCOPE, POD_SCOPE
from tests.guest.scenarios import SCENARIOS
from tests.guest.topologies import TOPOLOGIES

HERE = Path(scenarios.__file__).parent


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_every_scenario_has_a_machine_and_a_module_that_runs(
    scenario: scenarios.Scenario,
) -> None:
    assert scenario.topology in TOPOLOGIES
    source = HERE / f"{scenario.module.rpartition('.')[2]}.py"
    tree = ast.parse(source.read_text())
    assert "run" in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_an_unknown_scenario_is_reported_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nonsense"]) == 2
    said = capsys.readouterr().err
    assert "nonsense" in said
    assert "survival" in said


def test_what_is_made_for_one_suite_is_run_on_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--suite", "testing", "installation", "isolation", "daemonset"]) == 2
    said = capsys.readouterr().err
    assert "installation, daemonset: made for trixie alone; leave --suite out" in said


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCENARIOS)


def test_placements_follow_from_the_requests() -> None:
    for example in (*POD_SCOPE, *CONTAINER_SCOPE):
        for cpus, placement in zip(example.cpus, example.placements or (), strict=False):
            allocated = getattr(placement, "cpus", 0)
            left = example.budget - sum(example.cpus)
            assert allocated in ((cpus,) if cpus else (0, left))

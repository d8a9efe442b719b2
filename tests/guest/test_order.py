"""What waits for what when guests are run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.guest import __main__ as program
from tests.guest import job, packages, runner, wheel
from tests.guest.cache import Cache
from tests.guest.errors import GuestError
from tests.guest.image import Image
from tests.guest.scenarios import SCENARIOS

if TYPE_CHECKING:
    from tests.guest.scenarios import Scenario


def test_only_the_scenario_with_packages_waits_until_they_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, others_are_ready = packages.Packages(Path("old"), Path("new")), threading.Event()

    def build(*_: object) -> packages.Packages:
        assert others_are_ready.wait(60)
        return built

    monkeypatch.setattr(job, "sources", lambda *_: tmp_path)
    monkeypatch.setattr(wheel, "provide", lambda *_: None)
    monkeypatch.setattr(wheel, "environment", lambda *_: tmp_path / "agent.img")
    monkeypatch.setattr(packages, "provide", build)
    chosen = [SCENARIOS["installation"], SCENARIOS["metrics"]]
    with ThreadPoolExecutor(1) as beside:
        made = program._contents(Cache(tmp_path), Image(tmp_path), chosen, beside)
        others_are_ready.set()
    assert made["metrics"] == job.Contents(tmp_path, tmp_path / "agent.img")
    waits = made["installation"].packages
    assert waits is not None
    assert waits() == built


def test_after_a_guest_that_could_not_be_run_no_other_is_booted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []

    def fail(_setup: object, scenario: Scenario, *_: object) -> runner.Verdict:
        begun.append(scenario.name)
        raise GuestError("no package", "build it")

    monkeypatch.setattr(runner, "run", fail)
    chosen = [SCENARIOS["installation"], SCENARIOS["metrics"], SCENARIOS["manifests"]]
    contents = {scenario.name: job.Contents(Path()) for scenario in chosen}
    setup: Any = None
    with pytest.raises(GuestError, match="no package"):
        program._run_all(setup, chosen, contents, 1)
    assert begun == ["installation"]

"""What `make guest-kubelet` is given, and what it says where something is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guest.__main__ import main
from tests.guest.errors import GuestError
from tests.guest.kubernetes import programs
from tests.guest.scenarios import SCENARIOS, Kubelet, When

if TYPE_CHECKING:
    from pathlib import Path

REQUIRED = (programs.KUBELET, programs.API_SERVER, programs.SCHEDULER)


def directory_of(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_a_directory_without_a_program_is_named_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match="kube-apiserver, kube-scheduler") as raised:
        programs.find(directory_of(tmp_path, programs.KUBELET))
    assert "kubernetes/server/bin" in str(raised.value)


def test_a_scenario_that_needs_a_real_kubelet_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["moving-a-node"]) == 2
    assert "--kubernetes DIR" in capsys.readouterr().err


def test_a_scenario_without_a_kubelet_is_not_run_beside_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--kubernetes", str(directory_of(tmp_path, *REQUIRED)), "metrics"]) == 2
    assert "metrics has no kubelet" in capsys.readouterr().err


def test_what_runs_unnamed_needs_no_real_kubelet() -> None:
    of_real = [each for each in SCENARIOS.values() if each.kubelet is Kubelet.REAL]
    assert {each.when for each in of_real} == {When.NEVER}

"""What `make guest-kubelet` is given, and what it says where something is missing."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.guest import emulator, job
from tests.guest.__main__ import main
from tests.guest.emulator import Disks, Emulator
from tests.guest.errors import GuestError
from tests.guest.image import Image
from tests.guest.kubernetes import programs
from tests.guest.scenarios import SCENARIOS, Kubelet, When
from tests.guest.topologies import TOPOLOGIES

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


def test_debians_containerd_runs_unless_the_directory_has_all_of_another(tmp_path: Path) -> None:
    runtime, shim = programs.RUNTIME
    found = programs.find(directory_of(tmp_path, *REQUIRED, runtime))
    assert not found.own_runtime
    assert runtime not in {each.name for each in found.of_guest()}
    found = programs.find(directory_of(tmp_path, shim))
    assert {runtime, shim} <= {each.name for each in found.of_guest()}


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


def test_only_a_guest_with_a_real_kubelet_has_a_network(tmp_path: Path) -> None:
    disks = Disks(tmp_path / "job", tmp_path / "out", tmp_path / "serial")
    real = Disks(disks.job, disks.out, disks.serial, kubernetes=tmp_path / "kubernetes.img")

    def command(given: Disks) -> str:
        machine = TOPOLOGIES["uneven-nodes"]
        return " ".join(emulator.command(Emulator(("q",)), Image(tmp_path), machine, given, None))

    assert "netdev" not in command(disks)
    assert "-netdev user" in command(real)


def test_a_job_carries_what_reaches_the_control_plane(tmp_path: Path) -> None:
    file, sources = tmp_path / "job.tar", tmp_path / "sources"
    sources.mkdir()
    job.pack(file, "cluster", "n", job.Contents(sources), {"server": "https://10.0.2.2:1"})
    with tarfile.open(file) as tar:
        found = tar.extractfile("control-plane/server")
        assert found is not None
        assert found.read() == b"https://10.0.2.2:1"

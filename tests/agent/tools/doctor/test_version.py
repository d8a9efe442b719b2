"""The rules beside a kubelet are those of its own version, as its program says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.cluster.checks import check_kubelet
from agent.tools.doctor.facts import HostFile
from agent.tools.doctor.gathering import gather
from agent.tools.doctor.version import reported_version
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.versions import ReportedVersion

KUBELET_UNIT = "/usr/lib/systemd/system/kubelet.service"
RULES = "kubernetesVersion"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def reported(host: FakeHost, seconds: float = 60.0) -> ReportedVersion:
    return reported_version(
        gather(host.config(), host.root, with_runtime=False), host.root, seconds
    )


@pytest.mark.parametrize(
    ("says", "version", "known"),
    [
        ("v1.36.2", "v1.36", True),
        ("v1.37.0-rc.1", "v1.37", True),
        ("v1.38.1+k3s1", "v1.38", True),
        ("v1.39.0", "v1.38", False),
        ("v1.100.0", "v1.38", False),
        ("v1.35.9", "v1.36", False),
    ],
)
def test_the_nearest_version_that_is_known_governs(
    host: FakeHost, says: str, version: str, *, known: bool
) -> None:
    host.program(f"Kubernetes {says}")
    found = check_kubelet(host.config(), host.root)
    assert found.governing is not None
    assert found.governing.version == version
    assert found.governing.source == f"/usr/bin/kubelet --version says {says}"
    line = (
        f"{version}, the nearest of which the rules are known; /usr/bin/kubelet --version says "
        f"{says}; look for a newer numawarden, or write `kubernetesVersion: {version}`"
    )
    assert found.conditions() == ({} if known else {RULES: line})


def closed(host: FakeHost) -> None:
    host.at(hosts.PROGRAM).chmod(0o777)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda host: host.program("kubelet unversioned"), "prints no version of Kubernetes"),
        (lambda host: host.program("Kubernetes next"), "prints no version of Kubernetes"),
        (lambda host: host.program(), "prints no version of Kubernetes"),
        (lambda host: host.remove(hosts.PROGRAM), ": no such file or directory"),
        (lambda host: host.at(hosts.PROGRAM).chmod(0o644), ": permission denied"),
        (closed, "can be written by others (mode 0777)"),
        (lambda host: host.program(first="exec sleep 1000"), "does not end within 0.2 s"),
        (lambda host: host.program(first="exec yes"), "does not end within 0.2 s"),
    ],
)
def test_a_kubelet_that_does_not_say_its_version_is_a_condition(
    host: FakeHost, change: Callable[[FakeHost], None], problem: str
) -> None:
    change(host)
    seconds = 0.2 if "0.2" in problem else 60.0
    found = reported(host, seconds)
    assert found.version == ""
    assert found.problem.startswith("/usr/bin/kubelet --version")
    assert problem in found.problem


def test_one_that_was_not_started_yet_is_the_program_of_its_unit(host: FakeHost) -> None:
    host.stop_kubelet()
    assert reported(host).problem == "no process or unit here names the program of a kubelet"
    found = check_kubelet(host.config(), host.root)
    assert found.governing is None
    assert found.conditions()[RULES].startswith("not set; the kubelet's version is not known: no ")
    host.write(KUBELET_UNIT, "[Service]\nExecStart=/opt/old\n")
    host.write(f"{KUBELET_UNIT}.d/10-kubeadm.conf", f"ExecStart=\nExecStart=-{hosts.PROGRAM} $A\n")
    assert reported(host).version == "v1.37.2"


def test_a_version_that_is_configured_is_not_asked_for(host: FakeHost) -> None:
    host.agent += "kubernetesVersion: v1.36\n"
    host.program("Kubernetes v1.38.0")
    found = check_kubelet(host.config(), host.root)
    assert (found.governing, found.conditions()) == (None, {})


def test_a_path_with_a_nul_byte_is_a_problem_of_the_unit(host: FakeHost) -> None:
    facts = gather(host.config(), host.root, with_runtime=False)
    unit = HostFile(KUBELET_UNIT, "ExecStart=/usr/bin/kube\0let\n")
    kubelet = replace(facts.kubelet, process=None)
    facts = replace(facts, kubelet=kubelet, kubelet_unit=(unit,))
    assert "null byte" in reported_version(facts, host.root).problem

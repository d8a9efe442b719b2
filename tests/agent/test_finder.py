from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent import runtimes as module
from agent.runtimes import RuntimeFiles, RuntimeName
from cgroupfs.state import WriterRecord
from sysfs.mask import Mask
from tests.agent.bundles import CRIO, ID, OTHER_ID, TASKS, bundle, cri, crio, runc_state, write
from tests.agent.reconcile.pods import OTHER, mixed, path_of
from tests.fakes.kernel import quota

if TYPE_CHECKING:
    from pathlib import Path

    from agent.managers.allocation import PodAllocation

POD = path_of(mixed())
SCOPE = f"{POD}/cri-containerd-{ID}.scope"


@dataclass
class Host:
    """A root with a finder, and what it reported."""

    root: Path
    reported: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.finder = RuntimeFiles(self.root, self.reported.append)

    def asked(self, cgroup: str = SCOPE, pod: PodAllocation | None = None) -> RuntimeName | None:
        return self.finder.container_of(pod or mixed(), cgroup)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("directory", [f"cri-containerd-{ID}.scope", ID])
def test_a_container_of_containerd_is_known_with_both_drivers(host: Host, directory: str) -> None:
    bundle(host.root, cri("db"))
    assert host.asked(f"{POD}/{directory}") == RuntimeName("db")
    assert host.reported == []


@pytest.mark.parametrize("directory", [f"crio-{ID}.scope", f"crio-{ID}", ID])
def test_a_container_of_crio_is_known_with_both_drivers(host: Host, directory: str) -> None:
    bundle(host.root, crio("backup"), place=CRIO, inside="userdata")
    assert host.asked(f"{POD}/{directory}") == RuntimeName("backup")
    assert host.reported == []


@pytest.mark.parametrize("state", ["run/k3s/containerd", "run/k0s/containerd"])
def test_distributions_of_their_own_containerd_are_known(host: Host, state: str) -> None:
    bundle(host.root, cri("db"), place=f"{state}/io.containerd.runtime.v2.task/k8s.io")
    assert host.asked() == RuntimeName("db")


def test_a_sandbox_is_identified_as_a_sandbox(host: Host) -> None:
    bundle(host.root, cri(None))
    bundle(host.root, crio(None), place=CRIO, inside="userdata", id_=OTHER_ID)
    assert host.asked() == RuntimeName(None)
    assert host.asked(f"{POD}/crio-{OTHER_ID}.scope") == RuntimeName(None)


def test_a_claim_about_another_pod_is_ignored_and_reported_once(host: Host) -> None:
    bundle(host.root, cri("db", uid=OTHER))
    assert [host.asked(), host.asked()] == [None, None]
    (line,) = host.reported
    assert f"/{SCOPE} is in pod {mixed().uid}" in line
    assert f"of pod 'default/shop' (uid '{OTHER}')" in line


def test_without_a_uid_the_full_name_has_to_match(host: Host) -> None:
    bundle(host.root, cri("db", uid="", name="shop"))
    assert host.asked(pod=replace(mixed(), name="shop")) == RuntimeName("db")
    assert host.asked(pod=replace(mixed(), name="bank")) is None
    bundle(host.root, {k: v for k, v in cri("db").items() if "sandbox" not in k}, id_=OTHER_ID)
    assert host.asked(f"{POD}/{OTHER_ID}", replace(mixed(), name="", namespace="")) is None
    assert "of pod without a name" in host.reported[-1]


@pytest.mark.parametrize(
    "directory",
    ["db.scope", "db", f"libpod-{ID}.scope", f"docker-{ID}.scope", "cri-containerd-db.scope",
     f"cri-containerd-{ID.upper()}.scope", "cri-containerd-...scope", f"{ID}.slice", f"{ID}0"],
)  # fmt: skip
def test_names_without_a_known_runtimes_id_are_not_looked_for(host: Host, directory: str) -> None:
    bundle(host.root, cri("db"))
    assert host.asked(f"{POD}/{directory}") is None
    assert host.finder.remembered(f"{POD}/{directory}") is None
    assert host.reported == []


def test_a_missing_bundle_is_reported_once_with_where_it_was_looked_for(host: Host) -> None:
    bundle(host.root, cri("db"), id_=OTHER_ID)
    assert [host.asked(), host.asked()] == [None, None]
    (line,) = host.reported
    assert ID in line
    assert str(host.root / TASKS) in line


def test_that_no_runtimes_directory_is_in_reach_is_reported_once_for_all(host: Host) -> None:
    for directory in (ID, OTHER_ID):
        assert host.asked(f"{POD}/cri-containerd-{directory}.scope") is None
    (line,) = host.reported
    assert f"as containerd gives it, but {host.root / TASKS} does not exist; mount it" in line


def test_a_bundle_that_comes_later_is_found(host: Host) -> None:
    assert host.asked() is None
    bundle(host.root, cri("db"))
    assert host.asked() == RuntimeName("db")


@pytest.mark.parametrize("content", ["{", "{}"], ids=["damaged", "says nothing"])
def test_a_bundle_of_no_use_is_reported_once_and_ignored(host: Host, content: str) -> None:
    file = bundle(host.root, cri("db"))
    file.write_text(content)
    assert [host.asked(), host.asked()] == [None, None]
    (line,) = host.reported
    assert line.startswith(f"{file}: ")
    assert line.endswith("; bind the container with 'numawarden bind'")


def test_a_bundle_that_vanishes_is_missing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle(host.root, cri("db"))

    def vanish(*_: object) -> int:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "open", vanish)
    assert host.asked() is None
    assert "no bundle of container" in host.reported[0]


def test_a_bundle_that_stays_is_read_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    file = bundle(host.root, cri("db"))
    assert host.asked() == RuntimeName("db")
    monkeypatch.setattr(module, "read_claim", None)
    assert host.asked() == RuntimeName("db")
    monkeypatch.undo()
    file.unlink()
    assert host.asked() is None
    bundle(host.root, cri("backup"))
    assert host.asked() == RuntimeName("backup")
    write(file, {"annotations": cri("metrics")})
    assert host.asked() == RuntimeName("metrics")


def test_no_more_is_remembered_than_a_bound(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    names = [f"{number:064x}" for number in range(5)]
    for name in names:
        bundle(host.root, cri("db"), id_=name)
    assert {host.asked(f"{POD}/{name}") for name in names} == {RuntimeName("db")}
    assert list(host.finder._known) == names[-2:]


def test_what_runc_set_last_is_remembered(host: Host) -> None:
    bundle(host.root, cri("db"), {"cpus": "0-1", "quota": 140_000, "period": 100_000})
    runc_state(
        host.root,
        {"cpuset_cpus": "4-5", "cpuset_mems": "1", "cpu_quota": 50_000, "cpu_period": 100_000},
    )
    record = WriterRecord(Mask.parse("4-5"), Mask.of(1), quota(50_000))
    assert host.finder.remembered(SCOPE) == record
    assert host.finder.remembered(f"{POD}/{ID}") == record


def test_runcs_state_under_crio_is_looked_for_where_crio_keeps_it(host: Host) -> None:
    runc_state(host.root, {"cpuset_cpus": "4-5"}, states="run/runc")
    assert host.finder.remembered(f"{POD}/crio-{ID}.scope") == WriterRecord(Mask.parse("4-5"))


def test_of_another_runtime_what_the_container_was_made_with_is_remembered(host: Host) -> None:
    bundle(host.root, cri("db"), {"shares": 512, "cpus": "2-3", "mems": "0", "quota": 140_000})
    record = WriterRecord(Mask.parse("2-3"), Mask.of(0), quota(140_000))
    assert host.finder.remembered(SCOPE) == record


def test_nothing_is_remembered_of_a_container_without_files(host: Host) -> None:
    assert host.finder.remembered(SCOPE) is None
    assert host.reported == []


@pytest.mark.parametrize(
    "cgroups",
    [
        *({"cpuset_cpus": "x"}, {"cpuset_mems": "3-1"}),
        *({"cpu_quota": 1}, {"cpu_quota": "1"}, {"cpu_period": 1}),
    ],
)
def test_a_damaged_state_is_reported_once(host: Host, cgroups: dict[str, object]) -> None:
    file = runc_state(host.root, cgroups)
    for _ in range(2):
        assert host.finder.remembered(SCOPE) is None
    (line,) = host.reported
    assert line.startswith(f"{file}: it is damaged")
    assert "the writer of the container's cgroup is unknown" in line

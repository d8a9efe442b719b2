"""Files that other programs damaged, or that cannot be read, are facts and never an exception."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.tools.doctor.facts import HostFile, HostPath, KubeletFiles, Verdict
from agent.tools.doctor.gathering import read_file, read_files
from agent.tools.doctor.kubelet import flag_of, settings_of
from agent.tools.doctor.runtime import containerd_settings, crio_settings, seconds_of
from agent.versions import version_of
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = [
    hosts.CONFIG,
    hosts.CPU_STATE,
    hosts.MEMORY_STATE,
    hosts.CONTAINERD,
    hosts.DPKG,
    hosts.UNIT,
    f"{hosts.KUBELET}/device-plugins/kubelet_internal_checkpoint",
    "/proc/sys/kernel/osrelease",
    "/sys/devices/system/cpu/isolated",
    "/sys/fs/cgroup/cgroup.controllers",
    f"{hosts.KUBEPODS}/cgroup.controllers",
    f"/proc/{hosts.PID}/comm",
    f"/proc/{hosts.PID}/cmdline",
    "/etc/tuned/active_profile",
    "/etc/crio/crio.conf",
    "/opt/nri/plugins/10-x",
]


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path)


#: What may be wrong with a file that cannot be read, and with one that can.
UNREADABLE: Final[dict[str, Callable[[Path], object]]] = {
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "deep": lambda path: path.write_text("[" * 100_000),
    "huge": huge,
    "pipe": pipe,
    "directory": directory,
    "loop": loop,
}
DAMAGED: Final[dict[str, Callable[[Path], object]]] = {
    **UNREADABLE,
    "null": lambda path: path.write_text("null"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("path", FILES)
def test_no_file_keeps_the_other_checks_from_being_made(
    tmp_path: Path, path: str, damage: Callable[[Path], object]
) -> None:
    host = FakeHost(tmp_path)
    host.at(path).parent.mkdir(parents=True, exist_ok=True)
    names = host.examine().keys()
    damage(host.at(path))
    found = host.examine()
    of_cgroups = {"cgroup driver", "cpuset of pods"}
    assert found.keys() | of_cgroups == names | of_cgroups
    assert all(len(one.line) < 2_000 for one in found.values())


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize(
    ("path", "check"),
    [(hosts.CPU_STATE, "kubelet CPU manager"), (hosts.CONFIG, "kubelet memory manager")],
)
def test_a_manager_whose_files_cannot_be_read_is_unknown_and_not_off(
    tmp_path: Path, path: str, check: str, damage: Callable[[Path], object]
) -> None:
    host = FakeHost(tmp_path)
    damage(host.at(path))
    found = host.examine()[check]
    assert found.verdict is Verdict.UNKNOWN
    assert path in found.found


def test_a_directory_of_drop_ins_that_cannot_be_listed_is_not_passed_over(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.process(hosts.PID, "kubelet", "--config", hosts.CONFIG, "--config-dir", "/etc/loop")
    loop(host.at("/etc/loop"))
    found = host.examine()["kubelet CPU manager"]
    assert found.verdict is Verdict.UNKNOWN
    assert "/etc/loop" in found.found


def test_paths_that_no_file_can_have_are_facts(tmp_path: Path) -> None:
    assert read_file(tmp_path, "/a\0b").problem
    assert [one.problem for one in read_files(tmp_path, "/a\0b/*.conf")] != [""]
    assert read_file(tmp_path, "/" + "x" * 300).problem


def kubelet(text: str) -> KubeletFiles:
    absent = HostFile("/absent")
    path = HostPath("/absent")
    return KubeletFiles(
        directory="/k",
        config=HostFile("/k/config.yaml", text),
        cpu_state=absent,
        memory_state=absent,
        device_checkpoint=absent,
        pods_api=path,
        plugin_directory=path,
        environment=(HostFile("/k/flags.env", text),),
    )


@given(text=st.text())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_text_is_read_without_an_exception(text: str) -> None:
    file = HostFile("/etc/x", text)
    settings_of(kubelet(text))
    containerd_settings((file,), "/etc/x")
    crio_settings((file,), "/etc/x")
    flag_of(text.split(), "config")
    seconds_of(text)
    version_of(text)


@given(
    name=st.sampled_from(["cpuManagerPolicy", "featureGates"]),
    value=st.text(alphabet="{}<>value%s\\`", max_size=12),
)
def test_a_value_with_signs_of_formatting_is_only_a_value(name: str, value: str) -> None:
    quoted = "'" + value.replace("'", "''") + "'"
    line = f"{name}: {quoted}" if name == "cpuManagerPolicy" else f"{name}: {{{quoted}: true}}"
    found = settings_of(kubelet(f"{line}\n"))
    for setting in (one for several in found.values.values() for one in several):
        assert setting.to("none").endswith("in /k/config.yaml")
    assert found.change("cpuManagerPolicy", "none") == (
        "write `cpuManagerPolicy: none` in /k/config.yaml"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2.0), ("1m30s", 90.0), ("500ms", 0.5), ("2", None), ("", None), ("2s ", None)],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("v2.1.9", (2, 1, 9)),
        ("1.7.24~ds1-6+deb13u1", (1, 7, 24)),
        ("1:2.2-3", (2, 2, 0)),
        ("2.3.0-rc.1", (2, 3, 0)),
        ("two", None),
    ],
)
def test_versions_of_packages_and_of_programs_are_read(
    text: str, numbers: tuple[int, int, int] | None
) -> None:
    assert version_of(text) == numbers

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from deploy.dependencies import lock
from deploy.dependencies.lock import DependencyError, Locked

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = "1" * 64, "2" * 64


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text(text)
    return path


def test_a_pin_has_its_canonical_name_version_and_all_of_its_hashes(tmp_path: Path) -> None:
    hashes = f"--hash=sha256:{TWO} \\\n    --hash=sha256:{ONE}"
    text = f"Zope.Thing_x==1.2.3 \\\n    {hashes}\n    # via y\n"
    assert lock.read(written(tmp_path, text)) == (Locked("zope-thing-x", "1.2.3", (ONE, TWO)),)


@pytest.mark.parametrize(
    "marker",
    [
        "sys_platform == 'win32'",
        "platform_python_implementation == 'PyPy'",
        "python_version < '3.11'",
    ],
)
def test_what_no_supported_python_on_linux_installs_is_left_out(
    tmp_path: Path, marker: str
) -> None:
    assert lock.read(written(tmp_path, f"thing==1 ; {marker} --hash=sha256:{ONE}\n")) == ()


@pytest.mark.parametrize(
    "marker",
    [
        "python_full_version < '3.13'",
        "python_version >= '3.14'",
        "sys_platform == 'linux'",
    ],
)
def test_what_any_supported_python_on_linux_installs_is_kept(tmp_path: Path, marker: str) -> None:
    path = written(tmp_path, f"thing==1 ; {marker} --hash=sha256:{ONE}\n")
    assert lock.read(path) == (Locked("thing", "1", (ONE,)),)


@pytest.mark.parametrize(
    "line",
    [
        "thing==1",
        f"thing>=1 --hash=sha256:{ONE}",
        f"thing --hash=sha256:{ONE}",
        f"thing==1 --hash=md5:{ONE}",
        f"-e . --hash=sha256:{ONE}",
        "--index-url=https://example.org",
    ],
)
def test_a_line_that_pins_nothing_exactly_is_rejected(tmp_path: Path, line: str) -> None:
    with pytest.raises(DependencyError, match="the lock file has"):
        lock.read(written(tmp_path, f"{line}\n"))


def test_the_lock_names_no_place_packages_come_from() -> None:
    for path in lock.RUN.parent.glob("*.txt"):
        assert not re.findall(r"(?m)^-|://", path.read_text())


def test_what_the_agent_runs_with_is_what_its_tests_run_with() -> None:
    tested = {(one.name, one.version) for one in lock.read(lock.RUN.with_name("dev.txt"))}
    assert {(one.name, one.version) for one in lock.read(lock.GRPC)} <= tested


def test_an_extra_changes_no_version_and_no_file_of_what_every_installation_has() -> None:
    assert set(lock.read()) < set(lock.read(lock.GRPC))


def test_every_line_that_installations_are_made_from_is_locked_for_one_python(
    tmp_path: Path,
) -> None:
    text = f"thing==1 ; python_full_version < '3.13' --hash=sha256:{ONE}\n"
    path = written(tmp_path, text)
    assert lock.read(path, ["3.12"]) == (Locked("thing", "1", (ONE,)),)
    assert lock.read(path, ["3.13"]) == ()


def test_what_is_installed_is_read_from_its_metadata(tmp_path: Path) -> None:
    for name, version in (("Some_Thing", "1.0"), ("other", "2")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert lock.installed(tmp_path) == {"some-thing": "1.0", "other": "2"}

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from deploy.dependencies import lock
from deploy.dependencies.lock import DependencyError, Locked

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    ("marker", "pythons", "kept"),
    [
        ("sys_platform == 'win32'", lock.PYTHONS, False),
        ("platform_python_implementation == 'PyPy'", lock.PYTHONS, False),
        ("python_version < '3.11'", lock.PYTHONS, False),
        ("python_full_version < '3.13'", lock.PYTHONS, True),
        ("python_version >= '3.14'", lock.PYTHONS, True),
        ("sys_platform == 'linux'", lock.PYTHONS, True),
        ("python_full_version < '3.13'", ["3.12"], True),
        ("python_full_version < '3.13'", ["3.13"], False),
    ],
)
def test_what_any_of_the_pythons_installs_on_linux_is_kept(
    tmp_path: Path, marker: str, pythons: Sequence[str], *, kept: bool
) -> None:
    path = written(tmp_path, f"thing==1 ; {marker} --hash=sha256:{ONE}\n")
    assert lock.read(path, pythons) == ((Locked("thing", "1", (ONE,)),) if kept else ())


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

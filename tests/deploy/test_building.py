from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from deploy import building
from deploy.building import BuildError
from deploy.dependencies.__main__ import LICENCES, SBOM
from deploy.dependencies.lock import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PERSON = ("-c", "user.name=Some One", "-c", "user.email=one@localhost")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with one commit, which is the one that is built."""
    (tmp_path / "file").write_text("one\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message=one")
    monkeypatch.setattr(building, "GIT", ("git", "-C", tmp_path))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    return tmp_path


def git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *PERSON, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_build_has_name_and_time_of_its_commit(checkout: Path) -> None:
    commit = building.commit("1.0")
    assert commit.name == commit.revision == git(checkout, "rev-parse", "HEAD")
    assert commit.epoch == int(git(checkout, "log", "-1", "--format=%ct"))
    assert (commit.modified, commit.tag) == (False, "")


def test_the_time_of_a_build_can_be_given(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    assert checkout.is_dir()
    assert building.commit("1.0").epoch == 7


def test_a_build_with_other_files_than_the_commits_says_so(checkout: Path) -> None:
    (checkout / "file").write_text("two\n")
    commit = building.commit("1.0")
    assert commit.modified
    assert commit.revision == f"{commit.name}-modified"


def test_a_commit_is_a_release_by_the_tag_of_that_version_alone(checkout: Path) -> None:
    git(checkout, "tag", "v0.9")
    assert building.commit("1.0").tag == ""
    git(checkout, "tag", "v1.0")
    assert building.commit("1.0").tag == "v1.0"


def test_a_checkout_in_which_nothing_was_built_gives_the_same_wheel(tmp_path: Path) -> None:
    written = shutil.ignore_patterns("__pycache__", SBOM.name)
    for name in ("agent", "cgroupfs", "sysfs", "systemd", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=written)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tmp_path / "copy")
    build = (
        f"from deploy import building; building.wheel(Path({str(tmp_path / 'of the copy')!r}), 7)"
    )
    command = [sys.executable, "-c", f"from pathlib import Path; {build}"]
    subprocess.run(command, check=True, cwd=tmp_path / "copy")
    [copied] = (tmp_path / "of the copy").glob("*.whl")
    assert copied.read_bytes() == building.wheel(tmp_path / "here", 7).read_bytes()
    with zipfile.ZipFile(copied) as archive:
        assert [name for name in archive.namelist() if name.endswith(f"licenses/{LICENCES.name}")]


def test_a_program_that_fails_is_reported_with_what_it_printed() -> None:
    with pytest.raises(BuildError, match=r"(?s)exited with 3:.*something is missing"):
        building.run(["sh", "-c", "echo something is missing >&2; exit 3"])
    with pytest.raises(BuildError, match="cannot run /nowhere/program: No such file"):
        building.run(["/nowhere/program"])

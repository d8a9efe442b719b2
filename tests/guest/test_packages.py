from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.guest import host, packages
from tests.guest.image import Python

if TYPE_CHECKING:
    from pathlib import Path

PERSON = ("-c", "user.name=Some One", "-c", "user.email=one@localhost")


def git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *PERSON, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return str(done.stdout).strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout of three commits; the second one brings the builder of packages."""
    git(tmp_path, "init", "--quiet")
    builder = tmp_path / packages.BUILDER
    builder.parent.mkdir(parents=True)
    for number in range(3):
        (tmp_path / "file").write_text(f"{number}\n")
        if number:
            builder.write_text("")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", f"--message={number}")
    monkeypatch.setattr(packages, "_GIT", ("git", "-C", tmp_path))
    return tmp_path


def test_a_commit_with_a_builder_is_upgraded_from(checkout: Path) -> None:
    assert packages._with_builder("HEAD^") == git(checkout, "rev-parse", "HEAD^")


@pytest.mark.parametrize("commit", ["HEAD~2", "HEAD~3"])
def test_a_commit_without_a_builder_or_out_of_reach_is_not(checkout: Path, commit: str) -> None:
    assert checkout.is_dir()
    assert packages._with_builder(commit) is None


def test_a_checkout_is_packaged_by_the_guests_python_found_on_the_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str | Path]] = []
    monkeypatch.setattr(host, "run", asked.append)
    python = Python(tmp_path / "the guest's python")
    packages._build(python, tmp_path / "checkout", tmp_path, "--wheels", tmp_path / "wheels")
    [[_, _, where, search, *_]] = asked
    assert isinstance(search, str)
    assert where == tmp_path / "checkout"
    assert search.startswith(f"PATH={tmp_path}/bin:")
    said = subprocess.run(["sh", "-n", tmp_path / "bin/python3.13"], check=False)
    assert said.returncode == 0

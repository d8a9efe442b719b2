from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = ROOT / "changelog.d"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = [kind["directory"] for kind in SETTINGS["type"]]
#: What stands beside the fragments.
BESIDE = {"README.md", "template.md.jinja"}


def build(folder: Path, *arguments: str) -> str:
    """Run towncrier in a folder that has this project's configuration and template."""
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    fragments = folder / "changelog.d"
    fragments.mkdir(exist_ok=True)
    for name in BESIDE:
        (fragments / name).write_text((FRAGMENTS / name).read_text())
    command = [sys.executable, "-m", "towncrier", "build", "--version", "9.9.9", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("kind", TYPES)
def test_a_fragment_of_each_type_becomes_an_entry(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / f"+short.{kind}.md").write_text("It does this now.\n")
    (folder / f"12.{kind}.md").write_text("And this.\n")
    text = build(tmp_path, "--draft", "--date", "2026-01-02")
    assert "## 9.9.9 (2026-01-02)" in text.splitlines()
    assert f"### {kind.capitalize()}" in text.splitlines()
    assert "- It does this now." in text.splitlines()
    assert "- And this. (#12)" in text.splitlines()


def test_a_release_stands_below_the_marker_and_above_what_was_there(tmp_path: Path) -> None:
    before = (ROOT / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text(before)
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / "+short.added.md").write_text("It does this now.\n")
    build(tmp_path, "--yes", "--date", "2026-01-02")
    after = (tmp_path / "CHANGELOG.md").read_text()
    head, marker, rest = before.partition(SETTINGS["start_string"])
    assert marker
    assert after.startswith(head + marker)
    assert after.endswith(rest.lstrip("\n"))
    assert "- It does this now." in after.removesuffix(rest)


def test_every_fragment_has_a_type_and_is_a_sentence_without_a_bullet() -> None:
    for file in sorted(FRAGMENTS.iterdir()):
        if file.name in BESIDE:
            continue
        assert file.suffix == ".md", file.name
        assert file.stem.rpartition(".")[2] in TYPES, file.name
        text = file.read_text().strip()
        assert text.endswith("."), file.name
        assert not text.startswith(("-", "*", "#")), file.name


def test_the_readme_of_the_fragments_names_every_type() -> None:
    text = (FRAGMENTS / "README.md").read_text()
    assert [kind for kind in TYPES if f"| `{kind}` |" not in text] == []

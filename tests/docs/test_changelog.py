from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = ROOT / "changelog.d"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = [kind["directory"] for kind in SETTINGS["type"]]
#: What stands beside the fragments.
BESIDE = {"README.md", "template.md.jinja"}


def build(folder: Path, *arguments: str) -> None:
    """Run towncrier in a folder that has this project's configuration and template."""
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    fragments = folder / "changelog.d"
    for name in BESIDE:
        (fragments / name).write_text((FRAGMENTS / name).read_text())
    command = [sys.executable, "-m", "towncrier", "build", "--version", "9.9.9", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_release_has_an_entry_for_each_fragment_between_the_marker_and_what_was_there(
    tmp_path: Path,
) -> None:
    before = (ROOT / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text(before)
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    for kind in TYPES:
        (folder / f"+short.{kind}.md").write_text(f"It does this now: {kind}.\n")
        (folder / f"12.{kind}.md").write_text(f"And this: {kind}.\n")
    build(tmp_path, "--yes", "--date", "2026-01-02")
    after = (tmp_path / "CHANGELOG.md").read_text()
    head, marker, rest = before.partition(SETTINGS["start_string"])
    assert marker
    assert after.startswith(head + marker)
    assert after.endswith(rest.lstrip("\n"))
    lines = after.removesuffix(rest).splitlines()
    assert "## 9.9.9 (2026-01-02)" in lines
    for kind in TYPES:
        assert f"### {kind.capitalize()}" in lines
        assert f"- It does this now: {kind}." in lines
        assert f"- And this: {kind}. (#12)" in lines


def test_every_fragment_has_a_type_and_is_a_sentence_without_a_bullet() -> None:
    for file in sorted(FRAGMENTS.iterdir()):
        if file.name in BESIDE:
            continue
        assert file.suffix == ".md", file.name
        assert file.stem.rpartition(".")[2] in TYPES, file.name
        text = file.read_text().strip()
        assert text.endswith("."), file.name
        assert not text.startswith(("-", "*", "#")), file.name

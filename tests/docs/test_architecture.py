from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agent", "cgroupfs", "sysfs", "systemd")
#: A path of the checkout between backticks: it begins with a folder or is a file of the root.
NAMED = re.compile(r"`((?:agent|cgroupfs|sysfs|systemd|tests|docs|deploy|changelog\.d)/[^`\s]*)`")
STEP = re.compile(r"^(?P<step>\d+)\. (?P<files>[^:]+) `(?P<name>\w+)`: ", re.MULTILINE)

PAGE = (ROOT / "docs/contributing/architecture.md").read_text()


def folders_with_code(root: Path) -> set[str]:
    """Return every folder of the packages that holds modules, as `agent/pods/`."""
    files = (file for package in PACKAGES for file in (root / package).rglob("__init__.py"))
    return {f"{file.parent.relative_to(root).as_posix()}/" for file in files}


def names_in(file: Path) -> set[str]:
    """Return what a module defines: functions, classes, methods and constants."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


def missing_paths(text: str, root: Path) -> list[str]:
    """Return the paths that a page names and that are not there; a folder ends with `/`."""
    return [
        path
        for path in NAMED.findall(text)
        if not ((root / path).is_dir() if path.endswith("/") else (root / path).is_file())
    ]


@pytest.mark.parametrize(
    "page",
    [
        *("CONTRIBUTING.md", "SECURITY.md", "docs/glossary.md"),
        *(f"docs/contributing/{name}.md" for name in ("architecture", "decisions", "guest")),
    ],
)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    assert missing_paths((ROOT / page).read_text(), ROOT) == []


def test_a_path_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "here.py").write_text("")
    text = "`agent/here.py`, `agent/gone.py`, `agent/`, `agent/here.py/`, `agent`, `b/c.py`"
    assert missing_paths(text, tmp_path) == ["agent/gone.py", "agent/here.py/"]


def test_every_folder_of_the_packages_is_described() -> None:
    assert folders_with_code(ROOT) - set(NAMED.findall(PAGE)) == set()


def test_every_step_of_the_walk_names_something_that_its_file_defines() -> None:
    steps = list(STEP.finditer(PAGE))
    lacking = [
        (file, step["name"])
        for step in steps
        for file in NAMED.findall(step["files"])
        if step["name"] not in names_in(ROOT / file)
    ]
    assert lacking == []
    assert len(steps) > 10
    assert [int(step["step"]) for step in steps] == list(range(1, len(steps) + 1))


def test_the_picture_names_every_package() -> None:
    picture = PAGE.split("```mermaid")[1].split("```")[0]
    assert [package for package in PACKAGES if package not in picture] == []

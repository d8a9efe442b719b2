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


@pytest.mark.parametrize(
    "page",
    [
        *("CONTRIBUTING.md", "SECURITY.md", "docs/glossary.md"),
        *(f"docs/contributing/{name}.md" for name in ("architecture", "decisions", "guest")),
    ],
)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    named = NAMED.findall((ROOT / page).read_text())
    there = [(ROOT / path).is_dir() == path.endswith("/") for path in named]
    assert [path for path, is_so in zip(named, there, strict=True) if not is_so] == []


def test_every_folder_of_the_packages_is_described() -> None:
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("__init__.py"))
    folders = {f"{file.parent.relative_to(ROOT).as_posix()}/" for file in files}
    assert folders - set(NAMED.findall(PAGE)) == set()


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

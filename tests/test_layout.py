"""The layout of the packages: what imports what, and what is called what.

What import-linter says of whole folders stands in `pyproject.toml`; here are its modules, and what
it does not look at.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("agent", "cgroupfs", "sysfs", "systemd")

#: The modules that know no resource by name, but any number of resource managers.
NO_RESOURCE: Final = (
    "agent.managers.admission",
    "agent.managers.ledger",
    "agent.managers.resource_manager",
)
RESOURCES: Final = frozenset({"cpu", "cpus", "memory", "device", "devices", "hugepages", "mems"})


def modules_below(root: Path, packages: tuple[str, ...] = PACKAGES) -> dict[str, Path]:
    """Return the file of each module, by its full name; a package is the module of that name."""
    files = (file for package in packages for file in sorted((root / package).rglob("*.py")))
    named = {".".join(file.relative_to(root).with_suffix("").parts): file for file in files}
    return {name.removesuffix(".__init__"): file for name, file in named.items()}


def imports_of(tree: ast.Module, modules: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules that a module imports anywhere: in functions and for types, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                found = member if member in modules else node.module
                if found in modules:
                    yield found


def import_graph(modules: Mapping[str, Path]) -> dict[str, frozenset[str]]:
    """Return for each module the modules that it imports."""
    return {
        name: frozenset(imports_of(ast.parse(file.read_text()), modules))
        for name, file in modules.items()
    }


def cycles_in(graph: Mapping[str, frozenset[str]]) -> set[frozenset[str]]:
    """Return the largest groups of modules in which every one imports every other in the end."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph
    }
    return groups - {frozenset()}


def _reached(graph: Mapping[str, frozenset[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def public_classes(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the classes that a module defines for others."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def repeated_names(modules: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return the modules that define a public class, by the name that several of them use."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, file in modules.items():
        for defined in public_classes(ast.parse(file.read_text())):
            places[defined].append(name)
    return {name: found for name, found in places.items() if len(found) > 1}


def words_in(tree: ast.Module) -> Iterator[str]:
    """Yield the words of all names and strings of a module, but not those of its docstrings.

    A name is divided at its underscores and capitals: `ExclusiveCpus` has the words of
    `exclusive_cpus`.
    """
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    prose = {id(value) for value in alone if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if id(node) in prose:
            continue
        for _, value in ast.iter_fields(node):
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    yield from (word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", text))


@pytest.fixture(scope="module")
def modules() -> dict[str, Path]:
    found = modules_below(ROOT)
    assert set(PACKAGES) <= found.keys()
    return found


def test_no_modules_import_each_other_in_a_circle(modules: dict[str, Path]) -> None:
    assert cycles_in(import_graph(modules)) == set()


def test_no_two_public_classes_have_the_same_name(modules: dict[str, Path]) -> None:
    assert repeated_names(modules) == {}


@pytest.mark.parametrize("name", NO_RESOURCE)
def test_what_serves_every_manager_names_no_resource(modules: dict[str, Path], name: str) -> None:
    assert RESOURCES & set(words_in(ast.parse(modules[name].read_text()))) == set()


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Path]:
    """Return the modules of a small package that follows no rule."""
    package = tmp_path / "agent"
    (package / "inner").mkdir(parents=True)
    texts = {
        "__init__.py": "",
        "first.py": "import agent.inner.second\nclass Same: ...\nclass _Own: ...\n",
        "inner/__init__.py": "",
        "inner/second.py": "def late():\n    from agent.inner import third\nclass Same: ...\n",
        "inner/third.py": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from agent.first import Same\n"
            "class _Own: ...\n"
        ),
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    return modules_below(tmp_path, ("agent",))


def test_imports_anywhere_close_a_circle_private_names_are_free(small: dict[str, Path]) -> None:
    circle = {"agent.first", "agent.inner.second", "agent.inner.third"}
    assert cycles_in(import_graph(small)) == {frozenset(circle)}
    assert repeated_names(small) == {"Same": ["agent.first", "agent.inner.second"]}


@pytest.mark.parametrize(
    ("graph", "cycles"),
    [
        ({"a": "a", "b": "a"}, ["a"]),
        ({"top": "a", "a": "b", "b": "a"}, ["ab"]),
        ({"a": "b", "b": "ac", "c": "d", "d": "c"}, ["ab", "cd"]),
    ],
    ids=["of one module", "imported from above", "two that are kept apart"],
)
def test_a_circle_is_of_those_that_import_each(graph: dict[str, str], cycles: list[str]) -> None:
    found = cycles_in({name: frozenset(imported) for name, imported in graph.items()})
    assert found == set(map(frozenset, cycles))


@pytest.mark.parametrize(
    "text",
    [
        "from agent.managers.cpu import manager",
        "from agent.managers.registry import CpuManager as Manager",
        *("ledger.exclusive_cpus", "def f(memory): ...", "f(devices=1)", "parts['memory']"),
        *("f'{size} of memory'", "class FreeCPUs: ..."),
    ],
)
def test_a_resource_is_found_wherever_code_names_one(text: str) -> None:
    assert RESOURCES & set(words_in(ast.parse(text)))


def test_prose_and_longer_words_name_no_resource() -> None:
    text = '''def f(memorable):\n    """Return CPUs."""\n    return memorable  # memory'''
    assert not RESOURCES & set(words_in(ast.parse(text)))

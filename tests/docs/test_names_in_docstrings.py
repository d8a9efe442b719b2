"""Names in the docstrings of the packages are names of this tree."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.config.document import config_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "cgroupfs", "sysfs", "systemd")
MODULES: Final = tuple(
    path.relative_to(REPOSITORY) for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py")
)
_QUOTED: Final = re.compile(r"`((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(\))?`")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
#: Names as Python has them: `snake_case` and `UpperCamel`. `lowerCamel` is Go's and JSON's.
_OURS: Final = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+|_\w+|[A-Z][a-z]+(?:[A-Z][a-z]+)*")
#: Names of others that no line of code has.
_OTHERS: Final = {
    "GeneralPredicates": "a function of the kubelet",
    "GetThresholdQuantity": "the same",
    "Discover": "the same",
    "Fits": "the same",
    "OutOfcpu": "a reason of the kubelet",
    "OutOfpods": "the same",
    "pod_annotations": "a key of containerd's configuration",
    "container_annotations": "the same",
    "validate_change": "a function of the kernel",
}
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse((REPOSITORY / module).read_text())


def docstrings(module: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, _DOCUMENTED):
            yield ast.get_docstring(node) or ""


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of the code has, those in its texts among them."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.keyword(arg=str(name)) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Constant(value=str(text)):
            yield from _WORD.findall(text)
        case ast.alias(name=name):
            yield from name.split(".")


def code_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of the code without docstrings."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield child
            yield from code_of(child)


@cache
def known() -> frozenset[str]:
    words = {word for module in MODULES for word in module.with_suffix("").parts}
    words |= {
        word for path in MODULES for node in code_of(tree_of(path)) for word in names_in(node)
    }
    return frozenset(words | _OTHERS.keys())


@cache
def keys() -> frozenset[str]:
    """Return the keys of the configuration's first three levels, with dots."""
    found = set[str]()
    schemas = [("", json.loads(config_schema()))]
    for _ in range(3):
        schemas = [
            (f"{above}{key}.", schema)
            for above, holder in schemas
            for key, schema in holder.get("properties", {}).items()
        ]
        found.update(path.rstrip(".") for path, _ in schemas)
    return frozenset(found)


def resolves(name: str) -> bool:
    """Whether a name is a module's, with an attribute or without, a key's, or in the code."""
    parts = name.split(".")
    last = parts[-1]
    if parts[0] in PACKAGES and len(parts) > 1:
        places = (Path(*parts[:length]) for length in range(len(parts), 1, -1))
        is_module = any(
            place.with_suffix(".py") in MODULES or place / "__init__.py" in MODULES
            for place in places
        )
        return name in keys() or (is_module and last in known())
    return _OURS.fullmatch(last) is None or last in known()


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_the_names_in_docstrings_exist(module: Path) -> None:
    names = {name for text in docstrings(module) for name in _QUOTED.findall(text)}
    assert [name for name in sorted(names) if not resolves(name)] == []


def test_names_of_others_are_in_docstrings_only_where_they_are_listed() -> None:
    said = {
        name.split(".")[-1]
        for module in MODULES
        for text in docstrings(module)
        for name in _QUOTED.findall(text)
    }
    assert set(_OTHERS) - said == set()

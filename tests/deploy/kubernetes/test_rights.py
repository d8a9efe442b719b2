"""Roles allow what the agent asks an API server for, and nothing else."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pytest

from deploy.dependencies.lock import ROOT
from tests.deploy.kubernetes.objects import KUBERNETES, documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

#: The verb that an API server wants for a request to one object.
VERBS: Final = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
#: The names that the code has for the resources of components.
RESOURCES: Final = {"version": "_NODES", "topology": "NODE_TOPOLOGIES", "events": "_EVENT"}


def verbs_in(files: Iterable[Path]) -> Mapping[str, frozenset[str]]:
    """Return the verbs of all `call(METHOD, RESOURCE, ...)` by the name of the resource.

    Server-side apply (a call with `APPLY`) creates an object that is not there.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            match node.args:
                case [ast.Constant(value=str(method)), ast.Name(id=resource), *more] if (
                    node.func.attr == "call" and method in VERBS
                ):
                    found[resource].add(VERBS[method])
                    if any(isinstance(one, ast.Name) and one.id == "APPLY" for one in more):
                        found[resource].add("create")
    return {resource: frozenset(verbs) for resource, verbs in found.items()}


def test_every_resource_that_the_agent_asks_for_has_a_component() -> None:
    assert set(verbs_in((ROOT / "agent").rglob("*.py"))) == set(RESOURCES.values())


@pytest.mark.parametrize("component", RESOURCES)
def test_verbs_are_those_of_the_requests(component: str) -> None:
    role, _ = documents(KUBERNETES / "components" / component / "rbac.yaml")
    (rule,) = role["rules"]
    asked = verbs_in((ROOT / "agent/cluster").rglob("*.py"))[RESOURCES[component]]
    assert len(rule["verbs"]) == len(set(rule["verbs"]))
    assert frozenset(rule["verbs"]) == asked


def test_requests_are_found_in_code(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        'server.call("PATCH", A, path, document, APPLY)\n'
        'server.call("PATCH", B, path, document, MERGE)\n'
        'server.call("GET", B, path)\n'
        'server.other("DELETE", B, path)\n'
    )
    assert verbs_in([file]) == {"A": {"create", "patch"}, "B": {"get", "patch"}}

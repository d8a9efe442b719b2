"""What a cluster would get has no property that Kubernetes v1.36 does not know, or would drop."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from jsonschema.validators import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests import helm
from tests.deploy.kubernetes.objects import COMPONENTS, charted, pod_of

#: What the schemas refer to each other by.
_URI: Final = "/api/_definitions.json"
#: The groups of `apiVersion` by their names in the schemas.
_GROUPS: Final = {"v1": "core.v1", "apps/v1": "apps.v1", "rbac.authorization.k8s.io/v1": "rbac.v1"}
#: Of the Prometheus Operator, which has its own schema.
_OTHERS: Final = "monitoring.coreos.com/v1"


@pytest.fixture(scope="module")
def registry() -> Registry[Any]:
    contents = json.loads(helm.schemas().read_text())
    resource = DRAFT202012.create_resource(contents)
    empty: Registry[Any] = Registry()
    whole: Registry[Any] = empty.with_resource(_URI, resource)
    return whole


def mistakes_of(found: dict[str, Any], registry: Registry[Any]) -> list[str]:
    """Return what is wrong with an object, by path."""
    name = f"io.k8s.api.{_GROUPS[found['apiVersion']]}.{found['kind']}"
    schema = {"$ref": f"{_URI}#/$defs/{name}"}
    errors = Draft202012Validator(schema, registry=registry).iter_errors(found)
    return [f"{error.json_path}: {error.message}" for error in errors]


def test_objects_are_as_kubernetes_knows_them(registry: Registry[Any]) -> None:
    more = ("--set=image.pullSecrets[0].name=a", "--set=nodeSelector.a=b", "--set=tolerations=null")
    objects = charted(COMPONENTS.values(), *more)
    checked = [found for found in objects.values() if found["apiVersion"] != _OTHERS]
    assert len(checked) == len(objects) - 1
    assert [mistakes_of(found, registry) for found in checked] == [[] for _ in checked]


def test_a_property_that_kubernetes_does_not_know_is_found(registry: Registry[Any]) -> None:
    daemonset = charted()["DaemonSet", "numawarden"]
    pod_of(daemonset)["containers"][0]["securityContext"]["readonlyRootFilesystem"] = True
    (mistake,) = mistakes_of(daemonset, registry)
    assert "readonlyRootFilesystem" in mistake

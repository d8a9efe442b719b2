"""The objects of deploy/kubernetes: from their files, and as kustomize and Helm render them."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml

from deploy.dependencies.lock import ROOT
from tests import helm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

KUBERNETES: Final = ROOT / "deploy/kubernetes"
CHART: Final = KUBERNETES / "chart"
#: The components, and the switches of the chart that render the same.
COMPONENTS: Final[Mapping[str, str]] = {
    "pods-endpoint": "podsEndpoint",
    "version": "version",
    "topology": "topology",
    "events": "events",
    "podmonitor": "podMonitor",
    "exclusive": "exclusive",
}

#: Kind and name of an object, and the object.
Objects: TypeAlias = dict[tuple[str, str], dict[str, Any]]


def documents(file: Path) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def by_name(objects: Iterable[dict[str, Any]]) -> Objects:
    """Return objects by their kind and name."""
    return {(found["kind"], found["metadata"]["name"]): found for found in objects}


def daemon_set() -> dict[str, Any]:
    """Return the DaemonSet of the base."""
    (found,) = documents(KUBERNETES / "base/daemonset.yaml")
    return found


def pod_of(daemonset: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of a DaemonSet's pod."""
    found: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return found


def settings_of(component: str) -> list[str]:
    """Return the settings (`key=value`) that a component adds to the agent's command line."""
    (patches,) = (
        yaml.safe_load(file.read_text())
        for file in (KUBERNETES / "components" / component).glob("arguments.yaml")
    )
    values = [patch["value"] for patch in patches if patch["path"].endswith("/args/-")]
    return [value.removeprefix("--set=") for value in values]


def kustomized(folder: Path, components: Iterable[str]) -> Objects:
    """Return what kubectl makes of the base with components; `folder` is an empty one.

    The name of the ConfigMap is without the hash at its end, and the Namespace is left out: Helm
    makes it from its command line.
    """
    copy = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    overlay = copy / "overlays/chosen"
    overlay.mkdir()
    chosen = {
        "resources": ["../../base"],
        "components": [f"../../components/{name}" for name in components],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(chosen))
    done = helm.run("kubectl", "kustomize", overlay)
    assert done.returncode == 0, done.stderr
    hashed = re.compile(r"\bname: numawarden-[0-9a-z]{10}$", re.MULTILINE)
    text = hashed.sub("name: numawarden", done.stdout)
    objects = by_name(yaml.safe_load_all(text))
    del objects["Namespace", "numawarden"]
    return objects


def charted(switches: Iterable[str] = (), *more: str) -> Objects:
    """Return what Helm renders with switches of the chart on; `more` are its own arguments."""
    on = [f"--set={switch}.enabled=true" for switch in switches]
    options = ("--namespace=numawarden", *on, *more)
    done = helm.run("helm", "template", "numawarden", CHART, *options)
    assert done.returncode == 0, done.stderr
    return by_name(document for document in yaml.safe_load_all(done.stdout) if document)

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agent.pods.manifest import ignored_parts, load_manifest
from agent.pods.model import ANNOTATIONS, REQUIRE
from agent.yaml import from_plain

ROOT = Path(__file__).resolve().parents[3]


def warnings(
    *,
    spec: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None,
    **more: dict[str, Any],
) -> tuple[str, ...]:
    """Return the warnings about a pod with these keys beside the usual ones."""
    usual = {"name": "c", "image": "x", "command": ["x"], "resources": {}}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"restartPolicy": "Always", "containers": [{**usual, **(container or {})}]}
        | (spec or {}),
    }
    return ignored_parts(from_plain({**pod, **more}))


@pytest.mark.parametrize("example", sorted((ROOT / "deploy/examples").glob("*.yaml")))
def test_no_example_has_warnings(example: Path) -> None:
    assert load_manifest(example.read_text(), "x").warnings == ()


def test_fields_without_meaning_here_are_listed_once() -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    more = {"livenessProbe": {"a": 1}, "volumeMounts": mounts, "resources": {"claims": [{}]}}
    two = {"containers": [{"name": "a", **more}, {"name": "b", **more}]}
    (listed,) = warnings(spec={"affinity": {"nodeAffinity": {}}, "volumes": [], **two})
    assert listed == (
        "ignored, as they have no meaning here: spec.affinity, spec.volumes, "
        "spec.containers[*].livenessProbe, spec.containers[*].volumeMounts, "
        "spec.containers[*].resources.claims"
    )


def test_a_pod_that_is_being_deleted_elsewhere_is_said_to_be_new_here() -> None:
    metadata = {"name": "p", "deletionTimestamp": "2026-11-26T12:00:00Z"}
    assert warnings(metadata=metadata) == (
        "metadata.deletionTimestamp is ignored: the pod is admitted as a new one",
    )


def test_a_long_list_of_fields_is_cut() -> None:
    names = [
        "activeDeadlineSeconds", "affinity", "dnsConfig", "hostAliases", "hostIPC", "hostNetwork",
        "hostPID", "hostname", "nodeName", "nodeSelector", "setHostnameAsFQDN", "subdomain",
        "tolerations", "volumes",
    ]  # fmt: skip
    (listed,) = warnings(spec=dict.fromkeys(names, "x"))
    assert listed.endswith("spec.subdomain and 2 more")


@pytest.mark.parametrize(
    ("more", "path", "nearest"),
    [
        ({"specs": {"a": 1}}, "specs", "spec"),
        ({"metadata": {"name": "p", "label": {"a": "b"}}}, "metadata.label", "labels"),
        ({"spec": {"numaPolicy": "strict"}}, "spec.numaPolicy", ""),
        ({"spec": {"toleration": []}}, "spec.toleration", "tolerations"),
        ({"container": {"cpuset": "1-3"}}, "spec.containers[0].cpuset", ""),
    ],
)
def test_what_no_pod_has_is_named_with_the_nearest_name(
    more: dict[str, Any], path: str, nearest: str
) -> None:
    guess = f'; did you mean "{nearest}"?' if nearest else ""
    assert warnings(**more) == (f"{path} is ignored: a Pod has no such field{guess}",)
    annotated = warnings(metadata={"name": "p", "annotations": {f"{REQUIRE}s": "x"}})
    said = "is ignored: the agent does not know it; did you mean"
    assert annotated == (f'annotation "{REQUIRE}s" {said} "{REQUIRE}"?',)


def test_keys_without_a_value_and_annotations_of_others_have_no_warning() -> None:
    annotations = dict.fromkeys(ANNOTATIONS, "exclusive") | {"example.com/x": "y"}
    assert warnings(metadata={"name": "p", "annotations": annotations}) == ()
    assert warnings(spec={"affinity": None, "nonsense": None}) == ()


def test_many_unknown_keys_are_counted() -> None:
    found = warnings(spec={f"k{number}": 1 for number in range(15)})
    assert len(found) == 13
    assert found[-1] == "3 more keys are ignored"


def test_every_annotation_that_the_code_names_is_known() -> None:
    code = "\n".join(file.read_text() for file in (ROOT / "agent").rglob("*.py"))
    assert set(re.findall(r'"(agent\.numawarden/[a-z-]+)"', code)) == {
        name for name in ANNOTATIONS if name.startswith("agent.")
    }

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.pods.errors import ManifestError
from agent.tools.kubelet_state.errors import ContainerListError
from agent.tools.kubelet_state.lists import read_container_ids, read_pods

if TYPE_CHECKING:
    from pathlib import Path


def manifest(uid: str, name: str = "p", **annotations: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid, "annotations": annotations},
        "spec": {"containers": [{"name": "a"}]},
    }


def test_a_clusters_list_gives_the_pods_that_are_desired(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    broken = {**manifest("other"), "spec": {}}
    listed = {"kind": "List", "items": [manifest("u-1", "one"), broken, manifest("u-2", "two")]}
    file.write_text(json.dumps(listed))
    pods = read_pods(file, {"u-1", "u-2"}, pod_level=True)
    assert {uid: pod.name for uid, pod in pods.items()} == {"u-1": "one", "u-2": "two"}


def test_a_static_pod_is_known_by_the_kubelets_uid_not_its_mirrors(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    mirror = manifest("mirror", **{"kubernetes.io/config.mirror": "u-1"})
    file.write_text(json.dumps({"kind": "PodList", "items": [mirror]}))
    pods = read_pods(file, {"u-1", "mirror"}, pod_level=True)
    assert {uid: pod.uid for uid, pod in pods.items()} == {"u-1": "u-1"}


def test_the_manifests_of_a_directory_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(manifest("u-1"), indent=1)[0:] + "\n")
    (tmp_path / "b.yml").write_text(
        "kind: Pod\nmetadata: {name: b, uid: u-2}\nspec: {containers: [{name: a}]}\n"
    )
    (tmp_path / "notes.txt").write_text("no manifest")
    assert sorted(read_pods(tmp_path, {"u-1", "u-2"}, pod_level=True)) == ["u-1", "u-2"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "this is not JSON"),
        ("a: [", "this is not YAML"),
        ("kind: Service", "expected a Pod, or a List of them"),
        ('{"kind":"Pod","metadata":{"uid":"u-1","name":"p"},"spec":{}}', "at least one container"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(content)
    with pytest.raises(ManifestError, match=problem) as caught:
        read_pods(tmp_path, {"u-1"}, pod_level=True)
    assert str(caught.value).startswith(str(file))


def test_two_pods_of_one_uid_are_rejected(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(manifest("u-1", name)))
    with pytest.raises(ManifestError, match="a second pod has u-1"):
        read_pods(tmp_path, {"u-1"}, pod_level=True)


def test_container_ids_are_those_of_crictl(tmp_path: Path) -> None:
    file = tmp_path / "containers.json"
    container = {
        "id": "id1",
        "metadata": {"name": "a", "attempt": 0},
        "labels": {"io.kubernetes.pod.uid": "u-1", "io.kubernetes.pod.name": "p"},
    }
    file.write_text(json.dumps({"containers": [container]}))
    assert read_container_ids(file) == {"id1": ("u-1", "a")}
    file.write_text('{"containers": [{"id": "x"}]}')
    with pytest.raises(ContainerListError, match="crictl ps -a -o json"):
        read_container_ids(file)

"""The Helm chart renders what kustomize does, and rejects values that mean nothing."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agent import __version__
from tests import helm
from tests.deploy.kubernetes.objects import CHART, COMPONENTS, Objects, charted, kustomized, pod_of

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_MAP = ("ConfigMap", "numawarden")
DAEMON_SET = ("DaemonSet", "numawarden")


def comparable(objects: Objects) -> Objects:
    """Return objects with the configuration as a document, and without what restarts the agents.

    For kustomize that is a hash in a name, for Helm an annotation of the pods.
    """
    data = objects[CONFIG_MAP]["data"]
    objects[CONFIG_MAP]["data"] = {name: yaml.safe_load(text) for name, text in data.items()}
    template = objects[DAEMON_SET]["spec"]["template"]["metadata"]
    template.get("annotations", {}).pop("checksum/config", None)
    if not template.get("annotations"):
        template.pop("annotations", None)
    (container,) = containers_of(objects)
    for mount in container["volumeMounts"]:
        mount.setdefault("readOnly", False)
    # kustomize puts what a patch changes first.
    container["volumeMounts"].sort(key=itemgetter("mountPath"))
    return objects


def containers_of(objects: Objects) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod_of(objects[DAEMON_SET])["containers"]
    return found


@pytest.mark.parametrize(
    "components",
    [(), *((name,) for name in COMPONENTS), tuple(COMPONENTS)],
    ids=lambda chosen: "+".join(chosen) or "base",
)
def test_helm_renders_what_kustomize_does(components: tuple[str, ...], tmp_path: Path) -> None:
    from_helm = comparable(charted(COMPONENTS[name] for name in components))
    from_kustomize = comparable(kustomized(tmp_path, components))
    assert from_helm == from_kustomize
    assert DAEMON_SET in from_helm
    assert (("PodMonitor", "numawarden") in from_helm) == ("podmonitor" in components)


def test_a_changed_configuration_restarts_the_agents(tmp_path: Path) -> None:
    def annotations(*more: str) -> object:
        return charted((), *more)[DAEMON_SET]["spec"]["template"]["metadata"]["annotations"]

    assert annotations("--set=config.maxPods=20") != annotations()
    assert annotations() == annotations()
    # kustomize: the name of the ConfigMap is made from its content.
    folder = tmp_path / "copy"
    folder.mkdir()
    kustomized(folder, ())
    base = folder / "kubernetes/base"
    before = helm.run("kubectl", "kustomize", base).stdout
    with (base / "config.yaml").open("a") as config:
        config.write("maxPods: 20\n")
    after = helm.run("kubectl", "kustomize", base).stdout

    def name(text: str) -> object:
        (daemon_set,) = (
            found for found in yaml.safe_load_all(text) if found["kind"] == "DaemonSet"
        )
        volumes = pod_of(daemon_set)["volumes"]
        return [one["configMap"]["name"] for one in volumes if "configMap" in one]

    assert name(before) != name(after)


def test_the_overlay_that_is_shown_can_be_built() -> None:
    done = helm.run("kubectl", "kustomize", CHART.parent / "overlays/all")
    assert done.returncode == 0, done.stderr
    found = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    assert found.count("ClusterRole") == 3
    assert "image: registry.example/numawarden:" in done.stdout


def test_values_reach_the_objects() -> None:
    values = (
        *("image.repository=registry.example/numawarden", "image.tag=1.2.3"),
        *("image.pullSecrets[0].name=registry", "nodeSelector.pool=latency"),
        *("maxUnavailable=10%", "config.topologyManagerPolicy=restricted"),
    )
    objects = charted((), *(f"--set={value}" for value in values))
    pod = pod_of(objects[DAEMON_SET])
    assert pod["containers"][0]["image"] == "registry.example/numawarden:1.2.3"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"]["pool"] == "latency"
    assert pod["nodeSelector"]["kubernetes.io/os"] == "linux"
    update = objects[DAEMON_SET]["spec"]["updateStrategy"]
    assert update["rollingUpdate"] == {"maxUnavailable": "10%"}
    config = yaml.safe_load(objects[CONFIG_MAP]["data"]["config.yaml"])
    assert config["topologyManagerPolicy"] == "restricted"
    assert config["agent"]["kubelet"]["enabled"] is True


@pytest.mark.parametrize(
    "mistake",
    [
        *("topologyy.enabled=true", "image.tag=latest", "image.repository="),
        *("topology.enabled=yes please", "maxUnavailable=0", "nodeSelector=pool", "config="),
    ],
)
def test_values_that_mean_nothing_are_rejected(mistake: str) -> None:
    done = helm.run("helm", "template", "numawarden", CHART, f"--set={mistake}")
    assert done.returncode != 0
    assert mistake.partition("=")[0].partition(".")[0] in done.stderr


def test_the_chart_has_no_mistakes() -> None:
    done = helm.run("helm", "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_the_chart_and_its_image_have_the_version_of_the_agent() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)

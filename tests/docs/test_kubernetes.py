"""docs/kubernetes.md: its configuration can be used, and its pod gets what the page says."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any, Final

import yaml
from click.testing import CliRunner

from agent.cli.main import numawarden
from agent.config.load import load_config
from sysfs.mask import Mask
from tests.docs.hosts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = (ROOT / "docs/kubernetes.md").read_text()
BASE: Final = ROOT / "deploy/kubernetes/base/config.yaml"
CONFIG, POD, LIMITS = (
    yaml.safe_load(block)
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)


def admitted(folder: Path, pod: dict[str, Any]) -> dict[str, Any]:
    """Return what a replay says of a pod on a host of two nodes, with the DaemonSet's settings."""
    document = {
        "host": {
            "shape": {
                "packages": 1,
                "nodesPerPackage": 2,
                "coresPerNode": 8,
                "threads": 2,
                "memory": "32Gi",
            }
        },
        "config": yaml.safe_load(BASE.read_text()),
        "steps": [{"admit": pod}],
    }
    file = folder / "replay.json"
    file.write_text(json.dumps(document))
    done = CliRunner().invoke(numawarden, ["replay", str(file), "--output", "jsonl"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output.splitlines()[0])
    return found


def test_the_configuration_is_one_for_an_agent_beside_a_kubelet() -> None:
    config = load_config(json.dumps(CONFIG), "the page")
    assert config.agent.kubelet.enabled
    assert config.static_pod_path is None
    assert config.agent.cdi_directory is None


def test_the_pod_gets_what_is_said_of_it(tmp_path: Path) -> None:
    found = admitted(tmp_path, POD)
    assert found["admitted"] is True
    got = {
        one["name"]: (one["isolation"], one["cpus"]) for one in found["allocation"]["containers"]
    }
    worker, logs = (Mask.parse(cpus) for _, cpus in got.values())
    assert {name: isolation for name, (isolation, _) in got.items()} == {
        "worker": "container",
        "logs": "pod",
    }
    assert (len(worker), len(logs)) == (2, 1)
    assert not worker & logs


def without(pod: dict[str, Any], *, containers: bool = False) -> dict[str, Any]:
    """Return the pod without pod-level requests; `containers`: also without those of containers."""
    other: dict[str, Any] = copy.deepcopy(pod)
    del other["spec"]["resources"]["requests"]
    for container in other["spec"]["containers"] if containers else ():
        container.pop("resources", None)
    return other


def test_without_pod_level_requests_the_pod_is_burstable_and_has_nothing_exclusive(
    tmp_path: Path,
) -> None:
    allocation = admitted(tmp_path, without(POD))["allocation"]
    assert (allocation["qos"], allocation["cpus"]) == ("Burstable", None)
    assert {each["isolation"] for each in allocation["containers"]} == {"host"}


def test_without_any_requests_the_pod_level_limits_are_the_requests(tmp_path: Path) -> None:
    allocation = admitted(tmp_path, without(POD, containers=True))["allocation"]
    assert allocation["qos"] == "Guaranteed"
    assert len(Mask.parse(allocation["cpus"])) == 3


def test_container_requests_that_sum_up_to_the_pod_level_limits_are_enough(tmp_path: Path) -> None:
    pod = without(POD)
    logs = pod["spec"]["containers"][1]
    logs["resources"] = {"requests": {"cpu": "1", "memory": "512Mi"}}
    allocation = admitted(tmp_path, pod)["allocation"]
    assert (allocation["qos"], len(Mask.parse(allocation["cpus"]))) == ("Guaranteed", 3)


def test_a_pod_opts_in_in_the_limits_of_a_container() -> None:
    assert LIMITS["resources"]["limits"]["numawarden.dev/exclusive"] == "1"

"""What a node is set up with: drop-ins of containerd and of the kubelet."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes.objects import KUBERNETES

NODE = KUBERNETES / "node"
NRI = "io.containerd.nri.v1.nri"


def toml(name: str) -> dict[str, Any]:
    return tomllib.loads((NODE / name).read_text())


def kubelet(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((NODE / name).read_text())
    return found


@pytest.mark.parametrize(
    ("name", "version"), [("containerd-1.7.toml", 2), ("containerd-2.toml", 3)]
)
def test_containerd_lets_plugins_connect(name: str, version: int) -> None:
    found = toml(name)
    assert found["version"] == version
    assert found["plugins"][NRI]["disable"] is False
    # What else a file names would replace the host's own settings.
    assert list(found["plugins"]) == [NRI]


def test_the_validator_is_on_where_containerd_has_it_and_for_no_pod_but_those_that_ask() -> None:
    assert toml("containerd-2.toml")["plugins"][NRI]["default_validator"] == {"enable": True}
    assert "default_validator" not in toml("containerd-1.7.toml")["plugins"][NRI]


def test_the_kubelets_managers_are_off() -> None:
    found = kubelet("10-numawarden.conf")
    assert found["kind"] == "KubeletConfiguration"
    policies = {name: value for name, value in found.items() if name.endswith("ManagerPolicy")}
    assert policies == {
        "cpuManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        "topologyManagerPolicy": "none",
    }


def test_kubelet_and_agent_use_the_same_cgroup_driver() -> None:
    config = yaml.safe_load((KUBERNETES / "base/config.yaml").read_text())
    assert kubelet("10-numawarden.conf")["cgroupDriver"] == config["cgroupDriver"]


def test_the_gate_stands_alone_for_kubelets_that_do_not_know_it() -> None:
    found = kubelet("20-pods-api.conf")
    assert found.pop("featureGates") == {"PodsAPI": True}
    assert set(found) == {"apiVersion", "kind"}
    assert "featureGates" not in kubelet("10-numawarden.conf")

"""docs/kubernetes.md: its configuration can be used, and its pod gets what the page says."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import yaml

from agent.config.load import load_config
from agent.config.resolve import managers_beside_kubelet, resolve
from agent.managers.admission import admit
from agent.managers.allocation import Isolation
from agent.managers.machine import Machine
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import load_pod
from sysfs.described import regular_host
from tests.docs.hosts import ROOT

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation

PAGE: Final = (ROOT / "docs/kubernetes.md").read_text()
BASE: Final = ROOT / "deploy/kubernetes/base/config.yaml"
#: A host of two nodes in one package.
MACHINE: Final = Machine.of(regular_host(1, 2, 8, 2, 32 << 30))
CONFIG, POD, LIMITS = (
    yaml.safe_load(block)
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)


def admitted(pod: dict[str, Any]) -> PodAllocation:
    """Decide a pod on an empty host of two nodes, with the DaemonSet's settings."""
    config = load_config(BASE.read_text(), "the DaemonSet")
    managers = (*managers_beside_kubelet(config), *MANAGERS)
    rules = EffectivePolicy(MACHINE, resolve(config, MACHINE), managers)
    manifest = json.dumps(pod).encode()
    asked = load_pod(manifest, "the page", pod_level=config.gates.pod_level_resources)
    allocation = admit(rules, rules.empty_ledger(), asked).allocation
    assert allocation is not None
    return allocation


def test_the_configuration_is_one_for_an_agent_beside_a_kubelet() -> None:
    config = load_config(json.dumps(CONFIG), "the page")
    assert config.agent.kubelet.enabled
    assert config.static_pod_path is None
    assert config.agent.cdi_directory is None


def test_the_pod_gets_what_is_said_of_it() -> None:
    containers = admitted(POD).containers
    assert {each.name: each.isolation for each in containers} == {
        "worker": Isolation.CONTAINER,
        "logs": Isolation.POD,
    }
    worker, logs = (each.cpus for each in containers)
    assert worker is not None
    assert logs is not None
    assert (len(worker), len(logs)) == (2, 1)
    assert not worker & logs


def test_a_pod_opts_in_in_the_limits_of_a_container() -> None:
    assert LIMITS["resources"]["limits"]["numawarden.dev/exclusive"] == "1"

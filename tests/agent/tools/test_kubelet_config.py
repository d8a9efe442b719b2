"""A kubelet's configuration becomes the agent's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.load import config_yaml, load_config
from agent.config.model import ConfigError
from agent.managers.policy import CpuManagerPolicy, TopologyManagerScope
from agent.tools.kubelet_config import SHARED, import_kubelet_config
from sysfs.mask import Mask

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
#: As kubeadm writes the file, with a node's own settings.
KUBEADM = (
    HEADER
    + """\
authentication: {anonymous: {enabled: false}}
cgroupDriver: systemd
cgroupRoot: ""
clusterDNS: [10.96.0.10]
containerRuntimeEndpoint: ""
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
cpuManagerReconcilePeriod: 0s
evictionHard: {memory.available: 200Mi, nodefs.available: "10%"}
evictionPressureTransitionPeriod: 0s
featureGates:
  PodLevelResourceManagers: true
  CPUManager: true
  DynamicResourceAllocation: true
  PodsAPI: true
  NotYetInvented: true
kubeReserved: {cpu: 500m, memory: 512Mi}
logging: {flushFrequency: 0, verbosity: 0}
maxPods: 250
memoryManagerPolicy: Static
reservedMemory:
- numaNode: 0
  limits: {memory: 1736Mi}
reservedSystemCPUs: 0-1
staticPodPath: /etc/kubernetes/manifests
systemReserved: {cpu: "1", memory: 1Gi}
topologyManagerPolicy: restricted
topologyManagerScope: pod
somethingElse: 1
"""
)


def test_what_both_have_is_taken_and_the_rest_is_listed_with_why() -> None:
    imported = import_kubelet_config(KUBEADM.encode(), "config.yaml")
    config = imported.config
    assert config.cpu_manager_policy is CpuManagerPolicy.STATIC
    assert config.topology_manager_scope is TopologyManagerScope.POD
    assert config.reserved_system_cpus == Mask.parse("0-1")
    assert (config.max_pods, config.cpu_manager_reconcile_period) == (250, 10.0)
    assert config.cgroup_root == "/"
    assert config.static_pod_path == Path("/etc/kubernetes/manifests")
    assert dict(config.feature_gates) == {"PodLevelResourceManagers": True}
    left = {each.name: each.why for each in imported.left}
    assert left["clusterDNS"] == "the agent registers no node and gives pods no network"
    assert left["somethingElse"].startswith("not a key of KubeletConfiguration")
    assert left["featureGates.PodsAPI"] == "no decision of the agent depends on this gate"
    assert left["featureGates.NotYetInvented"].startswith("not a feature gate")
    assert left["cpuManagerReconcilePeriod"].startswith("stands for the default")


def test_every_key_of_the_file_is_either_taken_or_listed() -> None:
    imported = import_kubelet_config(KUBEADM.encode(), "config.yaml")
    named = {line.partition(":")[0] for line in KUBEADM.splitlines() if line[0].isalpha()}
    listed = {each.name.partition(".")[0] for each in imported.left}
    assert {*imported.taken} | listed == named - {"apiVersion", "kind"}


def test_limits_that_the_agent_does_not_write_are_named_as_keys_of_the_kubelet() -> None:
    text = (
        b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        b"memoryReservationPolicy: TieredReservation\nenforceNodeAllocatable: [pods]\n"
        b"cpuCFSQuota: false\n"
    )
    left = {each.name: each.why for each in import_kubelet_config(text, "kubelet.yaml").left}
    assert left == {
        "memoryReservationPolicy": "the agent writes memory.max and no other memory limit",
        "enforceNodeAllocatable": "the agent limits each pod, not kubepods as a whole nor the "
        "cgroups of the system",
        "cpuCFSQuota": "the agent writes cpu.max, with the kernel's period of 100 ms, unless "
        "agent.enforce leaves cpu out",
    }


def test_what_is_written_is_read_as_the_same_configuration() -> None:
    imported = import_kubelet_config(KUBEADM.encode(), "config.yaml")
    assert load_config(imported.yaml(), "imported") == imported.config
    assert "#   clusterDNS: " in imported.yaml()


def test_a_value_that_the_agent_does_not_read_is_left_out_by_itself() -> None:
    text = HEADER + "evictionHard: {memory.available: 1Gi, moon.available: 5%}\nmaxPods: -1\n"
    imported = import_kubelet_config(text.encode(), "config.yaml")
    assert list(imported.config.eviction_hard) == ["memory.available"]
    assert [each.name for each in imported.left] == ["evictionHard.moon.available", "maxPods"]


def test_no_thresholds_at_all_are_not_the_default_thresholds() -> None:
    imported = import_kubelet_config(f"{HEADER}evictionHard: {{}}\n".encode(), "config.yaml")
    assert not imported.config.eviction_hard


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kind: Pod\n", "expected KubeletConfiguration"),
        ("maxPods: 5\n", "expected KubeletConfiguration"),
        ("- 1\n", "found no mapping"),
        (HEADER + "cpuManagerPolicy: static\n", "systemReserved"),
    ],
)
def test_another_document_or_a_contradicting_one_is_rejected(text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        import_kubelet_config(text.encode(), "config.yaml")


@given(st.sets(st.sampled_from(SHARED)))
def test_a_whole_file_of_the_agents_own_defaults_loses_nothing(names: set[str]) -> None:
    """The defaults of the agent are the kubelet's, so that any of them may be left out."""
    lines = config_yaml(load_config("{}", "defaults")).splitlines(keepends=True)
    default = import_kubelet_config(HEADER.encode(), "config.yaml").config
    chosen = "".join(
        line for line in lines if line.partition(":")[0] in names and not line.endswith(":\n")
    )
    assert import_kubelet_config((HEADER + chosen).encode(), "config.yaml").config == default

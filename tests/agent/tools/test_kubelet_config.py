"""A kubelet's configuration becomes the agent's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.document import config_yaml
from agent.config.load import load_config
from agent.config.model import ConfigError, MemoryReservationPolicy, NodeAllocatable
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
    assert left["featureGates.NotYetInvented"] == left["featureGates.PodsAPI"]
    assert left["cpuManagerReconcilePeriod"].startswith("stands for the default")
    named = {line.partition(":")[0] for line in KUBEADM.splitlines() if line[0].isalpha()}
    listed = {each.name.partition(".")[0] for each in imported.left}
    assert {*imported.taken} | listed == named - {"apiVersion", "kind"}
    assert load_config(imported.yaml(), "imported") == config
    assert "#   clusterDNS: " in imported.yaml()


@pytest.mark.parametrize("amount", ["190m", "2", "4"])
def test_a_list_of_reserved_cpus_wins_over_amounts_beside_it(amount: str) -> None:
    text = (
        f"{HEADER}cpuManagerPolicy: static\nreservedSystemCPUs: 0,1\n"
        f"kubeReserved: {{cpu: {amount}, memory: 1Gi}}\nsystemReserved: {{cpu: {amount}}}\n"
    )
    imported = import_kubelet_config(text.encode(), "config.yaml")
    assert imported.config.reserved_system_cpus == Mask.parse("0-1")
    assert list(imported.config.kube_reserved) == ["memory"]
    why = "reservedSystemCPUs counts instead, as in the kubelet"
    assert [(each.name, each.why) for each in imported.left] == [
        ("systemReserved.cpu", why),
        ("kubeReserved.cpu", why),
    ]
    assert load_config(imported.yaml(), "imported") == imported.config


# Shows in differences.md: quota-gate
def test_a_gate_that_v1_37_has_locked_is_taken_with_the_rules_before() -> None:
    text = f"{HEADER}featureGates: {{DisableCPUQuotaWithExclusiveCPUs: false}}\n"
    config = import_kubelet_config(text.encode(), "config.yaml").config
    assert config.kubernetes_version == "v1.36"
    assert not config.gates.disable_cpu_quota_with_exclusive_cpus


def test_what_a_kubelet_writes_into_cgroups_is_taken_over() -> None:
    text = HEADER + (
        "memoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.8\n"
        "enforceNodeAllocatable: [pods, kube-reserved]\ncpuCFSQuota: false\n"
        "cpuCFSQuotaPeriod: 5ms\nfeatureGates: {MemoryQoS: true}\n"
        "systemPartition: {memoryLimit: 1Gi, namespaces: [kube-system]}\n"
    )
    imported = import_kubelet_config(text.encode(), "kubelet.yaml")
    config = imported.config
    assert config.memory_reservation_policy is MemoryReservationPolicy.TIERED
    assert (config.memory_throttling_factor, config.memory_qos) == (0.8, True)
    assert NodeAllocatable.PODS in config.enforce_node_allocatable
    assert (config.cpu_cfs_quota, config.cpu_cfs_quota_period) == (False, 0.005)
    assert [each.name for each in imported.left] == ["systemPartition"]
    assert load_config(imported.yaml(), "imported") == config


def test_a_value_that_the_agent_does_not_read_is_left_out_by_itself() -> None:
    text = HEADER + "evictionHard: {memory.available: 1Gi, moon.available: 5%}\nmaxPods: -1\n"
    imported = import_kubelet_config(text.encode(), "config.yaml")
    assert list(imported.config.eviction_hard) == ["memory.available"]
    assert [each.name for each in imported.left] == ["evictionHard.moon.available", "maxPods"]
    # No thresholds at all are not the default thresholds.
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

"""What `kubernetesVersion` decides, shown on CPUs and on whole pods (docs/differences.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.managers import versions
from agent.managers.admission import admit
from agent.managers.cpu.distribute import equal_shares
from agent.managers.cpu.take import take_by_topology
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine
from agent.managers.metrics import MEMORY_PINNING_REQUESTS
from agent.managers.policy import CpuPolicyOptions, PluginDevice
from agent.managers.versions import OLDEST, KubernetesVersion, VersionRules, steps
from agent.pods.model import QosClass
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, GIB, POD, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources

if TYPE_CHECKING:
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Resources

V1_36, V1_37, V1_38 = KubernetesVersion
ROOT: Final = Path(versions.__file__).parents[2]
SPREAD: Final = CpuPolicyOptions(distribute_cpus_across_cores=True)
GPU: Final = "example.com/gpu"
#: Two sockets with a node of four cores each; the threads of a core have neighbouring numbers.
NEIGHBOURS: Final = CpuTopology.from_rows(
    [(cpu, cpu // 2, cpu // 8, cpu // 8, cpu // 8) for cpu in range(16)]
)
#: Four nodes of eight CPUs on two sockets, with a device on each.
FOUR: Final = Machine.of(regular_host(packages=2, nodes_per_package=2, cores_per_node=8, threads=1))
GPUS: Final = {GPU: tuple(PluginDevice(f"g{node}", Mask.of(node)) for node in range(4))}


class TestSpreadingOverCores:
    # Shows in differences.md: spread-over-cores
    @pytest.mark.parametrize(
        ("version", "free", "count", "cpus"),
        [
            (V1_37, "1-15", 4, "1-4"),
            (V1_38, "0-15", 4, "0,2,4,6"),
            (V1_38, "0-15", 6, "0-4,6"),
            (V1_38, "1-15", 5, "1-4,6"),
        ],
    )
    def test_counts_numbers_until_v1_37_and_cores_from_v1_38_on(
        self, version: KubernetesVersion, free: str, count: int, cpus: str
    ) -> None:
        taken = take_by_topology(NEIGHBOURS, SPREAD, Mask.parse(free), count, None, version)
        assert str(taken) == cpus

    # Shows in differences.md: align-by-socket-spread
    @pytest.mark.parametrize("version", KubernetesVersion)
    def test_keeps_to_one_socket_with_align_by_socket(self, version: KubernetesVersion) -> None:
        """120 CPUs of two sockets of 126 free ones (kubernetes issue 141237)."""
        host = Machine.of(
            regular_host(packages=2, nodes_per_package=4, cores_per_node=16, threads=2)
        ).cpus
        last = [Mask(host.nodes[node].cpus) for node in (3, 7)]
        free = host.all - Mask.of(*(each.lowest for each in last))
        for options in (
            CpuPolicyOptions(distribute_cpus_across_cores=True, align_by_socket=True),
            CpuPolicyOptions(distribute_cpus_across_numa=True, align_by_socket=True),
        ):
            taken = take_by_topology(host, options, free, 120, None, version)
            assert sum(1 for socket in host.sockets if socket.cpus & taken.bits) == 1


class TestDistributingOverTheNodesOfAHint:
    # Shows in differences.md: distribute-over-hint
    @pytest.mark.parametrize(
        ("version", "cpus"), [(V1_36, "8-13"), (V1_37, "8-13"), (V1_38, "1,8-9,16-17,24")]
    )
    def test_keeps_them_all_from_v1_38_on(self, version: KubernetesVersion, cpus: str) -> None:
        rules = make_rules(
            FOUR, BEST_EFFORT, CONTAINER, memory=False, devices=GPUS, version=version,
            distribute_cpus_across_numa=True,
        )  # fmt: skip
        asked = pod(app("a", guaranteed(f"cpu=6 memory=1Gi {GPU}=4")))
        assert str(allocated(rules, asked).exclusive_cpus) == cpus

    # Shows in differences.md: distribute-over-hint
    def test_keeps_as_many_as_can_give_equal_shares(self) -> None:
        """The kubelet packs where not all of them can."""
        free = Mask.parse("0-15,16")  # the third node has one CPU, the fourth none
        shares = equal_shares(FOUR.cpus, free.bits, 9, 1, None, 3)
        assert shares is not None
        assert sorted(share.base + share.extra_groups for share in shares) == [4, 5]


# Shows in differences.md: shared-container-memory
def test_a_container_that_shares_a_budget_is_not_a_request_for_memory_from_v1_37_on() -> None:
    def requests(version: KubernetesVersion) -> int:
        rules = make_rules(topology=BEST_EFFORT, scope=CONTAINER, version=version)
        own = guaranteed("cpu=2 memory=1Gi")
        asked = pod(app("a", own), app("b"), of_pod=guaranteed("cpu=4 memory=4Gi"))
        decision = admit(rules, rules.empty_ledger(), asked)
        assert decision.admitted
        return decision.counters[MEMORY_PINNING_REQUESTS.name, ()]

    assert list(map(requests, KubernetesVersion)) == [2, 1, 1]


# Shows in differences.md: empty-resources
@pytest.mark.parametrize("version", KubernetesVersion)
def test_resources_that_state_no_amount_are_as_if_left_out(version: KubernetesVersion) -> None:
    """Kubelet v1.36 makes the pod BestEffort (kubernetes issue 135082)."""
    rules = make_rules(version=version)
    own = guaranteed("cpu=2 memory=1Gi")
    empty, without = (
        admit(rules, rules.empty_ledger(), pod(app("a", own), of_pod=of_pod))
        for of_pod in (resources(), None)
    )
    assert empty.allocation is not None
    assert without.allocation is not None
    assert empty.allocation.qos is QosClass.GUARANTEED
    assert empty.allocation.containers == without.allocation.containers
    assert empty.warnings == (
        "spec.resources: it states no amount, so it is as if it were left out",
    )


TWO: Final = app("a", guaranteed("cpu=2 memory=2Gi"))
IN_TURN: Final = [
    init("i", guaranteed("cpu=4 memory=1Gi")),
    app("a", guaranteed("cpu=1 memory=1Gi")),
]
OPEN: Final = [TWO, app("b", guaranteed("memory=1Gi"))]


class TestLimitsThatFollowFromTheContainers:
    """kubernetes pull request 140514; the gate is off before v1.37."""

    @staticmethod
    def rules(*, fixed: bool = True) -> EffectivePolicy:
        return make_rules(gates={"pod_level_resources_fix_defaulting": fixed})

    # Shows in differences.md: limits-from-containers
    @pytest.mark.parametrize(
        ("of_pod", "containers", "limits"),
        [
            pytest.param(resources("cpu=2"), [TWO], (2000, 2 * GIB), id="their sum"),
            pytest.param(resources("cpu=3 memory=1Gi"), IN_TURN, (4000, GIB), id="init in turn"),
            pytest.param(resources("cpu=4 memory=4Gi"), [TWO], (4000, 4 * GIB), id="the request"),
            pytest.param(resources("cpu=4 memory=4Gi"), OPEN, (None, 4 * GIB), id="one has none"),
            pytest.param(
                resources("cpu=2 memory=1Gi", "cpu=6"), IN_TURN[1:], (6000, GIB), id="stated"
            ),
        ],
    )
    def test_are_their_sum_where_all_state_one(
        self, of_pod: Resources, containers: list[Container], limits: tuple[int | None, int]
    ) -> None:
        rules = self.rules()
        asked = pod(*containers, of_pod=of_pod)
        allocation = allocated(rules, asked)
        assert (allocation.cpu.limit_millis, allocation.limits.get("memory")) == limits

    # Shows in differences.md: limits-from-containers
    @pytest.mark.parametrize(
        ("fixed", "qos"), [(False, QosClass.BURSTABLE), (True, QosClass.GUARANTEED)]
    )
    def test_can_make_a_pod_guaranteed(self, *, fixed: bool, qos: QosClass) -> None:
        rules, own = self.rules(fixed=fixed), guaranteed("cpu=2 memory=2Gi")
        asked = pod(app("a", own), of_pod=resources("cpu=2 memory=2Gi"))
        allocation = allocated(rules, asked)
        assert allocation.qos is qos
        assert bool(allocation.exclusive_cpus) is fixed


@pytest.mark.parametrize("first", [V1_36, V1_38])
@pytest.mark.parametrize("of_pod", [None, resources("cpu=6 memory=6Gi")])
def test_another_version_decides_no_allocation_again(
    first: KubernetesVersion, of_pod: Resources | None
) -> None:
    def rules(version: KubernetesVersion) -> EffectivePolicy:
        return make_rules(
            FOUR, BEST_EFFORT, POD, devices=GPUS, version=version,
            gates={"pod_level_resources_fix_defaulting": version >= V1_37},
            distribute_cpus_across_numa=True,
        )  # fmt: skip

    asked = pod(app("a", guaranteed(f"cpu=6 memory=6Gi {GPU}=4")), of_pod=of_pod)
    ledger = with_pod(rules(first), asked)
    for version in KubernetesVersion:
        again = admit(rules(version), ledger, asked)
        assert again.already_admitted
        assert again.ledger is ledger


class TestTable:
    @pytest.mark.parametrize("name", VersionRules.__struct_fields__)
    def test_a_rule_is_another_in_some_version(self, name: str) -> None:
        first, *later = steps(lambda rules: getattr(rules, name))
        assert first is OLDEST
        assert later

    def test_no_other_module_names_a_version(self) -> None:
        named = [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for path in sorted((ROOT / "agent").rglob("*.py"))
            if path != Path(versions.__file__)
            for node in ast.walk(ast.parse(path.read_text()))
            if (isinstance(node, ast.Attribute) and re.fullmatch(r"V1_\d+", node.attr))
            or (isinstance(node, ast.Constant) and re.fullmatch(r"v?1\.3\d", str(node.value)))
        ]
        assert named == []

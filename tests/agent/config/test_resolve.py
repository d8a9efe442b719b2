from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.amounts import Threshold
from agent.config.capacity import nothing_allocatable, overcommitted_memory
from agent.config.load import load_config
from agent.config.model import Config, ConfigError
from agent.config.reservations import threshold_bytes
from agent.config.resolve import resolve, resolve_what_fits
from agent.managers.memory.reservation import spread
from agent.managers.policy import (
    MemoryManagerPolicy,
    MemoryPolicy,
    NodeFit,
    PluginDevice,
    Policy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.quantity import Quantity
from sysfs.host import WithheldCpus
from sysfs.mask import EMPTY, Mask
from tests.agent.config.machines import GIB, MIB, machine
from tests.conformance.recorded_config import resolved_policy, start_problems
from tests.shared import needs_shared, shared_dir

if TYPE_CHECKING:
    from agent.managers.machine import Machine


_HOST = machine({0: 4 * GIB, 1: 4 * GIB}, hugepages={0: {2 * MIB: 8}})


def _resolve(text: str, host: Machine = _HOST, offline: Mask = EMPTY) -> Policy:
    return resolve(load_config(text, "x"), host, offline=offline, source="x")


def _problems(text: str, host: Machine = _HOST) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _resolve(text, host)
    return [str(problem) for problem in caught.value.problems]


def test_defaults_resolve_to_managers_that_do_nothing_and_to_node_fit() -> None:
    kept = NodeFit(reserved={"cpu": 0, "memory": 100 * MIB}, max_pods=110)
    unknown = MemoryPolicy(classes={0: "", 1: ""})
    assert resolve(Config(), _HOST) == Policy(memory=unknown, fit=kept)


_AMOUNTS: Final = (
    "systemReserved: {cpu: 500m, memory: 1Gi, hugepages-2Mi: 4Mi}\n"
    "kubeReserved: {cpu: 250m, memory: 1Gi}\nevictionHard: {memory.available: 512Mi}\n"
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (_AMOUNTS, {"cpu": 750, "memory": 2560 * MIB, "hugepages-2Mi": 4 * MIB}),
        # A list of CPUs wins over amounts of them, without the static policy too.
        (
            f"{_AMOUNTS}reservedSystemCPUs: 0-2\n",
            {"cpu": 3000, "memory": 2560 * MIB, "hugepages-2Mi": 4 * MIB},
        ),
        # One that is offline takes nothing from those that run.
        ("cpuManagerPolicy: static\nreservedSystemCPUs: 0,8\n", {"cpu": 1000, "memory": 100 * MIB}),
        ("evictionHard: {memory.available: 25%}\n", {"cpu": 0, "memory": 2 * GIB}),
    ],
)
def test_all_reservations_are_kept_without_managers(text: str, kept: dict[str, int]) -> None:
    fit = _resolve(text, offline=Mask.of(8)).fit
    assert fit is not None
    assert fit.reserved == kept


def test_limits_of_pods_and_ignored_resources_are_taken_over() -> None:
    text = "maxPods: 250\npodsPerCore: 10\nagent: {ignoredResources: [a.b/c]%s}\n"
    fit = _resolve(text % "").fit
    assert fit is not None
    assert (fit.max_pods, fit.pods_per_core) == (250, 10)
    assert fit.ignored == frozenset({"a.b/c"})
    assert not fit.beside_kubelet
    beside = _resolve(text % ", kubelet: {enabled: true}").fit
    assert beside == replace(fit, beside_kubelet=True)


def test_a_configuration_that_does_not_fit_the_host_keeps_its_limits() -> None:
    text = "cpuManagerPolicy: static\nreservedSystemCPUs: 0,99\nmaxPods: 7\n"
    fit = resolve_what_fits(load_config(text, "x"), _HOST).fit
    assert fit is not None
    assert (fit.max_pods, fit.reserved["cpu"]) == (7, 1000)


def test_nothing_left_for_pods_is_worth_a_note() -> None:
    text = (
        "systemReserved: {cpu: 8, memory: 8Gi}\n"
        "agent: {devices: {a.b/c: [{id: x, healthy: false}], a.b/d: [{id: y}]}}\n"
    )
    found = list(nothing_allocatable(EffectivePolicy(_HOST, _resolve(text), MANAGERS)))
    assert [line.split(" is allocatable")[0] for line in found] == [
        "nothing of cpu",
        "nothing of memory",
        "nothing of a.b/c",
    ]
    assert all(line.endswith("no pod that requests any of it is admitted") for line in found)


def test_a_quantity_of_cpus_is_rounded_up_and_chosen_by_the_policy() -> None:
    text = "cpuManagerPolicy: static\nsystemReserved: {cpu: 2500m}\nkubeReserved: {cpu: 2600m}\n"
    assert _resolve(text).cpu.reserved == Mask.parse("0-5")
    spread = f'{text}cpuManagerPolicyOptions: {{distribute-cpus-across-numa: "true"}}\n'
    assert _resolve(spread).cpu.reserved == Mask.parse("0-2,4-6")


def test_a_reserved_cpu_may_be_offline() -> None:
    text = "cpuManagerPolicy: static\nreservedSystemCPUs: 0,8\n"
    assert _resolve(text, offline=Mask.of(8)).cpu.reserved == Mask.of(0)
    assert "no CPU 8; its CPUs are 0-7" in _problems(text)[0]


def test_a_reserved_cpu_may_be_withheld_as_long_as_another_is_not() -> None:
    withheld = replace(_HOST, withheld=(WithheldCpus(Mask.of(8, 9), "/ovs.slice"),))
    text = "cpuManagerPolicy: static\nreservedSystemCPUs: 0,8-9\n"
    policy = _resolve(text, withheld)
    assert policy.cpu.reserved == Mask.of(0)
    assert policy.fit is not None
    assert policy.fit.reserved["cpu"] == 1000
    text = "cpuManagerPolicy: static\nreservedSystemCPUs: '8-9'\n"
    (problem,) = _problems(text, withheld)
    assert problem == (
        "reservedSystemCPUs: the node's shared pool can have none of its CPUs (8-9): CPUs 8-9 "
        "belong to the partition /ovs.slice; name one of 0-7 as well"
    )
    text = "cpuManagerPolicy: static\nreservedSystemCPUs: 0,10\n"
    assert "no CPU 10; its CPUs are 0-9" in _problems(text, withheld)[0]


def test_memory_is_reserved_as_listed() -> None:
    policy = _resolve(
        "memoryManagerPolicy: Static\nkubeReserved: {memory: 412Mi, hugepages-2Mi: 2Mi}\n"
        "reservedMemory:\n- {numaNode: 0, limits: {memory: 256Mi, hugepages-2Mi: 2Mi}}\n"
        "- {numaNode: 1, limits: {memory: 256Mi}}\n"
    )
    assert policy.memory.policy is MemoryManagerPolicy.STATIC
    assert policy.memory.reserved == {
        0: {"memory": 256 * MIB, "hugepages-2Mi": 2 * MIB},
        1: {"memory": 256 * MIB},
    }


# Shows in differences.md: reserved-memory
def test_memory_is_derived_where_it_is_not_listed() -> None:
    policy = _resolve("memoryManagerPolicy: Static\nsystemReserved: {memory: 1Gi}\n")
    reserved = policy.memory.reserved
    assert sum(types["memory"] for types in reserved.values()) == (1024 + 100) * MIB
    assert set(reserved) == {0, 1}


def test_topology_gates_and_devices_are_taken_over() -> None:
    policy = _resolve(
        "topologyManagerPolicy: best-effort\ntopologyManagerScope: pod\n"
        'topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}\n'
        "featureGates: {PodLevelResourceManagers: true}\n"
        "agent: {devices: {a.b/c: [{id: x, numaNodes: [1]}]}}\n"
    )
    assert policy.topology.policy is TopologyManagerPolicy.BEST_EFFORT
    assert policy.topology.scope is TopologyManagerScope.POD
    assert policy.topology.prefer_closest_numa_nodes
    assert policy.pod_level_managers
    assert policy.devices == {"a.b/c": (PluginDevice("x", Mask.of(1)),)}


_STATIC = "memoryManagerPolicy: Static\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpuManagerPolicy: static\nsystemReserved: {cpu: 9}\n",
         "systemReserved: systemReserved.cpu and kubeReserved.cpu reserve 9 CPUs, this host has 8"),
        ("cpuManagerPolicy: static\nreservedSystemCPUs: 7-9\n", "no CPU 8-9; its CPUs are 0-7"),
        (_STATIC + "evictionHard: {}\n", "needs memory for the system"),
        (_STATIC + "reservedMemory: [{numaNode: 0, limits: {memory: 99Mi}}]\n",
         "the nodes together reserve 99Mi of memory, but"),
        (_STATIC + "reservedMemory: [{numaNode: 7, limits: {memory: 1Mi}},"
         "{numaNode: 0, limits: {memory: 100Mi}}]\n", "no NUMA node 7; its nodes are 0-1"),
        (_STATIC + "systemReserved: {hugepages-1Gi: 1Gi}\n", "hugepages-1Gi: no NUMA node"),
        (_STATIC + "systemReserved: {hugepages-2Mi: 3Mi}\n", "not a whole number of pages"),
        ("agent: {isolation: {memoryClasses: {hbm: 1-3}}}\n", "hbm: this host has no node 2-3"),
        ("agent: {isolation: {memoryClasses: {hbm: 1, cxl: 0-1}}}\n", "node 1 has another class"),
        ("agent: {devices: {a.b/c: [{id: x, numaNodes: [1, 5]}]}}\n",
         "device x: this host has no NUMA node 5"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_host_is_reported_in_one_line(text: str, words: str) -> None:
    (problem,) = _problems(text)
    assert words in problem


def test_align_by_socket_needs_sockets_that_are_no_smaller_than_nodes() -> None:
    text = (
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0\n"
        "featureGates: {CPUManagerPolicyAlphaOptions: true}\n"
        'cpuManagerPolicyOptions: {align-by-socket: "true"}\n'
    )
    assert _resolve(text).cpu.options.align_by_socket
    many = machine({0: GIB, 1: GIB}, sockets=4)
    assert "more sockets (4) than NUMA nodes with CPUs (2)" in _problems(text, many)[0]


def test_reserved_memory_that_huge_pages_have_taken_is_noted_and_not_a_mistake() -> None:
    host = machine({0: GIB, 1: GIB}, hugepages={0: {2 * MIB: 512}})
    policy = _resolve(_STATIC + "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n", host)
    (line,) = overcommitted_memory(policy, host)
    assert line == "node 0 has 0 of memory and 100Mi reserved: nothing of it is left for pods"
    assert not list(overcommitted_memory(replace(policy, memory=Policy().memory), host))


#: The kubelet does not start with these, and we do, on purpose.
_RIGHT_INSTEAD = {
    # Reserved memory that is not listed is derived.
    "named/start/mem-no-reserved",
    # The number of NUMA nodes is not limited.
    "named/start/nine-nodes",
}
#: The kubelet starts with these: with policy none it never looks at scope and options. A name
#: that does not exist is rejected here wherever it stands.
_REJECTED_INSTEAD = {"named/start/tm-none-unknown-scope", "named/start/tm-none-unknown-option"}


def _cases(family: str) -> list[dict[str, Any]]:
    folder = shared_dir()
    assert folder is not None
    with gzip.open(folder / "vectors" / f"{family}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.shared
@needs_shared("vectors/admit_named.jsonl.gz")
@pytest.mark.parametrize("family", ["admit_named", "lifecycle"])
def test_recorded_configurations_resolve_to_what_the_kubelet_started_with(family: str) -> None:
    wrong = []
    for case in _cases(family):
        rejected = "start_error" in case["expected"] and case["name"] not in _RIGHT_INSTEAD
        problems = start_problems(case)
        if rejected or case["name"] in _REJECTED_INSTEAD:
            if len(problems) != 1:
                wrong.append((case["name"], problems))
        elif problems or not _equals_recorded(case):
            wrong.append((case["name"], problems))
    assert not wrong


def _reserves_as_recorded(case: dict[str, Any], reserved: Mask) -> bool:
    """Where cores differ in size a quantity is reserved on the fewest cores (differences.md)."""
    recorded = Mask.parse(case["expected"]["initial"].get("reserved", ""))
    return reserved == recorded or (bool(case.get("irregular")) and len(reserved) == len(recorded))


def _equals_recorded(case: dict[str, Any]) -> bool:
    if "start_error" in case["expected"]:
        return True
    policy, config = resolved_policy(case), case["config"]
    names = (policy.cpu.policy, policy.memory.policy, policy.topology.policy, policy.topology.scope)
    listed: dict[int, dict[str, int]] = {}
    for entry in config["memory"].get("reserved") or ():
        amounts = {name: Quantity.parse(text).value for name, text in entry["limits"].items()}
        listed.setdefault(entry["numa"], {}).update(amounts)
    static = config["memory"]["policy"] == "Static"
    return (
        names
        == (
            config["cpu"]["policy"],
            config["memory"]["policy"],
            config["topology"]["policy"],
            config["topology"]["scope"],
        )
        and _reserves_as_recorded(case, policy.cpu.reserved)
        and policy.memory.reserved == (listed if static else {})
        and set(policy.devices) == set(config.get("devices") or ())
    )


def test_closest_nodes_need_distances_unless_nothing_is_aligned() -> None:
    closest = 'topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}\n'
    known, blind = _HOST.nodes
    host = replace(_HOST, nodes=(known, replace(blind, distances={})))
    (problem,) = _problems(f"topologyManagerPolicy: restricted\n{closest}", host)
    assert "no distances are known for NUMA nodes 1" in problem
    assert _resolve(closest, host).topology.policy is TopologyManagerPolicy.NONE


# Shows in differences.md: many-nodes
def test_a_host_of_many_nodes_needs_no_option() -> None:
    host = machine(dict.fromkeys(range(9), GIB), cpu_nodes=tuple(range(9)))
    policy = _resolve("topologyManagerPolicy: restricted\n", host)
    assert policy.topology.policy is TopologyManagerPolicy.RESTRICTED


def test_the_class_of_a_node_is_as_configured_else_as_the_host_shows_it() -> None:
    first, second = _HOST.nodes
    shown = (replace(first, memory_class="dram"), replace(second, memory_class="dram"))
    none = replace(first, id=2, memory_bytes=0)
    host = replace(_HOST, nodes=(*shown, none))
    text = "agent: {isolation: {memory: '!hbm', memoryClasses: {hbm: 1}}}\n"
    for resolved in (_resolve(text, host), resolve_what_fits(load_config(text, "x"), host)):
        assert resolved.memory.classes == {0: "dram", 1: "hbm"}
        assert resolved.memory.usual_classes == "!hbm"


_UNKNOWN: Final = machine({0: 4 * GIB, 1: None})
_IGNORED: Final = "agent: {ignoredResources: [memory]}\n"


def test_managing_memory_needs_to_know_how_much_there_is() -> None:
    static_policy = _STATIC + "evictionHard: {memory.available: 1Gi}\n"
    (fit,) = _problems("maxPods: 110", _UNKNOWN)
    assert "agent.ignoredResources" in fit
    assert "the memory of node 1 of this host is not known" in fit
    static, also_fit = _problems(static_policy, _UNKNOWN)
    assert "memoryManagerPolicy" in static
    assert also_fit == fit
    assert _problems(static_policy + _IGNORED, _UNKNOWN) == [static]
    _resolve("maxPods: 110", machine({0: 4 * GIB, 1: 0}))


def test_where_no_memory_is_managed_it_need_not_be_known() -> None:
    effective = EffectivePolicy(_UNKNOWN, _resolve(_IGNORED, _UNKNOWN), MANAGERS)
    assert effective.allocatable is not None
    assert "memory" not in effective.allocatable.amounts
    assert list(nothing_allocatable(effective)) == []


@pytest.mark.parametrize(
    ("threshold", "capacity", "size"),
    [
        (Threshold(percent="0"), GIB, 0),
        (Threshold(percent="100"), GIB, GIB),
        (Threshold(percent="50"), GIB, GIB // 2),
        # 0.05 in single precision is a little more than 0.05, 0.1 as well, 0.15 too.
        (Threshold(percent="5"), 10**12, 50000000745),
        (Threshold(percent="10"), 10**12, 100000001490),
        (Threshold(percent="15"), 10**12, 150000005960),
        (Threshold(Quantity.parse("1Mi")), 5, MIB),
    ],
)
def test_a_share_has_the_kubelets_precision(threshold: Threshold, capacity: int, size: int) -> None:
    assert threshold_bytes(threshold, capacity) == size


_EVEN: Final = {0: GIB, 1: GIB}
_PAGES: Final = {0: {2 * MIB: 3}, 1: {2 * MIB: 1, GIB: 0}}
#: The memory of nodes and their pages, what is reserved, and how much of it on which node.
SPREADS: Final = {
    "by the memory of each": ({0: 3 * GIB, 1: GIB}, {}, "memory", {0: 300 * MIB, 1: 100 * MIB}),
    "the rest to the lowest": (_EVEN, {}, "memory", {0: 2 * MIB + 1, 1: MIB}),
    "none where there are no CPUs": (_EVEN | {2: 8 * GIB}, {}, "memory", {0: MIB, 1: MIB}),
    "unless the others would have less than half": (
        _EVEN | {2: 2 * GIB, 3: 6 * GIB}, {}, "memory",
        {0: GIB // 2, 1: GIB // 2, 2: GIB // 2, 3: 3 * GIB // 2},
    ),
    "more than half only where memory-only nodes are full": (
        _EVEN | {2: GIB}, {}, "memory", {0: 3 * GIB // 4, 1: 3 * GIB // 4, 2: GIB},
    ),
    "all of nodes with CPUs where no other has memory": (
        _EVEN | {2: 0}, {}, "memory", {0: GIB, 1: GIB},
    ),
    "the only node with CPUs of a fake NUMA": (
        {0: GIB + MIB} | dict.fromkeys(range(2, 6), GIB), {}, "memory",
        {0: GIB // 2} | dict.fromkeys(range(2, 6), GIB // 8),
    ),
    "a half of whole pages": (
        _EVEN | {2: GIB}, {0: {2 * MIB: 3}, 2: {2 * MIB: 4}}, "hugepages-2Mi",
        {0: 2 * MIB, 2: 6 * MIB},
    ),
    "whole pages": (_EVEN, _PAGES, "hugepages-2Mi", {0: 4 * MIB}),
    "whole pages where there are any": (_EVEN, _PAGES, "hugepages-2Mi", {0: 6 * MIB, 1: 2 * MIB}),
    "no memory that is pages": (_EVEN, {0: {2 * MIB: 512}}, "memory", {1: 100 * MIB}),
}  # fmt: skip


@pytest.mark.parametrize("case", SPREADS)
def test_what_is_reserved_without_a_node_is_spread(case: str) -> None:
    memory, pages, kind, expected = SPREADS[case]
    reserved = spread(machine(memory, hugepages=pages), {kind: sum(expected.values())})
    assert reserved == {node: {kind: size} for node, size in expected.items()}


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 2**40), min_size=2, max_size=6),
    st.integers(0, 2**42),
    st.data(),
)
def test_what_is_spread_sums_to_the_total_and_fits_where_it_can(
    memory: dict[int, int], total: int, data: st.DataObject
) -> None:
    with_cpus = data.draw(st.lists(st.sampled_from(sorted(memory)), min_size=1, unique=True))
    host = machine(memory, cpu_nodes=tuple(with_cpus))
    reserved = spread(host, {"memory": total})
    assert sum(types["memory"] for types in reserved.values()) == total
    assert all(types["memory"] > 0 for types in reserved.values())
    if total <= sum(memory.values()):
        assert all(types["memory"] <= memory[node] for node, types in reserved.items())
    near = sum(memory[node] for node in with_cpus)
    if near == sum(memory.values()) or total <= near // 2 // MIB * MIB:
        assert total > near or set(reserved) <= set(with_cpus)
    elif total <= sum(memory.values()) - near // 2:
        kept = sum(types["memory"] for node, types in reserved.items() if node in with_cpus)
        assert kept <= near // 2

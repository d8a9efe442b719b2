"""`agent.pools`: what a file says, and what fits a host."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from agent.config.document import config_yaml
from agent.config.load import load_config
from agent.config.model import ConfigError
from agent.config.resolve import resolve
from agent.managers.cpu.topology import CpuTopology
from agent.managers.policy import Pool, PoolMemory
from agent.pods.model import QosClass
from sysfs.host import CoreKind, WithheldCpus
from sysfs.mask import EMPTY, Mask
from tests.agent.config.machines import GIB, machine

#: Node 0 has CPUs 0-3, node 1 has 4-7.
HOST: Final = machine({0: 4 * GIB, 1: 4 * GIB})
STATIC: Final = (
    "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n"
    "cpuManagerPolicyOptions: {strict-cpu-reservation: 'true'}\n"
)


def test_a_pool_has_its_cpus_and_those_of_its_nodes() -> None:
    text = (
        "agent: {pools: [{name: a, cpus: 0-1, nodes: 1, namespaces: [x, y]},"
        " {name: b, cpus: 3, qosClasses: [BestEffort], memory: bound}]}"
    )
    expected = (
        Pool("a", Mask.parse("0-1,4-7"), ("x", "y")),
        Pool(
            "b", Mask.of(3), qos_classes=frozenset({QosClass.BEST_EFFORT}), memory=PoolMemory.BOUND
        ),
    )
    config = load_config(text, "x")
    assert resolve(config, HOST).pools == expected
    assert load_config(config_yaml(config), "x") == config


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("perNode: true", {"a-0": "0-3", "a-1": "4-7"}),
        ("perNode: true, cpus: 1-2", {"a-0": "1-2"}),
        ("perNode: true, cpus: 2-5", {"a-0": "2-3", "a-1": "4-5"}),
        ("isolated: true", {"a": "2,6"}),
        ("isolated: true, cpus: 0", {"a": "0,2,6"}),
        ("perNode: true, isolated: true", {"a-0": "2", "a-1": "6"}),
        ("coreKinds: [efficiency]", {"a": "4-7"}),
        ("coreKinds: [efficiency, performance]", {"a": "0-7"}),
    ],
)
def test_a_pool_has_the_cpus_of_its_kinds(entry: str, expected: dict[str, str]) -> None:
    kinds = {CoreKind.PERFORMANCE: Mask.parse("0-3"), CoreKind.EFFICIENCY: Mask.parse("4-7")}
    host = replace(HOST, isolated=Mask.parse("2,6"), core_kinds=kinds)
    config = load_config(f"agent: {{pools: [{{name: a, {entry}}}]}}", "x")
    assert {pool.name: str(pool.cpus) for pool in resolve(config, host).pools} == expected
    assert load_config(config_yaml(config), "x") == config


TAKEN: Final = "cpus: 1, namespaces: [n], qosClasses: [Burstable]"
#: The file, and of each mistake a part.
MISTAKES: Final[dict[str, tuple[str, list[str]]]] = {
    "no name": ("agent: {pools: [{cpus: 1}]}", ["agent.pools[0]: name is missing"]),
    "no name of a pool": ("agent: {pools: [{name: A b, cpus: 1}]}", ['"A b" is not the name']),
    "twice": (
        "agent: {pools: [{name: a, cpus: 1}, {name: a, cpus: 2}]}",
        ['agent.pools[1]: pool "a" is listed twice'],
    ),
    "in two": (
        f"agent: {{pools: [{{name: a, {TAKEN}}}, {{name: b, {TAKEN}}}]}}",
        ["namespace n is in the pool a, too", "QoS class Burstable is in the pool a, too"],
    ),
    "no CPUs": ("agent: {pools: [{name: a}]}", ["pool a has no CPU: this host has none for it"]),
    "no such cores": (
        "agent: {pools: [{name: a, coreKinds: [efficiency]}]}",
        ["pool a has no CPU: this host has none for it; list others"],
    ),
    "per node for namespaces": (
        "agent: {pools: [{name: a, perNode: true, namespaces: [n]}]}",
        ["with perNode it has several pools, which pods choose by annotation"],
    ),
    "made twice": (
        "agent: {pools: [{name: a, perNode: true}, {name: a-1, cpus: 2}]}",
        ["pool a-1 is made twice; call one of them otherwise"],
    ),
    "too long for its nodes": (
        f"agent: {{pools: [{{name: {'a' * 62}, perNode: true}}]}}",
        [f"pool {'a' * 62}-{node}: no annotation can name it: use at most 63" for node in (0, 1)],
    ),
    "no such CPU": (
        "agent: {pools: [{name: a, cpus: 3-8}]}",
        ["agent.pools[0]: pool a: this host has no CPU 8; its CPUs are 0-7"],
    ),
    "no such node": (
        "agent: {pools: [{name: a, nodes: 1-2}]}", ["pool a: this host has no NUMA node 2"],
    ),
    "CPUs of the system alone": (
        f"{STATIC}agent: {{pools: [{{name: a, cpus: 0-1}}]}}",
        ["pool a has no CPU: no shared container gets 0-1; list others"],
    ),
    "too many": (
        f"agent: {{pools: [{', '.join(f'{{name: p{n}, cpus: 1}}' for n in range(70))}]}}",
        ["agent.pools[64]: there can be 64 pools at most"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_its_place(text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(load_config(text, "x"), HOST)
    found = [str(problem) for problem in raised.value.problems]
    assert len(found) == len(parts)
    assert all(part in line for part, line in zip(parts, found, strict=True)), found


ISOLATING: Final = "cpuManagerPolicy: static\n{}\nagent: {{isolatedCPUs: exclusive}}"


@pytest.mark.parametrize(
    ("isolated", "reserved", "cpus"),
    [
        ("0-1,4-5", "systemReserved: {cpu: '2'}", "2-3"),
        ("2-3,6-7", "systemReserved: {cpu: '2'}", "0-1"),
        ("0-6", "systemReserved: {cpu: '1'}", "7"),
        ("2-3", "reservedSystemCPUs: 0,2,8", "0,2"),
    ],
)
def test_reserved_cpus_are_not_of_isolcpus_that_are_for_exclusive_use(
    isolated: str, reserved: str, cpus: str
) -> None:
    config = load_config(ISOLATING.format(reserved), "x")
    host = replace(HOST, isolated=Mask.parse(isolated))
    assert str(resolve(config, host, offline=Mask.of(8)).cpu.reserved) == cpus


@pytest.mark.parametrize(
    ("isolated", "reserved", "why"),
    [
        (
            "0-6",
            "systemReserved: {cpu: '2'}",
            "reserve 2 CPUs, this host has 1 beside those of iso",
        ),
        ("2-3", "reservedSystemCPUs: 2,8", "all reserved CPUs .2. are of isolcpus .2-3."),
    ],
)
def test_some_reserved_cpu_has_to_be_outside_of_isolcpus(
    isolated: str, reserved: str, why: str
) -> None:
    config = load_config(ISOLATING.format(reserved), "x")
    with pytest.raises(ConfigError, match=why):
        resolve(config, replace(HOST, isolated=Mask.parse(isolated)), offline=Mask.of(8))


def test_a_pool_is_not_of_cpus_that_are_reserved_by_amount_alone() -> None:
    strict = STATIC.replace("reservedSystemCPUs: 0-1", "systemReserved: {cpu: '2'}")
    config = load_config(f"{strict}agent: {{pools: [{{name: a, cpus: 0-1}}]}}", "x")
    with pytest.raises(ConfigError, match="no shared container gets 0-1"):
        resolve(config, HOST)


def test_isolated_cpus_for_exclusive_use_leave_a_reserved_one_and_are_of_no_pool_alone() -> None:
    asked = "cpuManagerPolicy: static\nreservedSystemCPUs: 0\nagent: {isolatedCPUs: exclusive"
    host = replace(HOST, isolated=Mask.parse("2-3,6-8"))
    cpu = resolve(load_config(f"{asked}}}", "x"), host).cpu
    assert (str(cpu.isolated), cpu.unshared) == ("2-3,6-7", cpu.isolated)
    assert not resolve(load_config(asked.partition("agent")[0], "x"), host).cpu.unshared
    for text, machine_, part in (
        (f"{asked}}}", replace(HOST, isolated=Mask.parse("0-3")), "all reserved CPUs (0) are of"),
        (f"{asked}, pools: [{{name: a, cpus: 2-3}}]}}", host, "no shared container gets 2-3,6-8"),
    ):
        with pytest.raises(ConfigError) as raised:
            resolve(load_config(text, "x"), machine_)
        assert [part in str(problem) for problem in raised.value.problems] == [True]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("nodes: 1", {"a": ""}),
        ("nodes: 1, cpus: 4-7", {"a": "4-7"}),
        ("nodes: 0-1, perNode: true", {"a-0": "0-3", "a-1": ""}),
        ("perNode: true", {"a-0": "0-3"}),
        ("nodes: 1, perNode: true", {"a-1": ""}),
        ("cpus: 4-5, perNode: true", {}),
        ("cpus: 3-5, perNode: true", {"a-0": "3"}),
        ("isolated: true, perNode: true", {}),
        ("coreKinds: [efficiency]", {"a": ""}),
        ("coreKinds: [efficiency], perNode: true", {}),
    ],
)
@pytest.mark.parametrize("withheld", [False, True])
def test_a_pool_stays_while_all_cpus_of_its_node_or_kind_are_offline(
    entry: str, expected: dict[str, str], *, withheld: bool
) -> None:
    """The agent starts, and pods of the pool run elsewhere until some are online."""
    host, absent = machine({0: 4 * GIB, 1: 4 * GIB}, cpu_nodes=(0,)), Mask.parse("4-7")
    host = replace(host, isolated=Mask.parse("6-7"))
    if withheld:
        host = replace(host, withheld=(WithheldCpus(absent, "/other"),))
    config = load_config(f"agent: {{pools: [{{name: a, {entry}}}]}}", "x")
    made = resolve(config, host, offline=EMPTY if withheld else absent).pools
    assert {pool.name: str(pool.cpus) for pool in made} == expected


def test_a_node_without_cpus_is_no_mistake_beside_others() -> None:
    host = machine({0: 4 * GIB, 1: 4 * GIB, 2: 4 * GIB})
    each = load_config("agent: {pools: [{name: a, perNode: true, nodes: 0-2}]}", "x")
    assert [str(pool.cpus) for pool in resolve(each, host).pools] == ["0-3", "4-7", ""]
    for entry in ("nodes: 2", "isolated: true", "isolated: true, perNode: true"):
        config = load_config(f"agent: {{pools: [{{name: a, {entry}}}]}}", "x")
        with pytest.raises(ConfigError, match="pool a has no CPU: this host has none for it"):
            resolve(config, host, offline=Mask.of(8) if "isolated" in entry else EMPTY)


def test_a_pool_of_a_node_with_reserved_cpus_alone_online_stays() -> None:
    strict = STATIC.replace("reservedSystemCPUs: 0-1", "reservedSystemCPUs: 0,4")
    config = load_config(f"{strict}agent: {{pools: [{{name: a, nodes: 1}}]}}", "x")
    rows = [(cpu, cpu, 0, int(cpu > 3), None) for cpu in range(5)]
    host = replace(HOST, cpus=CpuTopology.from_rows(rows))
    assert [str(each.cpus) for each in resolve(config, host, offline=Mask.parse("5-7")).pools] == [
        "4"
    ]
    with pytest.raises(ConfigError, match="no shared container gets 0,4"):
        resolve(config, host)


def test_offline_and_withheld_cpus_may_be_of_a_pool() -> None:
    config = load_config("agent: {pools: [{name: a, cpus: 3-8}]}", "x")
    assert str(resolve(config, HOST, offline=Mask.of(8)).pools[0].cpus) == "3-8"

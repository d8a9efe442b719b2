from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.config import Config, Threshold
from agent.config.reservations import (
    node_capacity,
    reserved_millicpus,
    reserved_totals,
    spread,
    threshold_bytes,
)
from agent.pods.quantity import Quantity
from tests.agent.config.machines import GIB, MIB, machine
from tests.agent.pods.pods import amounts


def test_cpus_are_summed_and_rounded_once() -> None:
    config = Config(
        system_reserved=amounts("cpu=500m"), kube_reserved=amounts("cpu=1500m memory=1Gi")
    )
    assert reserved_millicpus(config) == 2000


def test_memory_is_the_sum_of_reservations_and_the_eviction_threshold() -> None:
    config = Config(
        system_reserved=amounts("cpu=1 memory=1Gi hugepages-2Mi=4Mi"),
        kube_reserved=amounts("memory=512Mi pid=5 ephemeral-storage=1Gi"),
    )
    assert reserved_totals(config, 64 * GIB) == {
        "memory": (1024 + 512 + 100) * MIB,
        "hugepages-2Mi": 4 * MIB,
    }
    assert reserved_totals(replace(config, eviction_hard={}), 0)["memory"] == 1536 * MIB


@pytest.mark.parametrize(
    ("percent", "capacity", "size"),
    [
        ("0", GIB, 0),
        ("100", GIB, GIB),
        ("50", GIB, GIB // 2),
        # 0.05 in single precision is a little more than 0.05, 0.1 as well, 0.15 too.
        ("5", 10**12, 50000000745),
        ("10", 10**12, 100000001490),
        ("15", 10**12, 150000005960),
    ],
)
def test_a_share_is_computed_in_the_kubelets_precision(
    percent: str, capacity: int, size: int
) -> None:
    assert threshold_bytes(Threshold(percent=percent), capacity) == size


def test_an_amount_is_taken_as_it_is() -> None:
    assert threshold_bytes(Threshold(Quantity.parse("1Mi")), 5) == MIB


def test_nodes_with_cpus_share_by_the_memory_they_have() -> None:
    host = machine({0: 3 * GIB, 1: GIB})
    assert spread(host, {"memory": 400 * MIB}) == {
        0: {"memory": 300 * MIB},
        1: {"memory": 100 * MIB},
    }


def test_the_rest_goes_to_the_lowest_node() -> None:
    host = machine({0: GIB, 1: GIB})
    assert spread(host, {"memory": 3 * MIB + 1}) == {
        0: {"memory": 2 * MIB + 1},
        1: {"memory": MIB},
    }


def test_memory_only_nodes_are_spared_as_long_as_the_others_suffice() -> None:
    host = machine({0: GIB, 1: GIB, 2: 8 * GIB})
    assert 2 not in spread(host, {"memory": GIB})
    over = spread(host, {"memory": 3 * GIB})
    assert over == {0: {"memory": GIB}, 1: {"memory": GIB}, 2: {"memory": GIB}}


def test_huge_pages_are_reserved_whole_where_there_are_any() -> None:
    host = machine({0: GIB, 1: GIB}, hugepages={0: {2 * MIB: 3}, 1: {2 * MIB: 1, GIB: 0}})
    assert spread(host, {"hugepages-2Mi": 4 * MIB}) == {0: {"hugepages-2Mi": 4 * MIB}}
    assert spread(host, {"hugepages-2Mi": 8 * MIB}) == {
        0: {"hugepages-2Mi": 6 * MIB},
        1: {"hugepages-2Mi": 2 * MIB},
    }


def test_huge_pages_are_not_counted_as_memory() -> None:
    host = machine({0: GIB, 1: GIB}, hugepages={0: {2 * MIB: 512}})
    assert node_capacity(host.nodes[0], "memory") == 0
    assert node_capacity(host.nodes[0], "hugepages-2Mi") == GIB
    assert spread(host, {"memory": 100 * MIB}) == {1: {"memory": 100 * MIB}}


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
    if total <= sum(memory[node] for node in with_cpus):
        assert set(reserved) <= set(with_cpus)

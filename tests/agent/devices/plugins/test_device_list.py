"""The devices of a list are those that were sent, or the list is rejected with the reason."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.devices.lists import AnswerError, read_devices
from agent.devices.plugin_limits import LONGEST_ID, LONGEST_LIST, MOST_DEVICES, NUMA_NODES
from agent.managers.policy import PluginDevice
from sysfs.mask import Mask
from tests.fakes.device_plugin import device, device_list


def test_devices_keep_their_order_health_and_nodes() -> None:
    raw = device_list(device("b", 1), device("a", 0, 1, health="Unhealthy"), {"ID": "c"})
    assert read_devices(raw) == (
        PluginDevice("b", Mask.of(1)),
        PluginDevice("a", Mask.of(0, 1), healthy=False),
        PluginDevice("c", healthy=False),
    )


@pytest.mark.parametrize("health", ["healthy", "Healthy ", "", "Unknown"])
def test_every_health_other_than_healthy_is_unhealthy(health: str) -> None:
    assert not read_devices(device_list(device("a", health=health)))[0].healthy


@pytest.mark.parametrize("node", [-1, -(2**63), NUMA_NODES, 2**63 - 1])
def test_ids_that_are_those_of_no_node_do_not_count(node: int) -> None:
    assert read_devices(device_list(device("a", node)))[0].nodes == Mask()
    assert read_devices(device_list(device("a", node, 3)))[0].nodes == Mask.of(3)


# Shows in differences.md: plugin-bounds
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (device_list(device("a"), device("b"), device("a", 1)), 'device "a" is listed twice'),
        (device_list(device("")), "is not the id of a device"),
        (device_list(device("a\nb")), "is not the id of a device"),
        (device_list(device("a\u202eb")), "is not the id of a device"),
        (device_list(device("a" * (LONGEST_ID + 1))), "is not the id of a device"),
        (device_list(device("\u00e9" * (LONGEST_ID // 2 + 1))), "is not the id of a device"),
        (device_list(device("a", *range(NUMA_NODES + 1))), "has 1025 NUMA nodes, 1024 are allowed"),
        (
            device_list(*[device(str(n)) for n in range(MOST_DEVICES + 1)]),
            "10001 devices, 10000 are",
        ),
        (b"\x0a" + b"\xff" * 8, "is not a ListAndWatchResponse"),
        (b"\x00" * (LONGEST_LIST + 1), f"has {LONGEST_LIST + 1} bytes"),
    ],
)
def test_a_list_that_cannot_be_used_is_rejected_with_the_reason(raw: bytes, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        read_devices(raw)


def test_as_many_devices_as_are_allowed_with_long_ids_are_taken() -> None:
    names = [f"{n:0>{LONGEST_ID}}" for n in range(MOST_DEVICES)]
    devices = read_devices(device_list(*[device(name, 0) for name in names]))
    assert len(devices) == MOST_DEVICES
    # Else the garbage collector goes through those of all plugins whenever many are made.
    assert not any(map(gc.is_tracked, devices))
    assert len({id(each.nodes) for each in devices}) == 1


@given(
    st.lists(
        st.tuples(
            st.text("abc-0:/", min_size=1, max_size=9),
            st.lists(st.integers(-3, 9)),
            st.sampled_from(["Healthy", "Unhealthy"]),
        ),
        unique_by=lambda each: each[0],
    )
)
def test_what_was_sent_is_what_is_read(sent: list[tuple[str, list[int], str]]) -> None:
    raw = device_list(*[device(name, *nodes, health=health) for name, nodes, health in sent])
    assert [(each.id, set(each.nodes), each.healthy) for each in read_devices(raw)] == [
        (name, {node for node in nodes if node >= 0}, health == "Healthy")
        for name, nodes, health in sent
    ]

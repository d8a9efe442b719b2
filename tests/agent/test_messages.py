"""Declared messages have the bytes that protobuf's own wire format gives them."""

from __future__ import annotations

import pytest

from agent.rpc.device_plugins import V1BETA1
from agent.rpc.messages import Messages
from agent.rpc.pod_resources import V1


def test_a_message_has_the_bytes_of_the_wire_format() -> None:
    request = V1BETA1["RegisterRequest"](
        version="v1beta1",
        endpoint="a.sock",
        resource_name="b/c",
        options={"pre_start_required": True},
    )
    assert request.SerializeToString() == (
        b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03b/c\x22\x02\x08\x01"
    )


def test_a_map_is_a_repeated_message_of_key_and_value() -> None:
    response = V1BETA1["ContainerAllocateResponse"](envs={"A": "1"})
    data = response.SerializeToString()
    assert data == b"\x0a\x06\x0a\x01A\x12\x011"
    assert dict(V1BETA1["ContainerAllocateResponse"].FromString(data).envs) == {"A": "1"}


def test_numbers_of_nodes_are_signed() -> None:
    device = V1BETA1["Device"](ID="d", topology={"nodes": [{"ID": -1}]})
    assert V1BETA1["Device"].FromString(device.SerializeToString()).topology.nodes[0].ID == -1


def test_packages_of_one_name_do_not_meet() -> None:
    other = Messages("v1", {"PodResources": {"other": (9, "bool")}})
    assert other["PodResources"](other=True).SerializeToString() == b"\x48\x01"
    assert V1["PodResources"](name="p").SerializeToString() == b"\x0a\x01p"


def test_a_declaration_that_names_no_message_is_an_error() -> None:
    with pytest.raises(TypeError):
        Messages("broken", {"A": {"b": (1, "Absent")}})


def test_a_number_of_32_bits_is_a_varint() -> None:
    kind = Messages("numbers", {"A": {"b": (1, "uint32")}})["A"]
    assert kind(b=300).SerializeToString() == b"\x08\xac\x02"

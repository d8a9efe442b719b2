from __future__ import annotations

import sys
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.allocation import NOTHING, Delivery, DeviceNode, Mount
from agent.rpc import V1BETA1
from agent.tools.kubelet_state.devices import delivery_of, response_of
from agent.tools.kubelet_state.format import MissingExtraError, UnreadableResponseError
from tests.strategies import built

TEXTS = st.text(max_size=5)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=3).map(MappingProxyType)
DELIVERIES = built(
    Delivery,
    MAPS,
    st.lists(built(Mount, TEXTS, TEXTS, st.booleans()), max_size=2).map(tuple),
    st.lists(built(DeviceNode, TEXTS, TEXTS, TEXTS), max_size=2).map(tuple),
    MAPS,
    st.lists(TEXTS, max_size=2).map(tuple),
)


@given(delivery=DELIVERIES)
def test_there_and_back_is_the_same(delivery: Delivery) -> None:
    assert delivery_of(response_of(delivery)) == delivery


def test_a_response_delivers_what_the_plugin_returned() -> None:
    response = V1BETA1["ContainerAllocateResponse"](
        envs={"GPU": "g0"},
        mounts=[{"container_path": "/c", "host_path": "/h", "read_only": True}],
        devices=[{"container_path": "/dev/a", "host_path": "/dev/b", "permissions": "rw"}],
        annotations={"k": "v"},
        cdi_devices=[{"name": "v/c=d"}],
    )
    assert delivery_of(response.SerializeToString()) == Delivery(
        environment=MappingProxyType({"GPU": "g0"}),
        mounts=(Mount("/c", "/h", read_only=True),),
        device_nodes=(DeviceNode("/dev/a", "/dev/b", "rw"),),
        annotations=MappingProxyType({"k": "v"}),
        cdi_devices=("v/c=d",),
    )


def test_a_damaged_response_is_an_error() -> None:
    with pytest.raises(UnreadableResponseError, match="cannot be read"):
        delivery_of(b"\xff\xff")


def test_without_protobuf_only_what_is_empty_is_read_and_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("agent.rpc", "agent.rpc"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pb2", None)
    assert delivery_of(b"") == NOTHING
    assert response_of(NOTHING) == b""
    with pytest.raises(MissingExtraError, match=r"pip install 'numawarden\[grpc\]'"):
        delivery_of(b"\n\x00")
    with pytest.raises(MissingExtraError, match="is not installed"):
        response_of(Delivery(cdi_devices=("v/c=d",)))

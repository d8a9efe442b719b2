"""What a command can get with its devices without a container."""

from __future__ import annotations

import pytest

from agent.api.documents import DeliveryDocument
from agent.managers.allocation import DeviceNode, Mount
from agent.tools.run import not_given

NODE = DeviceNode(container_path="/dev/x", host_path="/dev/x", permissions="rw")
MOUNT = Mount(container_path="/a", host_path="/a", read_only=True)


@pytest.mark.parametrize(
    ("delivery", "expected"),
    [
        (None, ""),
        (DeliveryDocument(environment={"A": "b"}, device_nodes=(NODE,), mounts=(MOUNT,)), ""),
        (DeliveryDocument(cdi_devices=("example.com/gpu=0",)), "the CDI device example.com/gpu=0"),
        (
            DeliveryDocument(
                device_nodes=(
                    DeviceNode(container_path="/dev/y", host_path="/dev/x", permissions="r"),
                )
            ),
            "the device node /dev/x as /dev/y",
        ),
        (
            DeliveryDocument(mounts=(Mount(container_path="/b", host_path="/a", read_only=False),)),
            "the mount of /a at /b",
        ),
    ],
)
def test_what_is_not_at_its_place_on_the_host_cannot_be_given(
    delivery: DeliveryDocument | None, expected: str
) -> None:
    assert not_given(delivery) == expected

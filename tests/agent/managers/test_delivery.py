"""What the providers of several resources deliver is merged as the kubelet merges it."""

from __future__ import annotations

from agent.managers.delivery import NOTHING, Delivery, DeviceNode, Mount, merged


def test_nothing_delivered_is_nothing() -> None:
    assert merged([NOTHING, Delivery()]) is NOTHING


def test_everything_that_differs_is_kept_in_order_and_the_first_of_two_stays() -> None:
    first = Delivery(
        {"A": "1"}, (Mount("/a", "/x"),), (DeviceNode("/dev/a", "/dev/x", "rw"),), {"k": "1"},
        ("v/c=1",), ("0000:00:01.0",),
    )  # fmt: skip
    second = Delivery(
        {"A": "2", "B": "2"},
        (Mount("/a", "/y"), Mount("/b", "/y")),
        (DeviceNode("/dev/a", "/dev/y", "rw"), DeviceNode("/dev/b", "/dev/y", "rw")),
        {"l": "2"},
        ("v/c=1", "v/c=2"),
        ("0000:00:01.0",),
    )
    assert merged([first, second]) == Delivery(
        {"A": "1", "B": "2"},
        (*first.mounts, second.mounts[1]),
        (*first.device_nodes, second.device_nodes[1]),
        {"k": "1", "l": "2"},
        ("v/c=1", "v/c=2"),
        ("0000:00:01.0",),
    )

"""What the providers of several resources deliver is merged as the kubelet merges it."""

from __future__ import annotations

from agent.managers.allocation import Delivery, DeviceNode, Mount, merged


def test_everything_that_differs_is_kept_in_order() -> None:
    first = Delivery(
        {"A": "1"},
        (Mount("/a", "/x"),),
        (DeviceNode("/dev/a", "/dev/x", "rw"),),
        {"k": "1"},
        ("v/c=1",),
    )
    second = Delivery(
        {"B": "2"},
        (Mount("/b", "/y"),),
        (DeviceNode("/dev/b", "/dev/y", "rw"),),
        {"l": "2"},
        ("v/c=2",),
    )
    both = merged([first, second])
    assert dict(both.environment) == {"A": "1", "B": "2"}
    assert {mount.container_path for mount in both.mounts} == {"/a", "/b"}
    assert {node.container_path for node in both.device_nodes} == {"/dev/a", "/dev/b"}
    assert dict(both.annotations) == {"k": "1", "l": "2"}
    assert both.cdi_devices == ("v/c=1", "v/c=2")


def test_the_first_of_two_values_of_one_name_or_path_stays() -> None:
    first = Delivery({"A": "1"}, (Mount("/a", "/x"),), (DeviceNode("/dev/a", "/dev/x", "rw"),))
    second = Delivery({"A": "2"}, (Mount("/a", "/y"),), (DeviceNode("/dev/a", "/dev/y", "rw"),))
    both = merged([first, second])
    assert dict(both.environment) == {"A": "1"}
    assert both.mounts == (Mount("/a", "/x"),)
    assert both.device_nodes == (DeviceNode("/dev/a", "/dev/x", "rw"),)

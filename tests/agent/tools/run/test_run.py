"""What a command gets without a container: devices, a node near an interface, a unit's pod."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.api.documents.pods import DeliveryDocument
from agent.managers.delivery import DeviceNode, Mount
from agent.tools.run import OptionError, node_of_interface, not_given, pod_of_unit


@pytest.mark.parametrize(
    ("delivery", "expected"),
    [
        (None, ""),
        (
            DeliveryDocument(
                environment={"A": "b"},
                device_nodes=(DeviceNode("/dev/x", "/dev/x", "rw"),),
                mounts=(Mount("/a", "/a", read_only=True),),
            ),
            "",
        ),
        (DeliveryDocument(cdi_devices=("example.com/gpu=0",)), "the CDI device example.com/gpu=0"),
        (
            DeliveryDocument(device_nodes=(DeviceNode("/dev/y", "/dev/x", "r"),)),
            "the device node /dev/x as /dev/y",
        ),
        (DeliveryDocument(mounts=(Mount("/b", "/a"),)), "the mount of /a at /b"),
    ],
)
def test_what_is_not_at_its_place_on_the_host_cannot_be_given(
    delivery: DeliveryDocument | None, expected: str
) -> None:
    assert not_given(delivery) == expected


def test_the_node_of_an_interface_is_that_of_the_device_behind_it(tmp_path: Path) -> None:
    for number, (name, node) in enumerate({"eth0": 1, "eth1": -1}.items()):
        device = tmp_path / f"sys/devices/pci0000:00/0000:00:0{number}.0"
        (device / "net" / name).mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        (device / "net" / name / "device").symlink_to("../..")
        listed = tmp_path / "sys/bus/pci/devices" / device.name
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.symlink_to(Path("../../../devices/pci0000:00", device.name))
        interface = tmp_path / "sys/class/net" / name
        interface.parent.mkdir(parents=True, exist_ok=True)
        interface.symlink_to(Path("../../..", (device / "net" / name).relative_to(tmp_path)))
    assert node_of_interface(tmp_path, "eth0") == 1
    with pytest.raises(OptionError, match="the kernel gives no NUMA node of eth1"):
        node_of_interface(tmp_path, "eth1")
    with pytest.raises(OptionError, match="is called 'eth9'; known: eth0, eth1"):
        node_of_interface(tmp_path, "eth9")


def test_nothing_of_a_unit_is_limited_but_its_huge_pages() -> None:
    pod = json.loads(pod_of_unit("app@1.service", "2", "1Gi", ["2Mi=4Mi"]))
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
        "limits": {"hugepages-2Mi": "4Mi"},
    }
    assert pod["metadata"]["name"] == "app-1.service"

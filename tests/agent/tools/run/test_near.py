"""The NUMA node of a network interface, from a sysfs tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.tools.run import OptionError, node_of_interface


@pytest.fixture
def root(tmp_path: Path) -> Path:
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
    return tmp_path


def test_the_node_is_that_of_the_device_behind_the_interface(root: Path) -> None:
    assert node_of_interface(root, "eth0") == 1


def test_an_interface_without_a_node_is_an_error(root: Path) -> None:
    with pytest.raises(OptionError, match="the kernel gives no NUMA node of eth1"):
        node_of_interface(root, "eth1")


def test_an_unknown_interface_is_an_error_that_names_the_known_ones(root: Path) -> None:
    with pytest.raises(OptionError, match="is called 'eth9'; known: eth0, eth1"):
        node_of_interface(root, "eth9")

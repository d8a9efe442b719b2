from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.guest.emulator import Disks, Emulator, command
from tests.guest.image import Image
from tests.guest.inside.kernel import ids
from tests.guest.topologies import TOPOLOGIES, Topology

DISKS = Disks(Path("/a,b/job.tar"), Path("/out.tar"), Path("/serial.log"))


def of(topology: Topology, tsc_khz: int | None = 2_500_000) -> list[str]:
    return command(Emulator(("qemu",)), Image(Path("/image")), topology, DISKS, tsc_khz)


def kernel_command_line(tsc_khz: int | None) -> str:
    arguments = of(TOPOLOGIES["two-sockets"], tsc_khz)
    return arguments[arguments.index("-append") + 1]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_cpu_is_on_one_node_and_every_node_is_there(name: str) -> None:
    topology = TOPOLOGIES[name]
    seen = [cpu for node in topology.nodes for cpu in ids(node.cpus)]
    assert sorted(seen) == list(range(int(topology.smp.partition(",")[0])))
    arguments = of(topology)
    nodes = [a for a in arguments if a.startswith("node,nodeid=")]
    assert len(nodes) == len(topology.nodes)
    backends = [a for a in arguments if a.startswith("memory-backend-ram")]
    assert len(backends) == sum(1 for node in topology.nodes if node.memory_mib)
    assert f"{topology.memory_mib}M" in arguments


def test_four_nodes_are_near_in_pairs() -> None:
    given = {tuple(a.split(",")[1:]) for a in of(TOPOLOGIES["four-nodes"]) if a.startswith("dist,")}
    assert ("src=0", "dst=1", "val=12") in given
    assert ("src=1", "dst=2", "val=21") in given
    assert ("src=2", "dst=3", "val=12") in given
    assert len(given) == 6


def test_a_comma_in_a_path_does_not_end_an_option() -> None:
    assert any("file=/a,,b/job.tar," in a for a in of(TOPOLOGIES["two-sockets"]))


def test_only_a_machine_that_asks_has_devices_on_a_node() -> None:
    assert any("numa_node=1" in a for a in of(TOPOLOGIES["two-sockets"]))
    assert not any("numa_node=" in a for a in of(TOPOLOGIES["four-nodes"]))


def test_only_a_guest_with_the_agent_has_its_disk() -> None:
    def disks(given: Disks) -> list[str]:
        found = command(Emulator(("qemu",)), Image(Path("/i")), TOPOLOGIES["two-sockets"], given, 1)
        return [a.rpartition("=")[2] for a in found if a.startswith("virtio-blk-pci,")]

    assert disks(DISKS) == ["job", "out"]
    assert disks(replace(DISKS, agent=Path("/agent"))) == ["job", "out", "agent"]


def test_no_virtio_device_has_a_descriptor_that_the_main_loop_polls() -> None:
    disks = replace(DISKS, agent=Path("/agent"), kubernetes=Path("/kubernetes"))
    found = command(Emulator(("qemu",)), Image(Path("/i")), TOPOLOGIES["two-sockets"], disks, 1)
    devices = [a for a in found if a.startswith("virtio-") and "-pci" in a]
    assert len(devices) == 7
    assert [a for a in devices if "ioeventfd=off" not in a.split(",")] == []


def test_a_guest_is_given_the_frequency_of_its_clock_where_that_is_known() -> None:
    assert "tsc_early_khz=2596140" in kernel_command_line(2_596_140).split()
    assert "tsc_early_khz" not in kernel_command_line(None)


def test_the_kernel_reads_its_whole_command_line() -> None:
    # Documentation/admin-guide/kernel-parameters: COMMAND_LINE_SIZE, 2048 on x86, with its NUL.
    assert len(kernel_command_line(2_596_140)) < 2048

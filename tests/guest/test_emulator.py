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


def test_a_comma_in_a_path_does_not_end_an_option() -> None:
    assert any("file=/a,,b/job.tar," in a for a in of(TOPOLOGIES["two-sockets"]))


def test_no_virtio_device_has_a_descriptor_that_the_main_loop_polls() -> None:
    disks = replace(DISKS, agent=Path("/agent"), kubernetes=Path("/kubernetes"))
    found = command(Emulator(("qemu",)), Image(Path("/i")), TOPOLOGIES["two-sockets"], disks, 1)
    devices = [a for a in found if a.startswith("virtio-") and "-pci" in a]
    assert len(devices) == 7
    assert [a for a in devices if "ioeventfd=off" not in a.split(",")] == []


def test_the_kernel_reads_its_whole_command_line() -> None:
    # Documentation/admin-guide/kernel-parameters: COMMAND_LINE_SIZE, 2048 on x86, with its NUL.
    assert len(kernel_command_line(2_596_140)) < 2048

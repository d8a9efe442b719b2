from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from rich.console import Console

from agent.cli.topology_picture import cpu_list, picture
from sysfs.host import Device, Host
from sysfs.mask import Mask
from sysfs.shapes import regular_host
from tests.sysfs.hosts import hosts


def _drawn(host: Host, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    for part in picture(host):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@settings(max_examples=30, deadline=None)
@given(hosts())
def test_any_host_fits_80_columns_and_names_every_node(host: Host) -> None:
    lines = _drawn(host).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    text = " ".join(lines)
    assert all(f"node {node.id} " in text for node in host.nodes)


def test_devices_stand_by_their_node_and_interfaces_by_name() -> None:
    pci = ("0x020000", "0x020000", "0x060400", "0x030200", "0x120000", "0xff0000")
    addresses = [f"0000:0{number}:00.0" for number in range(len(pci))]
    devices = (
        *(
            Device("pci", address, address, 1, device_class=device_class)
            for address, device_class in zip(addresses, pci, strict=True)
        ),
        Device("net", "eth0", addresses[0], 1),
        Device("net", "usb0", "", None),
    )
    text = _drawn(replace(regular_host(), devices=devices), width=200)
    assert (
        "  node 1: display 0000:03:00.0, accelerator 0000:04:00.0, eth0 (0000:00:00.0), "
        "1 x bridge, 2 x network, 1 x other\n" in text
    )
    assert "  no node: usb0\n" in text


def test_square_brackets_in_a_name_are_shown_as_they_are() -> None:
    host = replace(regular_host(), devices=(Device("net", "[red]eth0", "", 0),))
    assert "node 0: [red]eth0" in _drawn(host)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0-63,128-191", "0-63,128-191"),
        (",".join(str(cpu) for cpu in range(0, 100, 2)), "0,2,4,...,98 (50 CPUs)"),
    ],
)
def test_a_list_too_long_to_read_shows_its_ends(text: str, shown: str) -> None:
    assert cpu_list(Mask.parse(text)) == shown


def test_a_cache_of_many_cores_shows_the_first_and_the_last() -> None:
    text = _drawn(regular_host(packages=1, cores_per_node=20))
    assert "20 cores x 2 threads: 0+20 1+21 2+22 ... 19+39" in text


def test_cpus_of_no_node_are_shown() -> None:
    host = regular_host(packages=1, cores_per_node=1, threads=1)
    assert "no node  CPUs 0" in _drawn(
        replace(host, cpus=tuple(replace(cpu, node=None) for cpu in host.cpus))
    )

"""The hosts of the playground: three that many know, and any that was captured."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.tools.playground.errors import PlaygroundError
from sysfs.described.shapes import regular_host, with_memory_only_nodes
from sysfs.discover import discover
from sysfs.host import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sysfs.host import Host

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
#: How much a capture may hold: those of the largest hosts have 20,000 small files.
_MOST_BYTES: Final = 256 * _MIB
_MOST_FILES: Final = 200_000


@dataclass(frozen=True, slots=True)
class NamedHost:
    """A host with its devices: the ids and NUMA nodes by the resource that pods ask for."""

    host: Host
    devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def two_sockets() -> NamedHost:
    """Return two packages of eight cores with two threads, and 16 GiB, a NIC and a GPU on each."""
    host = regular_host(cores_per_node=8, hugepages=[(2 * _MIB, 512)])
    devices = tuple(
        Device(
            kind="pci",
            name=address,
            address=address,
            node=node.id,
            cpus=node.cpus,
            vendor=vendor,
            device=device,
            device_class=device_class,
        )
        for node in host.nodes
        for address, vendor, device, device_class in (
            (f"0000:{node.id + 1}1:00.0", "0x8086", "0x1592", "0x020000"),
            (f"0000:{node.id + 1}2:00.0", "0x10de", "0x20b5", "0x030200"),
        )
    )
    gpus = {f"gpu-{node.id}": node.id for node in host.nodes}
    return NamedHost(replace(host, devices=devices), {"example.com/gpu": gpus})


def epyc() -> NamedHost:
    """Return one package of 64 cores in four NUMA nodes, with an L3 cache for eight cores each."""
    return NamedHost(
        regular_host(
            packages=1,
            nodes_per_package=4,
            cores_per_node=16,
            memory_bytes=64 * _GIB,
            uncores_per_node=2,
        )
    )


def gb200() -> NamedHost:
    """Return two packages of 72 cores without SMT, and four nodes that have memory only."""
    host = regular_host(cores_per_node=72, threads=1, memory_bytes=480 * _GIB)
    gpus = {f"gpu-{number}": number // 2 for number in range(4)}
    return NamedHost(
        with_memory_only_nodes(host, [186 * _GIB] * len(gpus)), {"example.com/gpu": gpus}
    )


HOSTS: Final[Mapping[str, Callable[[], NamedHost]]] = {
    "two-sockets": two_sockets,
    "epyc": epyc,
    "gb200": gb200,
}


def named_host(name: str) -> NamedHost | None:
    """Return the host of a name in `HOSTS`, None if there is none."""
    made = HOSTS.get(name)
    return None if made is None else made()


def captured_host(capture: Path, folder: Path) -> NamedHost:
    """Return the host of `numawarden capture`: an archive, or a directory that has `sys`.

    An archive is unpacked into `folder`. Raises `PlaygroundError`, `SysfsError`.
    """
    root = capture if capture.is_dir() else _unpacked(capture, folder)
    return NamedHost(discover(root))


def _unpacked(capture: Path, folder: Path) -> Path:
    try:
        with tarfile.open(capture) as archive:
            size = 0
            for count, member in enumerate(archive, 1):
                size += member.size
                if count > _MOST_FILES or size > _MOST_BYTES:
                    raise PlaygroundError(f"{capture} has more files or bytes than a capture has")
                archive.extract(member, folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        kinds = ", ".join(HOSTS)
        message = f"{capture} is neither a capture nor one of {kinds}: {error}"
        raise PlaygroundError(message) from error
    tops = [folder, *(path for path in sorted(folder.iterdir()) if path.is_dir())]
    for top in tops:
        if (top / "sys").is_dir():
            return top
    raise PlaygroundError(f"{capture} has no directory sys, as the capture of a host would")

"""Archiving the files of a host that discovery reads, and nothing else."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from msgspec import Struct

from sysfs.cpus import (
    CLUSTER_LISTS,
    CLUSTER_MAPS,
    CORE_LISTS,
    CORE_MAPS,
    CPU_DIRECTORY,
    DIE_LISTS,
    DIE_MAPS,
    HYBRID_PMUS,
    MIDR,
    PACKAGE_LISTS,
    PACKAGE_MAPS,
    read_cpu_sets,
)
from sysfs.devices import NET_KIND, PCI_DIRECTORY, read_devices
from sysfs.files import SysfsTree
from sysfs.links import NET_DIRECTORY
from sysfs.nodes import (
    BANDWIDTHS,
    DAX_DIRECTORY,
    HOST_HUGEPAGES,
    HOST_MEMINFO,
    INITIATORS,
    KMEM,
    NODE_DIRECTORY,
    TIER,
    TIER_DIRECTORY,
    dax_devices,
    find_memory_total,
    nvidia_nodes,
    pool_sizes,
)

if TYPE_CHECKING:
    from sysfs.host import Device
    from sysfs.mask import Mask

_CPU_STATES: Final = ("possible", "present", "online", "offline", "isolated", "nohz_full")
_NODE_STATES: Final = ("possible", "online", "has_cpu", "has_memory", "has_normal_memory")
_SIBLINGS: Final = (
    (CORE_LISTS, CORE_MAPS),
    (CLUSTER_LISTS, CLUSTER_MAPS),
    (DIE_LISTS, DIE_MAPS),
    (PACKAGE_LISTS, PACKAGE_MAPS),
)
_GROUP_IDS: Final = ("core_id", "cluster_id", "die_id", "physical_package_id")
_CACHE_FILES: Final = ("level", "type", "id", "size")
_PCI_FILES: Final = ("vendor", "device", "class")
#: systemd names an interface without a better name after its MAC address.
_NAMED_BY_MAC: Final = re.compile(r"([a-z]{2}x)[0-9a-f]{12}", re.ASCII)


class Captured(Struct, frozen=True):
    """How many files an archive has, and a line for each odd file that left a fact out."""

    files: int
    warnings: tuple[str, ...]


def capture(root: Path, target: Path | BinaryIO) -> Captured:
    """Archive the host below a root directory as a gzip-compressed tar in a file or stream.

    The same host gives the same bytes. Of memory only the totals are kept, of devices the PCI
    ids and their place; MAC addresses, serial numbers and interfaces' addresses are not read,
    and interfaces that are named after a MAC address are renumbered (`enx0`). Unpacked, the
    archive is a root for `discover` that shows the same host. A file appears complete or not at
    all, and only a regular file is replaced: raises `OSError` where the target is anything else
    (a device, a pipe, a link) or cannot be written, a `SysfsError` where the host cannot be read.
    """
    if isinstance(target, Path):
        _check_replaceable(target)
    content = Contents(SysfsTree(root))
    sets = read_cpu_sets(content.tree)
    _add_cpus(content, sets.present, sets.online)
    _add_nodes(content)
    _add_devices(content, read_devices(content.tree, sets.online, live=str(root) == "/"))
    if isinstance(target, Path):
        _replace(target, _archive(content))
    else:
        target.write(_archive(content))
    return Captured(len(content.files), content.tree.warnings)


class Contents:
    """What goes into an archive: files by name with their text, directories, links."""

    def __init__(self, tree: SysfsTree) -> None:
        self.tree = tree
        self.files: dict[str, str] = {}
        self.directories: set[str] = set()
        self.links: dict[str, str] = {}

    def add(self, name: str) -> bool:
        """Add a file of the tree as it is, if the file can be read; return whether."""
        text = self.tree.optional(lambda: self.tree.find(name), None, "it is left out")
        if text is None:
            return False
        self.files[name] = text
        return True

    def numbered(self, directory: str, prefix: str) -> list[int]:
        """Return the numbers of a directory's entries; none where it is odd."""
        return self.tree.optional(
            lambda: self.tree.numbered(directory, prefix), [], "it is left out"
        )

    def add_first(self, names: tuple[str, ...]) -> bool:
        """Add the first of these files that exists; return whether one does."""
        return any(self.add(name) for name in names)

    def add_all(self, directory: str, names: tuple[str, ...]) -> None:
        """Add those of a directory's files that exist."""
        for name in names:
            self.add(f"{directory}/{name}")


def _add_cpus(content: Contents, present: Mask, online: Mask) -> None:
    content.add_all(CPU_DIRECTORY, _CPU_STATES)
    for cpu in present:
        directory = f"{CPU_DIRECTORY}/cpu{cpu}"
        content.directories.add(directory)
        content.add(f"{directory}/online")
        for node in content.numbered(directory, "node"):
            content.links[f"{directory}/node{node}"] = f"../../node/node{node}"
    for cpu in online:
        _add_online_cpu(content, f"{CPU_DIRECTORY}/cpu{cpu}")
    for pmu, _ in HYBRID_PMUS:
        content.add(f"sys/devices/{pmu}/cpus")


def _add_online_cpu(content: Contents, directory: str) -> None:
    content.add_all(directory, ("cpu_capacity", MIDR))
    content.directories.add(f"{directory}/topology")
    content.add_all(f"{directory}/topology", _GROUP_IDS)
    for lists, maps in _SIBLINGS:
        content.add_first(tuple(f"{directory}/topology/{name}" for name in lists + maps))
    for index in content.numbered(f"{directory}/cache", "index"):
        cache = f"{directory}/cache/index{index}"
        content.add_all(cache, _CACHE_FILES)
        content.add_first((f"{cache}/shared_cpu_list", f"{cache}/shared_cpu_map"))


def _add_nodes(content: Contents) -> None:
    content.add_all(NODE_DIRECTORY, _NODE_STATES)
    _add_memory(content, HOST_MEMINFO, "", HOST_HUGEPAGES)
    for tier in content.numbered(TIER_DIRECTORY, TIER):
        content.add(f"{TIER_DIRECTORY}/{TIER}{tier}/nodelist")
    for node in content.tree.numbered(NODE_DIRECTORY, "node"):
        directory = f"{NODE_DIRECTORY}/node{node}"
        content.directories.add(directory)
        content.add_first((f"{directory}/cpulist", f"{directory}/cpumap"))
        content.add(f"{directory}/distance")
        content.add_all(directory, BANDWIDTHS)
        _add_memory(content, f"{directory}/meminfo", f"Node {node} ", f"{directory}/hugepages")
    _add_backing(content)


def _add_backing(content: Contents) -> None:
    """Add what says which devices the memory of nodes is from, without addresses."""
    content.add(INITIATORS)
    for file, node in nvidia_nodes(content.tree).items():
        content.files[file] = f"Node: {node}"
    for place, node in dax_devices(content.tree).items():
        name = place.rpartition("/")[2]
        content.links[f"{DAX_DIRECTORY}/{name}"] = f"../../../{place.removeprefix('sys/')}"
        content.links[f"{place}/driver"] = f"../{KMEM}"
        content.files[f"{place}/target_node"] = str(node)


def _add_memory(content: Contents, meminfo: str, label: str, hugepages: str) -> None:
    total = content.tree.optional(
        lambda: find_memory_total(content.tree, meminfo), None, "it is left out"
    )
    if total is not None:
        content.files[meminfo] = f"{label}MemTotal: {total // 1024:>15} kB"
    sizes = content.tree.optional(lambda: pool_sizes(content.tree, hugepages), [], "it is left out")
    for size_kib in sizes:
        directory = f"{hugepages}/hugepages-{size_kib}kB"
        content.directories.add(directory)
        content.add(f"{directory}/nr_hugepages")


def _add_devices(content: Contents, devices: tuple[Device, ...]) -> None:
    renamed = 0
    for device in devices:
        if device.kind != NET_KIND:
            _add_pci_device(content, device)
            continue
        named = _NAMED_BY_MAC.fullmatch(device.name)
        _add_interface(content, device, f"{named[1]}{renamed}" if named else device.name)
        renamed += bool(named)


def _add_pci_device(content: Contents, device: Device) -> None:
    directory = f"{PCI_DIRECTORY}/{device.address}"
    content.directories.add(directory)
    content.add_all(directory, _PCI_FILES)
    content.add_first((f"{directory}/local_cpulist", f"{directory}/local_cpus"))
    content.files[f"{directory}/numa_node"] = _node_text(device)


def _add_interface(content: Contents, device: Device, name: str) -> None:
    place = f"{NET_DIRECTORY}/{name}/device"
    if device.address:
        content.links[place] = f"../../../bus/pci/devices/{device.address}"
    else:
        content.files[f"{place}/numa_node"] = _node_text(device)


def _node_text(device: Device) -> str:
    return str(-1 if device.node is None else device.node)


def _archive(content: Contents) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in sorted({*content.files, *content.directories, *content.links}):
            member = tarfile.TarInfo(name)
            if name in content.links:
                member.type, member.linkname = tarfile.SYMTYPE, content.links[name]
                archive.addfile(member)
            elif name in content.files:
                text = f"{content.files[name]}\n".encode("ascii")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
            else:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
    return packed.getvalue()


def _check_replaceable(file: Path) -> None:
    """Raise `OSError` unless the path is free or a regular file."""
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "not a regular file"
        raise OSError(errno.EINVAL, f"it is {kind}; name another file, or - to pipe it", str(file))


def _replace(file: Path, content: bytes) -> None:
    try:
        _write_beside(file, content)
    except OSError as error:
        # The error names the requested file, not the temporary file beside it.
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error


def _sync(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_beside(file: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
        temporary = Path(new.name)
        try:
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
            temporary.chmod(0o644)
            # Once more: reading the host took its time.
            _check_replaceable(file)
            temporary.replace(file)
            _sync(file.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

"""An optional file that is odd costs its own fact and a warning, never the host."""

from __future__ import annotations

import os
import re
import tarfile
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import asdict, replace

from sysfs.capture import capture
from sysfs.described import regular_host, with_memory_only_nodes, write_tree
from sysfs.discover import discover, read_host
from sysfs.files import SysfsTree
from sysfs.host import CoreKind, Device, MemoryClass
from sysfs.mask import EMPTY, Mask
from tests.sysfs.trees import CPU

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sysfs.host import Host

#: Which facts a file may cost: pattern of the file, the fact's kind, its field. `{0}` is the
#: number in the file's name.
_COSTS: Final = (
    (r".*/cpu/isolated", "cpu", "isolated"),
    (r".*/cpu/nohz_full", "host", "nohz_full"),
    (r".*/(cluster_cpus_list|cluster_id)", "cpu", "cluster"),
    (r".*/(die_cpus_list|die_id)", "cpu", "die"),
    (r".*/(package_cpus_list|physical_package_id)", "cpu", "package"),
    (r".*/cache/.*", "cpu", "uncore"),
    (r"sys/devices/cpu_[a-z]+/cpus", "cpu", "kind"),
    (r".*/distance", "node", "distances"),
    (r".*/meminfo", "node", "memory_bytes"),
    (r".*/nr_hugepages", "node", "hugepages"),
    (r".*/memory_tier\d+/nodelist", "node", "tier"),
    (r".*/read_bandwidth", "node", "bandwidth"),
    (r".*/(has_generic_initiator|numa_status|dax\d+\.\d+/(target_node|driver))", "node", "backing"),
    (r".*/numa_node", "device", "node"),
    (r".*/local_cpulist", "device", "cpus"),
    (r".*/vendor", "device", "vendor"),
    (r".*/device", "device", "device"),
    (r".*/class", "device", "device_class"),
)


def _text(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(content)

    return damage


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _link(target: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return damage


_DAMAGES: Final[Mapping[str, Callable[[Path], None]]] = {
    "text": _text(b"x y z\n"),
    "bytes": _text(b"\xff\xfe\n"),
    "escapes": _text(b"\x1b[2J0\n"),
    "reversed range": _text(b"3-1\n"),
    "huge number": _text(b"9" * 30),
    "endless": _text(b"0" * (2 << 20)),
    "directory": _directory,
    "pipe": _fifo,
    "loop": _loop,
    "device outside": _link("/dev/zero"),
    "file outside": _link("/proc/self/status"),
    "directory outside": _link("/"),
}


class _RecordingTree(SysfsTree):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.found: set[str] = set()

    def find(self, name: str) -> str | None:
        text = super().find(name)
        if text is not None:
            self.found.add(os.path.relpath(os.path.realpath(self.path(name)), self.path("")))
        return text


def _host() -> Host:
    """Return a host with something of everything that a file may cost."""
    host = regular_host(1, 2, 2, 1, hugepages=[(2 << 20, 3)])
    kinds = (CoreKind.PERFORMANCE, CoreKind.EFFICIENCY)
    cpus = tuple(
        replace(cpu, isolated=cpu.id == 1, cluster=cpu.id // 2 * 2, kind=kinds[cpu.id // 2])
        for cpu in host.cpus
    )
    first, second, *others = with_memory_only_nodes(host, [1 << 30] * 3).nodes
    backed = zip(others, (MemoryClass.GPU, MemoryClass.CXL, MemoryClass.PMEM), strict=True)
    nodes = (
        replace(first, tier=4, bandwidth=300),
        replace(second, tier=4, bandwidth=300),
        *(replace(node, tier=22, bandwidth=90, backing=backing) for node, backing in backed),
    )
    address = "0000:01:00.0"
    nic = Device("pci", address, address, 1, Mask.of(2, 3), "0x8086", "0x1572", "0x020000")
    devices = (nic, Device("net", "usb0", "", 0, EMPTY))
    return replace(
        host,
        cpus=cpus,
        nodes=nodes,
        nohz_full=Mask.of(1),
        uncore_bytes={0: 1 << 20, 2: 1 << 20},
        devices=devices,
    )


def _optional(root: Path) -> dict[str, list[str]]:
    """Return the optional files that were read, by the pattern of what they may cost."""
    tree = _RecordingTree(root)
    read_host(tree)
    of = {pattern: sorted(filter(re.compile(pattern).fullmatch, tree.found))
          for pattern, _, _ in _COSTS}  # fmt: skip
    assert all(of.values()), of
    return of


def _facts(host: Host) -> dict[tuple[str, object, str], object]:
    """Return each single fact by kind, id and field."""
    facts: dict[tuple[str, object, str], object] = {("host", 0, "nohz_full"): host.nohz_full}
    for kind, things in (("cpu", host.cpus), ("node", host.nodes), ("device", host.devices)):
        for thing in things:
            values = asdict(thing)
            name = values["name"] if kind == "device" else values["id"]
            facts |= {(kind, name, field): value for field, value in values.items()}
    return facts


def _may_cost(file: str, key: tuple[str, object, str]) -> bool:
    return any(re.fullmatch(pattern, file) and key[0] == kind and key[2] == field
               for pattern, kind, field in _COSTS)  # fmt: skip


@pytest.mark.parametrize("damage", _DAMAGES)
def test_an_odd_optional_file_costs_its_own_fact_and_a_warning(tmp_path: Path, damage: str) -> None:
    root = write_tree(_host(), tmp_path)
    before, cost = _facts(discover(root)), set[str]()
    for pattern, files in _optional(root).items():
        for file in (files[0], files[-1]):
            path, content = root / file, (root / file).read_bytes()
            _DAMAGES[damage](path)
            found = discover(root)
            after = _facts(found)
            assert after.keys() == before.keys()
            changed = {key for key in before if before[key] != after[key]}
            assert all(_may_cost(file, key) for key in changed), (file, changed)
            assert len(found.warnings) == 1, file
            assert found.warnings[0].startswith(str(root))
            assert "\n" not in found.warnings[0]
            cost |= {pattern} if changed else set()
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            path.write_bytes(content)
    assert len(cost) > len(_COSTS) // 2


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_capture_of_a_host_with_odd_files_shows_the_same_facts(
    tmp_path: Path, damage: str
) -> None:
    root, again = write_tree(_host(), tmp_path / "root"), tmp_path / "again"
    for files in _optional(root).values():
        _DAMAGES[damage](root / files[0])
    assert capture(root, tmp_path / "host.tar.gz").files > 50
    with tarfile.open(tmp_path / "host.tar.gz") as archive:
        archive.extractall(again, filter="data")
    assert _facts(discover(again)) == _facts(discover(root))


def test_a_damage_of_every_cpu_is_reported_in_a_few_lines(tmp_path: Path) -> None:
    write_tree(regular_host(2, 1, 16), tmp_path)
    for file in tmp_path.glob(f"{CPU}/cpu*/cache/index3/shared_cpu_list"):
        file.write_text("x")
    warnings = discover(tmp_path).warnings
    assert len(warnings) == 21
    assert warnings[-1].endswith("44 more files are odd")


@pytest.mark.parametrize("link", ["vendor", "class", "device"])
def test_no_file_outside_of_the_root_is_read(tmp_path: Path, link: str) -> None:
    (tmp_path / "secret").write_text("0x1234")
    root = write_tree(regular_host(), tmp_path / "root")
    place = root / "sys/bus/pci/devices/0000:00:01.0"
    place.mkdir(parents=True)
    for target in ("../../../../../../secret", str(tmp_path / "secret")):
        (place / link).symlink_to(target)
        assert "0x1234" not in repr(discover(root).devices)
        assert "leads out of the tree" in discover(root).warnings[0]
        (place / link).unlink()


@pytest.mark.parametrize("place", ["sys", "sys/devices/system/cpu", "sys/devices/system/node"])
def test_no_directory_outside_of_the_root_is_read(tmp_path: Path, place: str) -> None:
    other = write_tree(regular_host(packages=4), tmp_path / "other")
    root = write_tree(regular_host(packages=1), tmp_path / "root")
    (root / place).rename(tmp_path / "moved")
    (root / place).symlink_to(other / place)
    with pytest.raises(Exception, match="leads out of the tree"):
        discover(root)


def test_links_inside_of_the_root_are_followed_absolute_or_not(tmp_path: Path) -> None:
    root = write_tree(regular_host(), tmp_path / "root")
    (root / "sys/devices/system").rename(root / "sys/devices/moved")
    (root / "sys/devices/system").symlink_to(root / "sys/devices/moved")
    isolated = root / "sys/devices/moved/cpu/isolated"
    isolated.rename(root / "sys/list")
    isolated.symlink_to("../../../list")
    assert discover(root) == regular_host()

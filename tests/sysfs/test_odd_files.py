"""An optional file that is odd costs its own fact and a warning, never the host."""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from sysfs.capture import capture
from sysfs.described import regular_host, write_tree
from sysfs.discover import discover, read_host
from sysfs.files import SysfsTree
from tests.sysfs.hosts import hosts
from tests.sysfs.trees import CPU, lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sysfs.host import Host

#: Without these a host is none: the threads of a core, the CPUs of a node.
_REQUIRED: Final = re.compile(r".*/(core_cpus_list|node[0-9]+/cpulist)")
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


@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(host=hosts(), data=st.data())
def test_an_odd_optional_file_costs_its_own_fact_and_a_warning(
    host: Host, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = write_tree(host, Path(directory))
        tree = _RecordingTree(root)
        before = _facts(read_host(tree))
        files = sorted(name for name in tree.found if not _REQUIRED.fullmatch(name))
        file = data.draw(st.sampled_from(files), label="file")
        damage = data.draw(st.sampled_from(sorted(_DAMAGES)), label="damage")
        _DAMAGES[damage](root / file)
        found = discover(root)
        after = _facts(found)
        assert after.keys() == before.keys()
        changed = {key for key in before if before[key] != after[key]}
        assert all(_may_cost(file, key) for key in changed), changed
        assert len(found.warnings) == 1
        assert found.warnings[0].startswith(str(root))
        assert "\n" not in found.warnings[0]


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(host=hosts(), data=st.data())
def test_a_capture_of_a_host_with_an_odd_file_shows_the_same_facts(
    host: Host, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root, again = write_tree(host, Path(directory) / "root"), Path(directory) / "again"
        tree = _RecordingTree(root)
        read_host(tree)
        files = sorted(name for name in tree.found if not _REQUIRED.fullmatch(name))
        file = data.draw(st.sampled_from(files), label="file")
        _DAMAGES[data.draw(st.sampled_from(sorted(_DAMAGES)), label="damage")](root / file)
        assert len(capture(root, Path(directory) / "host.tar.gz").warnings) <= 1
        with tarfile.open(Path(directory) / "host.tar.gz") as archive:
            archive.extractall(again, filter="data")
        assert _facts(discover(again)) == _facts(discover(root))


@pytest.mark.parametrize("texts", [("",), ("1",), ("0",), ("4-5", "x"), ("0-1,4", "0-7")])
@pytest.mark.parametrize("name", ["index3/shared_cpu_list", "index3/level"])
def test_contradicting_caches_cost_no_host(
    tmp_path: Path, texts: tuple[str, ...], name: str
) -> None:
    host = regular_host()
    write_tree(host, tmp_path)
    for cpu, text in enumerate(texts):
        lay_out(tmp_path, {f"{CPU}/cpu{cpu}/cache/{name}": text})
    found = discover(tmp_path)
    assert [cpu.core for cpu in found.cpus] == [cpu.core for cpu in host.cpus]
    assert found.nodes == host.nodes


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

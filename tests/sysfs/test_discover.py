from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sysfs.described import regular_host, with_memory_only_nodes, with_offline, write_tree
from sysfs.discover import discover, read_host
from sysfs.files import MissingFile, SysfsError, SysfsTree
from sysfs.host import Device, Host
from sysfs.mask import Mask
from tests.shared import needs_shared
from tests.sysfs.machines import Machine, machines
from tests.sysfs.trees import CPU, lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: Counts of expected.json that are not what the kernel shows. This machine has the maps
#: core_cpus alone, which the independent reading did not know; every CPU is a core of its own.
CORRECTED = {"hwloc-fakememinitiators-1np2c+1npp+gi": {"cores": 8, "threads_per_core": 1}}


@needs_shared("hosts")
@pytest.mark.shared
def test_all_captured_machines_are_there() -> None:
    assert len(machines()) == 23


@pytest.mark.shared
@pytest.mark.parametrize("machine", machines(), ids=lambda machine: machine.name)
def test_a_captured_machine_is_read_as_it_is_known(
    machine: Machine, machine_root: Callable[[Machine], Path]
) -> None:
    host = discover(machine_root(machine))
    online = [cpu for cpu in host.cpus if cpu.online]
    assert {
        "cpus": len(host.cpus),
        "packages": len({cpu.package for cpu in online}),
        "dies": len({cpu.die for cpu in online} - {None}),
        "clusters": len({cpu.cluster for cpu in online} - {None}),
        "cores": len({cpu.core for cpu in online}),
        "threads_per_core": max(Counter(cpu.core for cpu in online).values()),
        "l3_groups": len({cpu.uncore for cpu in online} - {None}),
        "pci_devices": sum(device.kind == "pci" for device in host.devices),
    } == {**machine.counts, **CORRECTED.get(machine.name, {})}
    assert (host.online, host.isolated) == (machine.online, machine.isolated)
    for group_of in ("core", "cluster", "die", "uncore"):  # each named after its lowest CPU
        members: dict[int | None, list[int]] = {}
        for cpu in online:
            members.setdefault(getattr(cpu, group_of), []).append(cpu.id)
        members.pop(None, None)
        assert all(group == min(ids) for group, ids in members.items())
    if not machine.node_cpus:
        assert [(node.id, node.cpus) for node in host.nodes] == [(0, machine.online)]
        return
    assert {node.id: node.cpus for node in host.nodes} == {
        node: cpus & machine.online for node, cpus in machine.node_cpus.items()
    }
    memory = {node.id: node.memory_bytes for node in host.nodes}
    known = {node: total for node, total in machine.node_memory.items() if total is not None}
    assert memory | known == memory
    assert host.memory_only_nodes == machine.memory_only
    sizes = {pool.size_bytes for node in host.nodes for pool in node.hugepages}
    assert sizes == machine.hugepage_sizes
    rows = [" ".join(str(value) for value in node.distances.values()) for node in host.nodes]
    # Its one row "21 10" is of nodes 0 and 1, and node 0 is offline.
    offline = machine.name == "hwloc-offline-cpu0-node0"
    assert rows == (["10"] if offline else list(machine.distances))


_DAMAGE = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.text(alphabet="0123456789,-\n\0 af", max_size=30).map(str.encode),
)


@pytest.fixture(scope="module")
def intact() -> Iterator[Path]:
    """Lay out one host with something of everything."""
    host = with_memory_only_nodes(
        regular_host(packages=2, cores_per_node=2, hugepages=[(2 << 20, 3)]), [1 << 30]
    )
    with tempfile.TemporaryDirectory() as directory:
        root = write_tree(with_offline(host, Mask.of(7)), Path(directory) / "root")
        device = "sys/bus/pci/devices/0000:00:01.0"
        files = {f"{device}/numa_node": "1\n", f"{device}/local_cpulist": "2-3\n"}
        lay_out(
            root, {**files, "sys/devices/cpu_atom/cpus": "0\n", f"{CPU}/cpu0/cpu_capacity": "9"}
        )
        yield root


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_tree_is_an_error_that_names_a_file_or_a_fallback(
    intact: Path, data: st.DataObject
) -> None:
    files = sorted(path for path in intact.rglob("*") if path.is_file() and not path.is_symlink())
    victim = data.draw(st.sampled_from(files), label="file")
    damage = data.draw(_DAMAGE, label="content")
    content = victim.read_bytes()
    try:
        victim.unlink() if damage is None else victim.write_bytes(damage)
        outcome = _discovered(intact)
    finally:
        victim.write_bytes(content)
    if isinstance(outcome, SysfsError):
        assert outcome.path.startswith(str(intact))
        assert "\n" not in str(outcome)
    else:
        assert outcome.online
        assert all(cpu.core is not None for cpu in outcome.cpus if cpu.online)


def _discovered(root: Path) -> Host | SysfsError:
    try:
        return discover(root)
    except SysfsError as error:
        return error


@pytest.mark.parametrize("name", [CPU, f"{CPU}/cpu0", "sys/devices/system/node", "sys"])
def test_a_file_where_a_directory_belongs_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    root = write_tree(regular_host(), tmp_path / "root")
    shutil.rmtree(root / name)
    (root / name).write_text("")
    with pytest.raises(SysfsError, match=name):
        discover(root)


def test_a_root_without_a_tree_says_what_a_root_is(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="name the directory that contains sys/"):
        discover(tmp_path)


class _CountingTree(SysfsTree):
    """A tree that counts what is asked of it, by file name."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()

    def find(self, name: str) -> str | None:
        self.asked[name.rpartition("/")[2]] += 1
        return super().find(name)


def test_each_group_is_read_once_so_large_hosts_are_read_quickly(tmp_path: Path) -> None:
    host = regular_host(2, 4, 8, 4, uncores_per_node=2)
    tree = _CountingTree(write_tree(host, tmp_path))
    assert read_host(tree) == host
    assert tree.asked["core_cpus_list"] == 64
    assert tree.asked["shared_cpu_list"] == 16
    assert tree.asked["die_cpus_list"] == tree.asked["package_cpus_list"] == 2


def test_without_devices_all_the_rest_is_read(tmp_path: Path) -> None:
    host = replace(regular_host(), devices=(Device("pci", "0000:01:00.0", "0000:01:00.0", 0),))
    root = write_tree(host, tmp_path)
    assert discover(root).devices
    assert discover(root, devices=False) == replace(discover(root), devices=())

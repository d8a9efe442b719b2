from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.cpus import read_core_kinds, read_cpu_sets
from sysfs.errors import MalformedFile, MissingFile
from sysfs.files import Tree
from sysfs.host import CoreKind
from sysfs.mask import Mask
from tests.sysfs.trees import CPU, lay_out

if TYPE_CHECKING:
    from pathlib import Path


def test_the_kernels_lists_are_taken(tmp_path: Path) -> None:
    files = {"present": "0-7\n", "online": "0-5\n", "isolated": "2-3\n", "nohz_full": "2\n"}
    sets = read_cpu_sets(Tree(lay_out(tmp_path, {f"{CPU}/{k}": v for k, v in files.items()})))
    assert (str(sets.present), str(sets.online)) == ("0-7", "0-5")
    assert (str(sets.isolated), str(sets.nohz_full)) == ("2-3", "2")


def test_the_list_of_offline_ids_beyond_the_present_cpus_does_not_matter(tmp_path: Path) -> None:
    files = {f"{CPU}/present": "0-3", f"{CPU}/online": "0-3", f"{CPU}/offline": "4-191"}
    assert read_cpu_sets(Tree(lay_out(tmp_path, files))).present == Mask.parse("0-3")


def test_without_lists_the_directories_and_their_online_files_count(tmp_path: Path) -> None:
    files = {
        f"{CPU}/cpu0/topology/core_id": "0",  # the boot CPU often has no online file
        f"{CPU}/cpu1/online": "1\n",
        f"{CPU}/cpu2/online": "0\n",
        f"{CPU}/cpu2/topology/core_id": "0",
        f"{CPU}/cpu3/online": "\n",  # some kernels leave it empty
        f"{CPU}/cpu3/topology/core_id": "0",
        f"{CPU}/cpu4/online": "",
        f"{CPU}/cpufreq/boost": "1",
    }
    sets = read_cpu_sets(Tree(lay_out(tmp_path, files)))
    assert (str(sets.present), str(sets.online)) == ("0-4", "0-1,3")


@pytest.mark.parametrize("text", ["(null)\n", "          (null)\n", "\n", "\0", ""])
def test_a_list_that_was_never_set_is_empty(tmp_path: Path, text: str) -> None:
    files = {f"{CPU}/present": "0", f"{CPU}/online": "0", f"{CPU}/nohz_full": text}
    assert not read_cpu_sets(Tree(lay_out(tmp_path, files))).nohz_full


def test_an_online_cpu_that_is_not_present_is_not_counted(tmp_path: Path) -> None:
    files = {f"{CPU}/present": "0-1", f"{CPU}/online": "0-3"}
    assert read_cpu_sets(Tree(lay_out(tmp_path, files))).online == Mask.parse("0-1")


@pytest.mark.parametrize("files", [{}, {f"{CPU}/present": "0-1", f"{CPU}/online": "\n"}])
def test_a_host_without_online_cpus_is_no_host(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(MissingFile, match="no online CPU was found"):
        read_cpu_sets(Tree(lay_out(tmp_path, files)))


@pytest.mark.parametrize("name", ["present", "online", "isolated", "nohz_full"])
def test_garbage_in_a_list_is_told_with_its_file(tmp_path: Path, name: str) -> None:
    files = {"present": "0-1", "online": "0-1", name: "0-x"}
    with pytest.raises(MalformedFile, match=f"cpu/{name}: found '0-x'"):
        read_cpu_sets(Tree(lay_out(tmp_path, {f"{CPU}/{k}": v for k, v in files.items()})))


def test_hybrid_x86_kinds_come_from_the_lists_of_the_pmus(tmp_path: Path) -> None:
    files = {
        "sys/devices/cpu_core/cpus": "0-1\n",
        "sys/devices/cpu_atom/cpus": "2\n",
        "sys/devices/cpu_lowpower/cpus": "3,9\n",
    }
    performance, efficiency = CoreKind.PERFORMANCE, CoreKind.EFFICIENCY
    kinds = read_core_kinds(Tree(lay_out(tmp_path, files)), Mask.parse("0-3"))
    assert kinds == {0: performance, 1: performance, 2: efficiency, 3: efficiency}


def test_differing_capacities_part_the_fastest_from_the_others(tmp_path: Path) -> None:
    capacities = {0: "446", 1: "871", 2: "1024"}
    files = {f"{CPU}/cpu{cpu}/cpu_capacity": text for cpu, text in capacities.items()}
    kinds = read_core_kinds(Tree(lay_out(tmp_path, files)), Mask.parse("0-2"))
    efficiency = CoreKind.EFFICIENCY
    assert kinds == {0: efficiency, 1: efficiency, 2: CoreKind.PERFORMANCE}


def test_equal_capacities_are_standard_cores(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu{cpu}/cpu_capacity": "1024" for cpu in range(4)}
    assert read_core_kinds(Tree(lay_out(tmp_path, files)), Mask.parse("0-3")) == {}

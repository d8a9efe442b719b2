from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.cpus import Topology, read_topology
from sysfs.files import InconsistentTree, MalformedFile, MissingFile, SysfsTree
from sysfs.mask import Mask
from tests.sysfs.trees import CPU, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def _read(root: Path, online: str, files: Mapping[str, Mapping[str, str]]) -> Topology:
    """Read the topology of CPUs, each given as list of ids -> files of their `topology`."""
    for ids, texts in files.items():
        for cpu in Mask.parse(ids):
            lay_out(root, {f"{CPU}/cpu{cpu}/topology/{name}": t for name, t in texts.items()})
    return read_topology(SysfsTree(root), Mask.parse(online))


def test_groups_are_named_after_their_lowest_online_cpu(tmp_path: Path) -> None:
    pair = {"physical_package_id": "7", "package_cpus_list": "0-3"}
    topology = _read(
        tmp_path,
        "1-3",
        {
            "0,2": {**pair, "core_cpus_list": "0,2", "cluster_cpus_list": "0,2", "cluster_id": "5"},
            "1,3": {**pair, "core_cpus_list": "1,3", "cluster_cpus_list": "1,3", "cluster_id": "5"},
        },
    )
    assert topology.cores == {2: 2, 1: 1, 3: 1}
    assert topology.clusters == {2: 2, 1: 1, 3: 1}
    assert topology.packages == {1: 7, 2: 7, 3: 7}
    assert topology.dies == {}


@pytest.mark.parametrize(
    "texts",
    [
        {"core_cpus_list": "0-1", "package_cpus_list": "0-1"},
        {"thread_siblings_list": "0-1", "core_siblings_list": "0-1"},
        {"core_cpus": "3", "package_cpus": "3"},
        {"thread_siblings": "00000000,00000003", "core_siblings": "00000000,00000003"},
    ],
)
def test_older_names_and_hexadecimal_maps_will_do(tmp_path: Path, texts: dict[str, str]) -> None:
    topology = _read(tmp_path, "0-1", {"0-1": {**texts, "physical_package_id": "2"}})
    assert (topology.cores, topology.packages) == ({0: 0, 1: 0}, {0: 2, 1: 2})


def test_packages_of_cpus_without_package_lists_are_read_one_by_one(tmp_path: Path) -> None:
    topology = _read(
        tmp_path,
        "0-1",
        {
            "0": {"core_cpus_list": "0", "physical_package_id": "4"},
            "1": {"core_cpus_list": "1", "physical_package_id": "9"},
        },
    )
    assert topology.packages == {0: 4, 1: 9}


@pytest.mark.parametrize(
    ("ids", "packages"),
    [
        (("-1", "-1"), {0: 0, 1: 0}),
        (("-1", "0"), {0: 1, 1: 0}),
        (("1", "-1"), {0: 1, 1: 0}),
        (("-7", "-1"), {0: 0, 1: 0}),
    ],
)
def test_cpus_without_a_package_id_form_one_package(
    tmp_path: Path, ids: tuple[str, str], packages: dict[int, int]
) -> None:
    topology = _read(
        tmp_path,
        "0-1",
        {
            "0": {"core_cpus_list": "0", "physical_package_id": ids[0]},
            "1": {"core_cpus_list": "1", "physical_package_id": ids[1]},
        },
    )
    assert topology.packages == packages


def test_an_absent_package_id_is_an_unknown_one(tmp_path: Path) -> None:
    assert _read(tmp_path, "0", {"0": {"core_cpus_list": "0"}}).packages == {0: 0}


def test_without_die_ids_the_package_is_the_die(tmp_path: Path) -> None:
    def texts(cpu: int, package: str) -> dict[str, str]:
        return {
            "core_cpus_list": str(cpu),
            "physical_package_id": package,
            "die_id": "-1",
            "die_cpus_list": str(cpu),
        }

    files = {str(cpu): texts(cpu, str(cpu // 2)) for cpu in range(4)}
    assert _read(tmp_path, "0-3", files).dies == {0: 0, 1: 0, 2: 2, 3: 2}


def test_die_ids_repeat_across_packages(tmp_path: Path) -> None:
    def texts(cpu: int) -> dict[str, str]:
        return {
            "core_cpus_list": str(cpu),
            "physical_package_id": str(cpu),
            "die_id": "0",
            "die_cpus_list": str(cpu),
        }

    files = {str(cpu): texts(cpu) for cpu in range(2)}
    assert _read(tmp_path, "0-1", files).dies == {0: 0, 1: 1}


@pytest.mark.parametrize("texts", [{}, {"cluster_id": "-1", "cluster_cpus_list": "0"}])
def test_a_cpu_may_have_no_cluster(tmp_path: Path, texts: dict[str, str]) -> None:
    assert _read(tmp_path, "0", {"0": {"core_cpus_list": "0", **texts}}).clusters == {}


def test_siblings_far_beyond_the_present_cpus_do_not_matter(tmp_path: Path) -> None:
    texts = {"core_cpus_list": "0-87", "physical_package_id": "0", "package_cpus_list": "0-175"}
    assert _read(tmp_path, "2-3", {"2-3": texts}).cores == {2: 2, 3: 2}


def test_an_online_cpu_must_list_its_threads(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"cpu1/topology/core_cpus_list.*CPU 1 is online"):
        _read(tmp_path, "0-1", {"0": {"core_cpus_list": "0"}})


def test_where_no_cpu_lists_its_threads_each_is_a_core(tmp_path: Path) -> None:
    lay_out(tmp_path, {f"{CPU}/cpu{cpu}/topology/physical_package_id": "0" for cpu in range(3)})
    tree = SysfsTree(tmp_path)
    assert read_topology(tree, Mask.parse("0-2")).cores == {0: 0, 1: 1, 2: 2}
    (warning,) = tree.warnings
    assert "none of the CPUs lists its threads; each CPU is a core of its own" in warning


def test_a_cpu_must_be_in_its_own_core(tmp_path: Path) -> None:
    with pytest.raises(InconsistentTree, match=r"cpu0/topology/core_cpus_list.*CPU 0 is not in"):
        _read(tmp_path, "0-1", {"0-1": {"core_cpus_list": "1"}})


def test_cores_must_not_overlap(tmp_path: Path) -> None:
    with pytest.raises(InconsistentTree, match="CPUs 1 are in two groups"):
        _read(tmp_path, "0-2", {"0": {"core_cpus_list": "0-1"}, "2": {"core_cpus_list": "1-2"}})


def test_a_core_must_not_be_in_two_packages(tmp_path: Path) -> None:
    files = {
        "0": {"core_cpus_list": "0-1", "physical_package_id": "0"},
        "1": {"core_cpus_list": "0-1", "physical_package_id": "1"},
    }
    with pytest.raises(InconsistentTree, match="threads 0-1 of one core are in two packages"):
        _read(tmp_path, "0-1", files)


@pytest.mark.parametrize("text", [str(1 << 31), "x", ""])
def test_a_cpu_whose_package_id_is_odd_is_in_that_of_its_core(tmp_path: Path, text: str) -> None:
    files = {f"{CPU}/cpu{cpu}/topology/core_cpus_list": "0-1" for cpu in (0, 1)}
    files[f"{CPU}/cpu0/topology/physical_package_id"] = text
    files[f"{CPU}/cpu1/topology/physical_package_id"] = "7"
    tree = SysfsTree(lay_out(tmp_path, files))
    assert read_topology(tree, Mask.of(0, 1)).packages == {0: 7, 1: 7}
    assert "cpu0/topology/physical_package_id: found" in tree.warnings[0]


@pytest.mark.parametrize("name", ["physical_package_id", "die_id", "cluster_id"])
def test_garbage_in_an_id_is_a_warning_with_its_file(tmp_path: Path, name: str) -> None:
    texts = {"core_cpus_list": "0", "die_cpus_list": "0", "cluster_cpus_list": "0", name: "x"}
    tree = SysfsTree(lay_out(tmp_path, {f"{CPU}/cpu0/topology/{k}": v for k, v in texts.items()}))
    found = read_topology(tree, Mask.of(0))
    assert (found.dies, found.clusters, found.packages) == ({}, {}, {0: 0})
    (warning,) = tree.warnings
    assert f"cpu0/topology/{name}: found 'x'" in warning


def test_garbage_in_the_list_of_threads_is_reported_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="cpu0/topology/core_cpus_list: found 'x'"):
        _read(tmp_path, "0", {"0": {"core_cpus_list": "x"}})


def test_cores_are_sibling_lists_whatever_their_ids(tmp_path: Path) -> None:
    files = {
        cpus: {"core_cpus_list": cpus, "core_id": "0", "physical_package_id": "0"}
        for cpus in ("0-1", "2-3")
    }
    assert _read(tmp_path, "0-3", files).cores == {0: 0, 1: 0, 2: 2, 3: 2}

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from sysfs.cpus import Topology, read_topology
from sysfs.files import InconsistentTree, MalformedFile, MissingFile, SysfsError, SysfsTree
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


def test_where_no_cpu_lists_its_threads_each_is_a_core(tmp_path: Path) -> None:
    lay_out(tmp_path, {f"{CPU}/cpu{cpu}/topology/physical_package_id": "0" for cpu in range(3)})
    tree = SysfsTree(tmp_path)
    assert read_topology(tree, Mask.parse("0-2")).cores == {0: 0, 1: 1, 2: 2}
    (warning,) = tree.warnings
    assert "none of the CPUs lists its threads; each CPU is a core of its own" in warning


#: What each CPU shows, and the groups that follow: each of the CPUs 0, 1, … is core, package, die.
GROUPS: Final[Mapping[str, tuple[dict[str, dict[str, str]], dict[str, object]]]] = {
    "no list of a package": (
        {"0": {"physical_package_id": "4"}, "1": {"physical_package_id": "9"}},
        {"packages": {0: 4, 1: 9}},
    ),
    "no package": (
        {"0": {"physical_package_id": "-1"}, "1": {"physical_package_id": "-7"}},
        {"packages": {0: 0, 1: 0}},
    ),
    "no package beside package 0": (
        {"0": {"physical_package_id": "-1"}, "1": {"physical_package_id": "0"}},
        {"packages": {0: 1, 1: 0}},
    ),
    "no package beside package 1": (
        {"0": {"physical_package_id": "1"}, "1": {"physical_package_id": "-1"}},
        {"packages": {0: 1, 1: 0}},
    ),
    "no id of a package": ({"0": {}}, {"packages": {0: 0}}),
    "no id of a die, so that the package is it": (
        {
            str(cpu): {
                "physical_package_id": str(cpu // 2),
                "die_id": "-1",
                "die_cpus_list": str(cpu),
            }
            for cpu in range(4)
        },
        {"dies": {0: 0, 1: 0, 2: 2, 3: 2}},
    ),
    "ids of dies that repeat in each package": (
        {
            str(cpu): {"physical_package_id": str(cpu), "die_id": "0", "die_cpus_list": str(cpu)}
            for cpu in range(2)
        },
        {"dies": {0: 0, 1: 1}},
    ),
    "no file of a cluster": ({"0": {}}, {"clusters": {}}),
    "no cluster": ({"0": {"cluster_id": "-1", "cluster_cpus_list": "0"}}, {"clusters": {}}),
    "siblings far beyond the present CPUs": (
        {"2-3": {"core_cpus_list": "0-87", "package_cpus_list": "0-175"}},
        {"cores": {2: 2, 3: 2}},
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_follow_from_what_the_cpus_show(tmp_path: Path, case: str) -> None:
    shown, groups = GROUPS[case]
    files = {ids: {"core_cpus_list": ids, **texts} for ids, texts in shown.items()}
    topology = _read(tmp_path, ",".join(files), files)
    assert {name: getattr(topology, name) for name in groups} == groups


@pytest.mark.parametrize(
    ("lists", "packages", "error", "says"),
    [
        (("0", None), "", MissingFile, r"cpu1/topology/core_cpus_list.*CPU 1 is online"),
        (("1", "1"), "", InconsistentTree, "cpu0/topology/core_cpus_list.*CPU 0 is not in"),
        (("0-1", None, "1-2"), "", InconsistentTree, "CPUs 1 are in two groups"),
        (("0-1", "0-1"), "01", InconsistentTree, "threads 0-1 of one core are in two packages"),
        (("x",), "", MalformedFile, "cpu0/topology/core_cpus_list: found 'x'"),
    ],
    ids=["no list", "not in its own", "overlapping", "in two packages", "no list of CPUs"],
)
def test_lists_of_threads_that_cannot_be_are_an_error(
    tmp_path: Path, lists: tuple[str | None, ...], packages: str, error: type[SysfsError], says: str
) -> None:
    files = {str(cpu): {"core_cpus_list": text} for cpu, text in enumerate(lists) if text}
    for cpu, package in enumerate(packages):
        files[str(cpu)]["physical_package_id"] = package
    with pytest.raises(error, match=says):
        _read(tmp_path, f"0-{len(lists) - 1}", files)


@pytest.mark.parametrize("text", [str(1 << 31), "x", ""])
def test_a_cpu_whose_package_id_is_odd_is_in_that_of_its_core(tmp_path: Path, text: str) -> None:
    files = {f"{CPU}/cpu{cpu}/topology/core_cpus_list": "0-1" for cpu in (0, 1)}
    files[f"{CPU}/cpu0/topology/physical_package_id"] = text
    files[f"{CPU}/cpu1/topology/physical_package_id"] = "7"
    tree = SysfsTree(lay_out(tmp_path, files))
    assert read_topology(tree, Mask.of(0, 1)).packages == {0: 7, 1: 7}
    assert "cpu0/topology/physical_package_id: found" in tree.warnings[0]


# Shows in differences.md: sibling-lists
def test_cores_are_sibling_lists_whatever_their_ids(tmp_path: Path) -> None:
    files = {
        cpus: {"core_cpus_list": cpus, "core_id": "0", "physical_package_id": "0"}
        for cpus in ("0-1", "2-3")
    }
    assert _read(tmp_path, "0-3", files).cores == {0: 0, 1: 0, 2: 2, 3: 2}

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysfs.cpus import MIDR, read_core_kinds, read_cpu_sets
from sysfs.files import InconsistentTree, MissingFile, SysfsTree
from sysfs.host import CoreKind
from sysfs.mask import Mask
from tests.sysfs.trees import CPU, lay_out


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
    sets = read_cpu_sets(SysfsTree(lay_out(tmp_path, files)))
    assert (str(sets.present), str(sets.online)) == ("0-4", "0-1,3")


@pytest.mark.parametrize("text", ["(null)\n", "          (null)\n", "\n", "\0", ""])
def test_a_list_that_was_never_set_is_empty(tmp_path: Path, text: str) -> None:
    files = {f"{CPU}/present": "0", f"{CPU}/online": "0", f"{CPU}/nohz_full": text}
    assert not read_cpu_sets(SysfsTree(lay_out(tmp_path, files))).nohz_full


def test_an_online_cpu_that_is_not_present_is_not_counted(tmp_path: Path) -> None:
    files = {f"{CPU}/present": "0-1", f"{CPU}/online": "0-3"}
    assert read_cpu_sets(SysfsTree(lay_out(tmp_path, files))).online == Mask.parse("0-1")


def test_a_root_without_cpus_is_not_a_host(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no online CPU was found; name the directory"):
        read_cpu_sets(SysfsTree(tmp_path))


@pytest.mark.parametrize("text", ["\n", "\0\0", "x", ""])
def test_a_list_of_online_cpus_that_is_there_is_not_called_absent(
    tmp_path: Path, text: str
) -> None:
    files = {f"{CPU}/present": "0-1", f"{CPU}/online": text}
    with pytest.raises(InconsistentTree, match="cpu/online: no online CPU was found, neither"):
        read_cpu_sets(SysfsTree(lay_out(tmp_path, files)))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        *((name, "0-x", "found '0-x'") for name in ("present", "online", "isolated", "nohz_full")),
        *((name, "\0\0", "it lists no CPU") for name in ("present", "online")),
    ],
)
def test_an_odd_list_is_a_warning_and_as_good_as_no_list(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    files = {"present": "0-1", "online": "0-1", name: text}
    files |= {"cpu0/topology/core_id": "0", "cpu1/online": "1"}
    tree = SysfsTree(lay_out(tmp_path, {f"{CPU}/{k}": v for k, v in files.items()}))
    sets = read_cpu_sets(tree)
    assert (str(sets.present), str(sets.online)) == ("0-1", "0-1")
    assert not sets.isolated | sets.nohz_full
    assert f"cpu/{name}: {says}" in tree.warnings[0]


def test_online_cpus_of_which_none_is_present_are_a_contradiction(tmp_path: Path) -> None:
    files = {f"{CPU}/present": "0-1", f"{CPU}/online": "8"}
    with pytest.raises(InconsistentTree, match="CPUs 8 are online and CPUs 0-1 present"):
        read_cpu_sets(SysfsTree(lay_out(tmp_path, files)))


#: Cortex-X925 and Cortex-A725, as ten and ten of them stand in one package.
_BIG, _LITTLE = 0xD85, 0xD87


def _arm(root: Path, cpus: list[tuple[int | None, int]]) -> SysfsTree:
    """Lay out CPUs of a part number and a capacity each; their revisions differ."""
    for cpu, (part, capacity) in enumerate(cpus):
        lay_out(root, {f"{CPU}/cpu{cpu}/cpu_capacity": f"{capacity}\n"})
        if part is not None:
            register = 0x41 << 24 | cpu % 3 << 20 | 0xF << 16 | part << 4 | cpu % 2
            lay_out(root, {f"{CPU}/cpu{cpu}/{MIDR}": f"0x{register:016x}\n"})
    return SysfsTree(root)


_P, _E = CoreKind.PERFORMANCE, CoreKind.EFFICIENCY


@pytest.mark.parametrize(
    ("cpus", "kinds"),
    [
        ([(None, 446), (None, 871), (None, 1024)], [_E, _E, _P]),
        ([(None, 1024)] * 4, []),
        (
            [*((_LITTLE, c) for c in (718, 700)), *((_BIG, c) for c in (997, 1017, 997, 1024))],
            [_E] * 2 + [_P] * 4,
        ),
        ([(_BIG, 500), (_BIG, 1024)], []),
    ],
    ids=["capacities", "one capacity", "two models", "one model of two capacities"],
)
def test_models_part_the_fastest_cores_from_the_others_else_capacities_do(
    tmp_path: Path, cpus: list[tuple[int | None, int]], kinds: list[CoreKind]
) -> None:
    found = read_core_kinds(_arm(tmp_path, cpus), Mask.from_ids(range(len(cpus))))
    assert list(found.values()) == kinds


def test_hybrid_x86_kinds_come_from_the_lists_of_the_pmus(tmp_path: Path) -> None:
    pmus = {"core": "0-1\n", "atom": "2\n", "lowpower": "3,9\n"}
    lay_out(tmp_path, {f"sys/devices/cpu_{name}/cpus": text for name, text in pmus.items()})
    kinds = read_core_kinds(SysfsTree(tmp_path), Mask.parse("0-3"))
    assert kinds == {0: _P, 1: _P, 2: _E, 3: _E}


@given(
    fast=st.lists(st.integers(950, 1024), min_size=1),
    slow=st.lists(st.integers(300, 800), max_size=9),
)
@settings(max_examples=25, deadline=None)
def test_without_models_only_a_clear_fall_of_capacity_makes_kinds(
    fast: list[int], slow: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        tree = _arm(Path(directory), [(None, capacity) for capacity in (*fast, *slow)])
        kinds = read_core_kinds(tree, Mask.from_ids(range(len(fast) + len(slow))))
    expected = [CoreKind.PERFORMANCE] * len(fast) + [CoreKind.EFFICIENCY] * len(slow)
    assert list(kinds.values()) == (expected if slow else [])


def test_a_model_that_cannot_be_read_costs_the_kind_of_its_cpu(tmp_path: Path) -> None:
    tree = _arm(tmp_path, [(_BIG, 1024), (_LITTLE, 700), (_LITTLE, 700)])
    lay_out(tmp_path, {f"{CPU}/cpu1/{MIDR}": "fast\n"})
    kinds = read_core_kinds(tree, Mask.parse("0-2"))
    assert kinds == {0: CoreKind.PERFORMANCE, 2: CoreKind.EFFICIENCY}
    assert "midr_el1: found 'fast'" in tree.warnings[0]

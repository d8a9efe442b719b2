from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from sysfs.cpus import read_uncore, read_uncore_sizes
from sysfs.files import SysfsTree
from sysfs.mask import Mask
from tests.sysfs.trees import CPU, lay_out

if TYPE_CHECKING:
    from pathlib import Path


def _cache(root: Path, cpu: int, index: int, level: int, shared: dict[str, str]) -> None:
    directory = f"{CPU}/cpu{cpu}/cache/index{index}"
    texts = {"level": f"{level}\n", **shared}
    lay_out(root, {f"{directory}/{name}": text for name, text in texts.items()})


#: What caches show, as (CPU, number, level, name, text), and the groups of CPUs 0-3.
GROUPS: Final = {
    "the third level, first of all": (
        [(cpu, index, level, "shared_cpu_list", "0-2" if level == 3 else str(cpu))
         for cpu in (1, 2) for index, level in ((0, 3), (1, 2))],
        {1: 1, 2: 1},
    ),
    "the third level, after others": (
        [(cpu, index, level, "shared_cpu_list", "0-2" if level == 3 else str(cpu))
         for cpu in (1, 2) for index, level in ((4, 3), (3, 2))],
        {1: 1, 2: 1},
    ),
    "a hexadecimal map": (
        [(cpu, 3, 3, "shared_cpu_map", "00000000,00000003") for cpu in (0, 1)],
        {0: 0, 1: 0},
    ),
    "CPUs without a cache of the third level": (
        [(0, 3, 3, "shared_cpu_list", "0-1"), (2, 2, 2, "shared_cpu_list", "2-3")],
        {0: 0, 1: 0},
    ),
    "a cache that does not say who shares it": ([(0, 3, 3, "size", "1K")], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", GROUPS)
def test_the_cpus_that_share_a_third_level_are_a_group(tmp_path: Path, case: str) -> None:
    caches, groups = GROUPS[case]
    for cpu, index, level, name, text in caches:
        _cache(tmp_path, cpu, index, level, {name: text})
    online = Mask.from_ids(groups) | Mask.of(2 if groups.get(0) == 0 else 1)
    assert read_uncore(SysfsTree(tmp_path), online) == groups


@pytest.mark.parametrize("name", ["shared_cpu_list", "shared_cpu_map"])
def test_of_caches_that_overlap_none_counts_and_the_file_that_was_read_is_named(
    tmp_path: Path, name: str
) -> None:
    sets = ("0-1", "1-2", "3") if name.endswith("list") else ("3", "6", "8")
    for cpu, shared in zip((0, 2, 3), sets, strict=True):
        _cache(tmp_path, cpu, 3, 3, {name: shared})
    tree = SysfsTree(tmp_path)
    assert read_uncore(tree, Mask.parse("0-3")) == {3: 3}
    (warning,) = tree.warnings
    assert warning.startswith(f"{tmp_path}/{CPU}/cpu2/cache/index3/{name}: CPUs 1 are in two")


@pytest.mark.parametrize("own", ["", "1", "x"])
def test_a_cpu_whose_set_is_odd_is_in_the_cache_that_another_names(
    tmp_path: Path, own: str
) -> None:
    _cache(tmp_path, 0, 3, 3, {"shared_cpu_list": own})
    _cache(tmp_path, 1, 3, 3, {"shared_cpu_list": "0-1"})
    tree = SysfsTree(tmp_path)
    assert read_uncore(tree, Mask.parse("0-1")) == {0: 0, 1: 0}
    assert "cpu0/cache/index3/shared_cpu_list" in tree.warnings[0]


@pytest.mark.parametrize("size", ["", "32768", "0K", "-1K", "32M", "x"])
def test_an_odd_size_of_a_cache_is_a_warning(tmp_path: Path, size: str) -> None:
    _cache(tmp_path, 0, 3, 3, {"shared_cpu_list": "0", "size": size})
    tree = SysfsTree(tmp_path)
    assert read_uncore_sizes(tree, {0: 0}) == {}
    assert f"cpu0/cache/index3/size: found {size!r}" in tree.warnings[0]

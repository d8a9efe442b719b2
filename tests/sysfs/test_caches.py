from __future__ import annotations

from typing import TYPE_CHECKING

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


@pytest.mark.parametrize("index", [0, 2, 3, 4])
def test_the_third_level_is_found_wherever_it_stands(tmp_path: Path, index: int) -> None:
    for cpu in (1, 2):
        _cache(tmp_path, cpu, index, 3, {"shared_cpu_list": "0-2"})
        _cache(tmp_path, cpu, index + 1, 2, {"shared_cpu_list": str(cpu)})
    assert read_uncore(SysfsTree(tmp_path), Mask.of(1, 2)) == {1: 1, 2: 1}


def test_a_hexadecimal_map_will_do(tmp_path: Path) -> None:
    for cpu in (0, 1):
        _cache(tmp_path, cpu, 3, 3, {"shared_cpu_map": "00000000,00000003"})
    assert read_uncore(SysfsTree(tmp_path), Mask.of(0, 1)) == {0: 0, 1: 0}


def test_some_cpus_may_have_no_uncore_cache(tmp_path: Path) -> None:
    _cache(tmp_path, 0, 3, 3, {"shared_cpu_list": "0-1"})
    _cache(tmp_path, 2, 2, 2, {"shared_cpu_list": "2-3"})
    assert read_uncore(SysfsTree(tmp_path), Mask.parse("0-3")) == {0: 0, 1: 0}


def test_a_cache_that_does_not_say_who_shares_it_is_of_no_use(tmp_path: Path) -> None:
    _cache(tmp_path, 0, 3, 3, {})
    assert read_uncore(SysfsTree(tmp_path), Mask.of(0)) == {}


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


def test_the_size_of_a_cache_is_read_from_its_lowest_cpu(tmp_path: Path) -> None:
    for cpu, size in ((2, "32768K"), (3, "1K")):
        _cache(tmp_path, cpu, 3, 3, {"shared_cpu_list": "2-3", "size": size})
    assert read_uncore_sizes(SysfsTree(tmp_path), {2: 2, 3: 2}) == {2: 32 << 20}


@pytest.mark.parametrize("size", ["", "32768", "0K", "-1K", "32M", "x"])
def test_an_odd_size_of_a_cache_is_a_warning(tmp_path: Path, size: str) -> None:
    _cache(tmp_path, 0, 3, 3, {"shared_cpu_list": "0", "size": size})
    tree = SysfsTree(tmp_path)
    assert read_uncore_sizes(tree, {0: 0}) == {}
    assert f"cpu0/cache/index3/size: found {size!r}" in tree.warnings[0]


def test_a_cache_without_a_size_has_none(tmp_path: Path) -> None:
    _cache(tmp_path, 0, 3, 3, {"shared_cpu_list": "0"})
    tree = SysfsTree(tmp_path)
    assert (read_uncore_sizes(tree, {0: 0}), tree.warnings) == ({}, ())

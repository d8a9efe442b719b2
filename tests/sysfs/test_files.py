from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sysfs.files import MalformedFile, MissingFile, SysfsError, SysfsTree, UnreadableFile
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable


def test_text_comes_without_white_space_and_nuls(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b" 0-3\n\0\0")
    assert SysfsTree(tmp_path).find("f") == "0-3"


def test_an_absent_file_is_none_for_those_who_have_a_fallback(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    found = [tree.find("f"), tree.find_integer("f"), tree.find_list("f"), tree.find_map("f")]
    assert found == [None] * 4
    assert tree.names("d") == []
    assert tree.numbered("d", "cpu") == []


def test_an_absent_file_without_fallback_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"d/f: there is no such file; look elsewhere"):
        SysfsTree(tmp_path).text("d/f", "look elsewhere")


@pytest.mark.parametrize("size", [4095, 4096, 4097, 16384, 100_000])
def test_a_file_is_read_whole_whatever_its_size(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"7" * size)
    assert SysfsTree(tmp_path).find("f") == "7" * size


def test_a_file_that_no_kernel_writes_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UnreadableFile, match="larger than 1048576 bytes"):
        SysfsTree(tmp_path).find("f")


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (SysfsTree.find_integer, b""),
        (SysfsTree.find_integer, b"1_0"),
        (SysfsTree.find_integer, b"0x10"),
        (SysfsTree.find_integer, b"9" * 5000),
        (SysfsTree.find_list, b"0-"),
        (SysfsTree.find_list, b"99999999"),
        (SysfsTree.find_list, b"\xff"),
        (SysfsTree.find_map, b""),
        (SysfsTree.find_map, b"0x1"),
        (SysfsTree.find_map, b"1,2"),
        (SysfsTree.find_map, b"1" + b",00000000" * 3000),
        (SysfsTree.find, "é".encode()),
    ],
)
def test_damage_is_reported_with_the_files_name(
    tmp_path: Path, read: Callable[[SysfsTree, str], object], content: bytes
) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(MalformedFile, match=str(tmp_path / "f")):
        read(SysfsTree(tmp_path), "f")


def test_the_first_set_that_exists_is_taken_and_lists_go_first(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("ff\n")
    tree = SysfsTree(tmp_path)
    assert tree.find_set(("l",), ("m",)) == Mask.parse("0-7")
    (tmp_path / "l").write_text("0-3\n")
    assert tree.find_set(("l",), ("m",)) == Mask.parse("0-3")
    assert tree.find_set(("x",), ("y",)) is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "directory"),
        (partial(Path.symlink_to, target="f"), "symbolic links"),
        (os.mkfifo, "not a regular file"),
    ],
    ids=["directory", "loop", "pipe"],
)
def test_what_is_not_a_file_is_unreadable_and_nobody_waits_for_it(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    make(tmp_path / "f")
    with pytest.raises(UnreadableFile, match=says):
        SysfsTree(tmp_path).find("f")


def test_a_file_in_the_place_of_a_directory_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    with pytest.raises(UnreadableFile):
        SysfsTree(tmp_path).names("d")
    with pytest.raises(SysfsError):
        SysfsTree(tmp_path).find("d/f")


def test_numbers_are_those_of_plain_names(tmp_path: Path) -> None:
    for name in ("cpu10", "cpu2", "cpu", "cpufreq", "cpu01", "cpu٣", "xcpu3", "cpu-1"):
        (tmp_path / name).mkdir()
    assert SysfsTree(tmp_path).numbered("", "cpu") == [2, 10]


@pytest.mark.parametrize("name", ["cpu65536", "cpu" + "9" * 100])
def test_a_number_beyond_any_kernel_is_damage(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(MalformedFile, match="no number above 65535"):
        SysfsTree(tmp_path).numbered("", "cpu")


def test_links_are_resolved_inside_the_tree_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sys/devices/x").mkdir(parents=True)
    (root / "sys/in").symlink_to("devices/x")
    (root / "sys/out").symlink_to(tmp_path)
    (root / "sys/loop").symlink_to("loop")
    tree = SysfsTree(root)
    assert tree.resolved("sys/in") == "sys/devices/x"
    assert tree.resolved("sys/out") is None
    assert tree.resolved("sys/loop") == "sys/loop"
    assert SysfsTree("/").resolved("") == ""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guest.cache import Cache, key_of, key_of_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write(text: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        (directory / "file").write_text(text)

    return make


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    first = cache.entry("image", "k1", write("first"))
    again = cache.entry("image", "k1", write("second"))
    assert first == again
    assert (again / "file").read_text() == "first"


def test_a_failed_make_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(directory: Path) -> None:
        (directory / "half").write_text("")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.entry("image", "k1", fail)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_new_entry_replaces_older_ones_of_its_kind_only(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    old = cache.entry("image", "k1", write(""))
    other = cache.entry("qemu", "k1", write(""))
    new = cache.entry("image", "k2", write(""))
    assert not old.exists()
    assert other.is_dir()
    assert new.is_dir()


def test_a_kind_that_begins_like_another_is_left_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    longer = cache.entry("image-extra", "k1", write(""))
    cache.entry("image", "k1", write(""))
    assert longer.is_dir()


def test_keys_show_where_one_part_ends(tmp_path: Path) -> None:
    assert key_of(b"ab", b"c") != key_of(b"a", b"bc")
    file = tmp_path / "file"
    file.write_text("x")
    before = key_of_files(tmp_path, [file])
    file.chmod(0o755)
    assert key_of_files(tmp_path, [file]) != before
    file.chmod(0o644)
    assert key_of_files(tmp_path, [file]) == before
    file.write_text("y")
    assert key_of_files(tmp_path, [file]) != before

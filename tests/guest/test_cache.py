from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guest.cache import Cache, key_of, key_of_files

if TYPE_CHECKING:
    from pathlib import Path


def make(directory: Path) -> None:
    (directory / "file").touch()


def fail(directory: Path) -> None:
    make(directory)
    raise RuntimeError


def test_an_entry_is_complete_made_once_and_replaces_older_ones_of_its_kind(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError):
        cache.entry("image", "k1", fail)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    old = cache.entry("image", "k1", make)
    assert cache.entry("image", "k1", fail) == old
    others = [cache.entry(kind, "k1", make) for kind in ("qemu", "image-extra")]
    assert (cache.entry("image", "k2", make) / "file").exists()
    assert not old.exists()
    assert all(other.is_dir() for other in others)


def test_keys_show_where_one_part_ends(tmp_path: Path) -> None:
    assert key_of(b"ab", b"c") != key_of(b"a", b"bc")
    file, keys = tmp_path / "file", set()
    for text, mode in (("x", 0o644), ("x", 0o755), ("y", 0o644)):
        file.write_text(text)
        file.chmod(mode)
        keys.add(key_of_files(tmp_path, [file]))
    assert len(keys) == 3

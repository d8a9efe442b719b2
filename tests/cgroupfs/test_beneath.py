from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

import pytest

from cgroupfs import tree as beneath
from cgroupfs.tree import DIRECTORY, open_beneath, open_by_walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Open = Callable[[int, str, int], int]


@pytest.fixture
def root_fd(tmp_path: Path) -> Iterator[int]:
    inner = tmp_path / "root/a/b"
    inner.mkdir(parents=True)
    (inner / "file").write_text("here")
    (tmp_path / "root/link").symlink_to("a")
    (tmp_path / "root/a/up").symlink_to(tmp_path)
    fd = os.open(tmp_path / "root", DIRECTORY)
    yield fd
    os.close(fd)


both = pytest.mark.parametrize("opener", [open_beneath, open_by_walk])


@both
def test_a_file_below_is_opened(root_fd: int, opener: Open) -> None:
    fd = opener(root_fd, "a/b/file", os.O_RDONLY)
    assert os.read(fd, 10) == b"here"
    assert not os.get_inheritable(fd)
    os.close(fd)


@both
def test_the_directory_itself_is_opened_by_the_empty_path(root_fd: int, opener: Open) -> None:
    fd = opener(root_fd, "", DIRECTORY)
    assert os.path.sameopenfile(fd, root_fd)
    os.close(fd)


@both
@pytest.mark.parametrize("path", ["link/b/file", "a/up/root/a/b/file", "link"])
def test_no_link_is_followed(root_fd: int, opener: Open, path: str) -> None:
    with pytest.raises(OSError, match=path) as caught:
        opener(root_fd, path, os.O_RDONLY)
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


@both
def test_what_is_missing_is_named_by_its_whole_path(root_fd: int, opener: Open) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        opener(root_fd, "a/none/file", os.O_RDONLY)
    assert caught.value.filename == "a/none/file"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_host_without_openat2_walks(
    root_fd: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(beneath, "_SYSCALL", lambda *_: -1)
    monkeypatch.setattr(ctypes, "get_errno", lambda: number)
    fd = open_beneath(root_fd, "a/b/file", os.O_RDONLY)
    assert os.read(fd, 10) == b"here"
    os.close(fd)

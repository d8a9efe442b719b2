from __future__ import annotations

import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.state.checkpoint import StateDirectoryError, StateDirectoryLockedError
from agent.state.store import DirectoryLock, Store, check_directory

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("make", "place", "says"),
    [
        (None, "", r"does not exist; create it: install -d"),
        (Path.touch, "", "not a directory"),
        (Path.touch, "below", "accessible"),
        *((partial(Path.mkdir, mode=mode), "", "chmod go-w") for mode in (0o770, 0o707, 0o1777)),
    ],
    ids=["missing", "a file", "below a file", "of a group", "of all", "of all, sticky"],
)
def test_a_directory_that_cannot_be_used_is_named_with_what_to_do(
    tmp_path: Path, make: Callable[[Path], None] | None, place: str, says: str
) -> None:
    former = os.umask(0)
    if make is not None:
        make(tmp_path / "state")
    os.umask(former)
    with pytest.raises(StateDirectoryError, match=says):
        check_directory(tmp_path / "state" / place)


def test_a_directory_that_others_could_replace_is_rejected(tmp_path: Path) -> None:
    directory = tmp_path / "above/state"
    directory.mkdir(parents=True, mode=0o700)
    directory.parent.chmod(0o777)
    with pytest.raises(StateDirectoryError, match=f"{directory.parent} can be written by others"):
        check_directory(directory)


def test_a_directory_of_others_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write anywhere, so the kernel's answer is stood in for
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(StateDirectoryError, match="not writable"):
        check_directory(tmp_path)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(StateDirectoryError, match=f"runs as user {other}"):
        check_directory(tmp_path)


def test_two_stores_cannot_share_a_directory_and_its_holder_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"\xff\x00no number")  # a damaged one does not matter
    with Store(tmp_path), pytest.raises(StateDirectoryLockedError, match="in use by") as caught:
        Store(tmp_path)
    assert caught.value.holder == os.getpid()
    with Store(tmp_path) as store:
        assert store.load().state is None


def test_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from agent.state.store import DirectoryLock;"
        "DirectoryLock(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -9
    DirectoryLock(tmp_path).release()


def test_a_lock_file_that_is_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StateDirectoryError, match="cannot open lock"):
        DirectoryLock(tmp_path)


def test_a_full_disk_leaves_the_lock_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with DirectoryLock(tmp_path), pytest.raises(StateDirectoryLockedError, match="another process"):
        DirectoryLock(tmp_path)

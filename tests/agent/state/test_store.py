from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.state.checkpoint import CheckpointIOError, ReplacedDirectoryError
from agent.state.store import CHECKPOINT_NAME, TEMPORARY_NAME, OsFiles, Store
from tests.agent.state.disks import DieAt, Died, FailAt, FaultyFiles, MemoryDisk, NoFault
from tests.agent.state.states import example, ledger_of, mixed_pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.state.checkpoint import Checkpoint
    from agent.state.store import Files

BEFORE = example()
AFTER = replace(BEFORE, ledger=ledger_of(mixed_pod(), mixed_pod("another")))
PIECE = 500
NEWER = b'{"format":"numawarden-checkpoint","version":9}'


def operations_of_a_save(directory: Path, piece: int) -> list[str]:
    fault = DieAt(piece=piece)
    with Store(directory, FaultyFiles(OsFiles(), fault)) as store:
        store.save(BEFORE)
        fault.operations.clear()
        store._files = FaultyFiles(OsFiles(), fault)
        store.save(AFTER)
    return fault.operations


def save_before(directory: Path, files: Files | None = None) -> None:
    with Store(directory, files) as store:
        store.save(BEFORE)


def load(directory: Path, files: Files | None = None) -> Checkpoint | None:
    with Store(directory, files) as store:
        result = store.load()
    assert result.problem is None
    return result.state


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        result = store.load()
        assert (result.state, result.problem, result.set_aside) == (None, None, ())
        size = store.save(BEFORE)
        assert store.path.stat().st_size == size
        assert store.path.stat().st_mode & 0o777 == 0o600
        assert store.load().state == BEFORE
        store.save(AFTER)
    assert load(tmp_path) == AFTER


def test_what_could_not_be_read_again_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        monkeypatch.setattr("agent.state.store.LARGEST", store.save(BEFORE))
        with pytest.raises(CheckpointIOError, match="File too large"):
            store.save(AFTER)
    assert load(tmp_path) == BEFORE
    assert not (tmp_path / TEMPORARY_NAME).exists()


def test_a_save_flushes_the_file_before_and_the_directory_after_the_rename(tmp_path: Path) -> None:
    steps = ["create", "write", "fsync", "close", "rename", "sync_directory"]
    assert operations_of_a_save(tmp_path, 1 << 30) == steps


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("piece", [1 << 30, PIECE], ids=["whole", "short-writes"])
def test_dying_anywhere_leaves_either_state(tmp_path: Path, piece: int, *, done: bool) -> None:
    operations = operations_of_a_save(tmp_path, piece)
    assert len(operations) >= 6
    for index, operation in enumerate(operations):
        save_before(tmp_path)
        fault = DieAt(at=index, done=done, piece=piece)
        with Store(tmp_path, FaultyFiles(OsFiles(), fault)) as store, pytest.raises(Died):
            store.save(AFTER)
        renamed = index + done > operations.index("rename")
        assert load(tmp_path) == (AFTER if renamed else BEFORE), operation
        with Store(tmp_path) as store:
            store.save(AFTER)
        assert load(tmp_path) == AFTER


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_power_failure_anywhere_leaves_one_of_both_states(tmp_path: Path, *, done: bool) -> None:
    for index in range(len(operations_of_a_save(tmp_path, PIECE))):
        disk = MemoryDisk()
        save_before(tmp_path, disk)
        fault = DieAt(at=index, done=done, piece=PIECE)
        with Store(tmp_path, FaultyFiles(disk, fault)) as store, pytest.raises(Died):
            store.save(AFTER)
        for outcome in disk.after_power_failure():
            assert load(tmp_path, outcome) in (BEFORE, AFTER)
    disk = MemoryDisk()
    with Store(tmp_path, disk) as store:
        store.save(BEFORE)
        store.save(AFTER)
    assert all(load(tmp_path, outcome) == AFTER for outcome in disk.after_power_failure())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("piece", [1 << 30, PIECE], ids=["whole", "short-writes"])
def test_an_error_anywhere_loses_nothing(tmp_path: Path, error: int, piece: int) -> None:
    operations = operations_of_a_save(tmp_path, piece)
    for index, operation in enumerate(operations):
        save_before(tmp_path)
        descriptors = sorted(Path("/proc/self/fd").iterdir())
        fault = FailAt(at=index, error=error, piece=piece)
        with Store(tmp_path, FaultyFiles(OsFiles(), fault)) as store:
            with pytest.raises(CheckpointIOError) as caught:
                store.save(AFTER)
            assert caught.value.errno == error
            assert caught.value.replaced is (operation == "sync_directory")
            assert "\n" not in str(caught.value)
            assert not (tmp_path / TEMPORARY_NAME).exists()
            assert store.load().state == (AFTER if caught.value.replaced else BEFORE)
            store.save(AFTER)
            assert store.load().state == AFTER
        # One whose closing failed is left to the fake.
        assert operation == "close" or sorted(Path("/proc/self/fd").iterdir()) == descriptors


def test_a_file_system_that_takes_no_bytes_is_an_error_not_a_hang(tmp_path: Path) -> None:
    fault = FailAt(piece=0)
    with (
        Store(tmp_path, FaultyFiles(OsFiles(), fault)) as store,
        pytest.raises(CheckpointIOError, match="writing"),
    ):
        store.save(BEFORE)


def test_of_many_unusable_checkpoints_the_first_and_the_latest_are_kept(tmp_path: Path) -> None:
    """Whatever writes them again and again does not fill the disk."""
    aside: tuple[Path, ...] = ()
    for number in range(100):
        (tmp_path / CHECKPOINT_NAME).write_bytes(b"%d" % number)
        with Store(tmp_path) as store:
            aside = store.load().set_aside
    kept = sorted(int(path.read_bytes()) for path in aside)
    assert kept == [0, *range(91, 100)]


def test_dying_while_a_file_is_kept_aside_never_loses_it(tmp_path: Path) -> None:
    fault = DieAt()
    for index in range(8):
        disk = MemoryDisk()
        with Store(tmp_path, disk) as store:
            store.save(BEFORE)
        disk._names[CHECKPOINT_NAME].content = disk._names[CHECKPOINT_NAME].durable = b"broken"
        fault = DieAt(at=index)
        with Store(tmp_path, FaultyFiles(disk, fault)) as store, suppress(Died):
            store.load()
        for outcome in disk.after_power_failure():
            assert b"broken" in [outcome.read(tmp_path / name) for name in outcome.names(tmp_path)]
    assert fault.operations[2:] == ["read", "names", "rename", "sync_directory", "names"]


def a_directory(path: Path) -> None:
    path.mkdir()
    (path / "something").write_text("kept")


def a_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_bytes(b"secret")
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "label", "says"),
    [
        (a_directory, "nofile", "is a directory, not a file"),
        (os.mkfifo, "nofile", "is a named pipe, not a file"),
        (a_link, "nofile", "is a symbolic link, not a file"),
        (partial(Path.symlink_to, target="nowhere"), "nofile", "is a symbolic link, not a file"),
        (partial(Path.write_bytes, data=b""), "damaged", "not a complete JSON"),
        (partial(Path.write_bytes, data=b'{"format":'), "damaged", "not a complete JSON"),
        (partial(Path.write_bytes, data=b'{"policyName":"static"}'), "unknown", "state import"),
        (partial(Path.write_bytes, data=NEWER), "newer", "format 9"),
        (partial(Path.chmod, mode=0o664), "untrusted", r"can be written by others \(mode 0664\)"),
        (partial(os.truncate, length=300 << 20), "unreadable", "has 314572800 bytes"),
    ],
)
def test_what_is_not_a_checkpoint_is_kept_aside_and_not_followed(
    tmp_path: Path, make: Callable[[Path], None], label: str, says: str
) -> None:
    save_before(tmp_path)
    path = tmp_path / CHECKPOINT_NAME
    if label == "nofile":
        path.unlink()
    make(path)
    before, descriptors = path.lstat(), sorted(Path("/proc/self/fd").iterdir())
    with Store(tmp_path) as store:
        result = store.load()
        assert result.state is None
        assert result.problem is not None
        assert re.search(says, str(result.problem))
        assert result.kept_as == tmp_path / f"{CHECKPOINT_NAME}.{label}-1"
        assert result.kept_as.lstat().st_ino == before.st_ino
        assert store.load().state is None
        store.save(BEFORE)
        assert store.load().state == BEFORE
    assert sorted(Path("/proc/self/fd").iterdir()) == descriptors


class OthersFiles(OsFiles):
    """Files that belong to another user."""

    owner = 4711

    def status(self, path: Path) -> os.stat_result:
        values = list(super().status(path))
        values[stat.ST_UID] = self.owner
        return os.stat_result(values)


def test_a_file_of_another_user_is_not_trusted_one_of_root_is(tmp_path: Path) -> None:
    save_before(tmp_path)
    files = OthersFiles()
    with Store(tmp_path, files) as store:
        files.owner = 0
        assert store.load().state == BEFORE
        files.owner = 4711
        result = store.load()
    assert result.kept_as == tmp_path / f"{CHECKPOINT_NAME}.untrusted-1"
    assert "belongs to user 4711" in str(result.problem)


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("at", [1, 2], ids=["status", "read"])
def test_an_unreadable_checkpoint_is_kept_aside(tmp_path: Path, error: int, at: int) -> None:
    save_before(tmp_path)
    with Store(tmp_path, FaultyFiles(OsFiles(), FailAt(at=at, error=error))) as store:
        result = store.load()
    assert result.kept_as == tmp_path / f"{CHECKPOINT_NAME}.unreadable-1"
    assert f"cannot be read: {os.strerror(error)}" in str(result.problem)
    result.kept_as.rename(tmp_path / CHECKPOINT_NAME)
    assert load(tmp_path) == BEFORE


def test_a_process_without_descriptors_leaves_the_checkpoint_alone(tmp_path: Path) -> None:
    save_before(tmp_path)
    fault = FailAt(at=2, error=errno.EMFILE)
    with (
        Store(tmp_path, FaultyFiles(OsFiles(), fault)) as store,
        pytest.raises(CheckpointIOError, match="reading"),
    ):
        store.load()
    assert load(tmp_path) == BEFORE


@dataclass
class Stubborn(NoFault):
    """Fails every rename until renames are allowed."""

    error: int = errno.EROFS

    def before(self, index: int, operation: str) -> None:
        NoFault.before(self, index, operation)
        if operation == "rename" and self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("taken_away", [False, True])
def test_what_cannot_be_kept_aside_is_not_replaced(tmp_path: Path, *, taken_away: bool) -> None:
    path, fault = tmp_path / CHECKPOINT_NAME, Stubborn()
    path.write_bytes(b"broken")
    with Store(tmp_path, FaultyFiles(OsFiles(), fault)) as store:
        result = store.load()
        assert result.problem is not None
        assert result.kept_as is None
        with pytest.raises(CheckpointIOError, match="renaming"):
            store.save(BEFORE)
        assert path.read_bytes() == b"broken"
        fault.error = 0
        if taken_away:
            path.rename(tmp_path / "taken")
        store.save(BEFORE)
        assert store.load().state == BEFORE
    kept = tmp_path / ("taken" if taken_away else f"{CHECKPOINT_NAME}.damaged-1")
    assert kept.read_bytes() == b"broken"


@pytest.mark.parametrize(
    "make", [Path.touch, Path.mkdir, os.mkfifo, partial(Path.symlink_to, target="nowhere")]
)
def test_nothing_is_in_the_way_of_a_save(tmp_path: Path, make: Callable[[Path], None]) -> None:
    save_before(tmp_path)
    temporary = tmp_path / TEMPORARY_NAME
    make(temporary)
    with Store(tmp_path) as store:
        store.save(AFTER)
        make(temporary)
        assert store.load().state == AFTER
    assert sorted(os.listdir(tmp_path)) == [CHECKPOINT_NAME, "lock"]  # noqa: PTH208 - names


def replace_directory(directory: Path) -> None:
    """Remove a state directory with all that is in it, and make one of the same name."""
    for file in directory.iterdir():
        file.unlink()
    directory.rename(directory.with_name("gone"))
    directory.mkdir(mode=0o700)


def move_away(directory: Path) -> None:
    directory.rename(directory.with_name("gone"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


@pytest.mark.parametrize(
    "change", [replace_directory, move_away, lambda directory: (directory / "lock").unlink()]
)
def test_nothing_is_saved_beside_others(directory: Path, change: Callable[[Path], None]) -> None:
    with Store(directory) as store:
        store.save(BEFORE)
        change(directory)
        before = sorted(directory.parent.rglob("*"))
        with pytest.raises(ReplacedDirectoryError, match="removed or replaced") as caught:
            store.save(AFTER)
        assert not caught.value.replaced
        assert sorted(directory.parent.rglob("*")) == before


def test_a_directory_that_is_put_back_is_saved_to_again(directory: Path) -> None:
    with Store(directory) as store:
        move_away(directory)
        with pytest.raises(ReplacedDirectoryError):
            store.save(BEFORE)
        directory.with_name("gone").rename(directory)
        store.save(AFTER)
        assert store.load().state == AFTER


@dataclass
class LostAnswer(NoFault):
    """A rename that happens and fails all the same, as on a file server whose answer is lost.

    With `blind` nothing can be read afterwards.
    """

    blind: bool = False
    renamed: bool = False

    def before(self, index: int, operation: str) -> None:
        NoFault.before(self, index, operation)
        if self.blind and self.renamed and operation == "read":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def after(self, index: int, operation: str) -> None:
        del index
        if operation == "rename" and not self.renamed:
            self.renamed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("blind", [False, True])
def test_a_rename_that_failed_and_happened_is_seen(tmp_path: Path, *, blind: bool) -> None:
    with Store(tmp_path) as store:
        store.save(BEFORE)
    with (
        Store(tmp_path, FaultyFiles(OsFiles(), LostAnswer(blind=blind))) as store,
        pytest.raises(CheckpointIOError) as caught,
    ):
        store.save(AFTER)
    assert (caught.value.replaced, caught.value.uncertain) == (not blind, blind)
    assert load(tmp_path) == AFTER


def test_a_lack_of_memory_while_saving_costs_no_descriptor(tmp_path: Path) -> None:
    class Full(OsFiles):
        def write(self, fd: int, data: memoryview) -> int:
            raise MemoryError(fd, len(data))

    before = sorted(Path("/proc/self/fd").iterdir())
    with Store(tmp_path, Full()) as store:
        for _ in range(3):
            with pytest.raises(MemoryError):
                store.save(AFTER)
    assert sorted(Path("/proc/self/fd").iterdir()) == before

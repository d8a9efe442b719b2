from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, TypeVar

import pytest

from agent.server.watches import CgroupChanges, directory_changes, directory_names
from cgroupfs.watch import Inotify
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

_Change = TypeVar("_Change")


async def begun(stream: AsyncIterator[_Change]) -> asyncio.Task[_Change]:
    """Wait for the next change from now on."""

    async def next_change() -> _Change:
        return await anext(stream)

    task = asyncio.create_task(next_change())
    for _ in range(3):
        await asyncio.sleep(0)
    return task


@in_loop
async def test_a_file_that_was_written_moved_or_removed_is_noticed(tmp_path: Path) -> None:
    stream = aiter(directory_changes(tmp_path))
    await anext(stream)  # it is watched
    path, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    for change in (lambda: path.write_text("a"), lambda: path.rename(other), other.unlink):
        waiting = await begun(stream)
        change()
        await waiting


@pytest.mark.parametrize("watch", [directory_changes, directory_names])
@in_loop
async def test_a_watch_that_is_closed_leaves_its_descriptor_to_others(
    tmp_path: Path, watch: Callable[[Path], AsyncIterator[None]]
) -> None:
    with Inotify() as unused:
        number = unused.fileno()  # of the next one that is opened, too
    stream = watch(tmp_path)
    assert isinstance(stream, AsyncGenerator)
    await anext(stream)
    waiting = await begun(stream)
    (tmp_path / "a.yaml").touch()
    await waiting
    await stream.aclose()
    assert not asyncio.get_running_loop().remove_reader(number)


@in_loop
async def test_a_directory_that_is_missing_has_no_changes(tmp_path: Path) -> None:
    assert [None async for _ in directory_changes(tmp_path / "none")] == []


@in_loop
async def test_a_name_that_appears_or_disappears_is_noticed(tmp_path: Path) -> None:
    stream = aiter(directory_names(tmp_path))
    path = tmp_path / "a.sock"
    await anext(stream)  # it is watched
    with socket.socket(socket.AF_UNIX) as bound:
        changes: tuple[Callable[[], None], ...] = (
            lambda: bound.bind(str(path)),
            lambda: (tmp_path / "b.sock").hardlink_to(path),
            path.unlink,
        )
        for change in changes:
            waiting = await begun(stream)
            assert not waiting.done()
            change()
            await waiting


@in_loop
async def test_names_end_with_their_directory(tmp_path: Path) -> None:
    """What is watched next has the descriptor's number of the one before."""
    directory = tmp_path / "plugins"
    ends: tuple[Callable[[], object], ...] = (
        directory.rmdir,
        lambda: directory.rename(tmp_path / "other"),
        lambda: shutil.rmtree(directory),
    )
    for number, end in enumerate(ends):
        directory.mkdir()
        stream = aiter(directory_names(directory))
        await anext(stream)
        if number:
            waiting = await begun(stream)
            (directory / str(number)).touch()
            await waiting
        end()
        assert [None async for _ in stream]
        with pytest.raises(FileNotFoundError):
            await anext(aiter(directory_names(directory)))


@pytest.mark.parametrize("watch", [directory_changes, directory_names])
@in_loop
async def test_a_watch_ends_with_a_directory_that_others_still_have_open(
    tmp_path: Path, watch: Callable[[Path], AsyncIterator[None]]
) -> None:
    """As the sockets of device plugins do, and a shell in the directory of manifests."""
    directory = tmp_path / "plugins"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(directory / "a.sock"))
        stream = watch(directory)
        await anext(stream)
        waiting = await begun(stream)
        (tmp_path / "beside").touch()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        shutil.rmtree(directory)
        await waiting
        async for _ in stream:
            pass


@in_loop
async def test_new_cgroups_and_writes_of_others_are_noticed(tmp_path: Path) -> None:
    pod = tmp_path / "pod1"
    pod.mkdir()
    (pod / "cpuset.cpus").write_text("0\n")
    changes = CgroupChanges(tmp_path)
    changes.follow(["", "pod1", "gone"])
    stream = aiter(changes.changes())
    waiting = await begun(stream)
    (pod / "container").mkdir()
    assert await waiting == ("pod1/container",)
    waiting = await begun(stream)
    (pod / "cpuset.cpus").write_text("1\n")
    assert await waiting == ()
    other = tmp_path / "pod2"
    waiting = await begun(stream)
    other.mkdir()
    assert await waiting == ("pod2",)
    changes.also(["pod2", "gone"])
    waiting = await begun(stream)
    (other / "container").mkdir()
    await waiting
    changes.follow([])
    (pod / "other").mkdir()
    (other / "more").mkdir()
    waiting = await begun(stream)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait((waiting,))
    changes.close()


@in_loop
async def test_files_that_were_made_again_are_noticed_again(tmp_path: Path) -> None:
    """Taking a controller away removes its files; enabling it makes others of the same names."""
    pod = tmp_path / "kubepods/pod1"
    pod.mkdir(parents=True)
    file = pod / "cpuset.cpus"
    file.write_text("0\n")
    changes = CgroupChanges(tmp_path)
    changes.follow(["kubepods/pod1"])
    file.rename(pod / "gone")
    file.write_text("0\n")
    changes.follow(["kubepods/pod1"], {"kubepods"})
    stream = aiter(changes.changes())
    waiting = await begun(stream)
    file.write_text("1\n")
    await waiting
    changes.close()

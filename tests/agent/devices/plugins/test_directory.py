"""The directory is shared with kubelets: what is theirs stays, what vanished is served again."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.devices.plugin_directory import DirectoryError, PluginDirectory
from agent.devices.plugins import PERIOD, RETRY_PERIOD
from agent.rpc.calls import CallError
from tests.agent.devices.plugins.support import GPU, connected, names_in, served
from tests.agent.server.support import in_loop
from tests.fakes.device_plugin import FakePlugin, device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Accept connections on a socket, as a kubelet does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(path))
        made.listen(1)
        yield made


def dead_socket(path: Path) -> None:
    with listening(path):
        pass


@in_loop
async def test_sockets_are_removed_at_the_start_and_all_else_stays(directory: Path) -> None:
    for name in ("gpu.sock", "kubelet.sock", ".hidden.sock"):
        dead_socket(directory / name)
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    (directory / "below").mkdir()
    dead_socket(directory / "below" / "x.sock")
    (directory / "link.sock").symlink_to(directory / "below" / "x.sock")
    async with served(directory) as running:
        assert names_in(directory) == [
            *("below", "kubelet.sock", "kubelet_internal_checkpoint", "link.sock"),
        ]
        assert names_in(directory / "below") == ["x.sock"]
        assert running.plugins.conditions() == ()
    assert names_in(directory) == ["below", "kubelet_internal_checkpoint", "link.sock"]


@pytest.fixture(params=[0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@in_loop
async def test_the_directory_is_made_and_only_the_owner_may_connect(directory: Path) -> None:
    async with served(directory / "made"):
        assert names_in(directory / "made") == ["kubelet.sock"]
        assert (directory / "made" / "kubelet.sock").stat().st_mode & 0o7777 == 0o755


# Shows in differences.md: plugin-socket
@in_loop
async def test_the_directory_of_a_kubelet_is_left_alone_until_it_is_gone(directory: Path) -> None:
    dead_socket(directory / "gpu.sock")
    with ExitStack() as kubelet:
        kubelet.enter_context(listening(directory / "kubelet.sock"))
        async with served(directory):
            pass
        assert names_in(directory) == ["gpu.sock", "kubelet.sock"]
        async with served(directory) as running:
            for _ in range(3):
                [line] = running.plugins.conditions()
                assert f"another process answers on {directory}/kubelet.sock, a kubelet" in line
                await running.wait_out(RETRY_PERIOD)
            assert names_in(directory) == ["gpu.sock", "kubelet.sock"]
            kubelet.close()
            await running.wait_out(RETRY_PERIOD)
            await running.until(lambda: not running.plugins.conditions())
            assert names_in(directory) == ["kubelet.sock"]
            async with connected(running, device("a")):
                pass


@in_loop
async def test_a_kubelet_whose_backlog_is_full_is_a_kubelet(directory: Path) -> None:
    with listening(directory / "kubelet.sock"), ExitStack() as clients:
        for _ in range(5):
            client = clients.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(0)
            client.connect_ex(str(directory / "kubelet.sock"))
        with pytest.raises(DirectoryError, match="another process answers"):
            PluginDirectory(directory).check_free()


@in_loop
async def test_a_socket_that_vanishes_is_served_again_and_plugins_stay(directory: Path) -> None:
    async with served(directory) as running, connected(running, device("a")) as plugin:
        (directory / "kubelet.sock").unlink()
        await running.wait_out(PERIOD)
        await running.until(running.plugins.conditions)
        [line] = running.plugins.conditions()
        assert f"another process removed {directory}/kubelet.sock, it is served again" in line
        assert running.health() == {"a": True}
        assert names_in(directory) == ["gpu.sock", "kubelet.sock"]
        await plugin.register()
        await running.until(lambda: running.plugins.conditions() == ())


@in_loop
async def test_a_directory_that_vanishes_is_made_and_served_again(directory: Path) -> None:
    place = directory / "a" / "b"
    async with served(place) as running:
        (place / "kubelet.sock").unlink()
        place.rmdir()
        await running.wait_out(PERIOD)
        await running.until(running.plugins.conditions)
        assert names_in(place) == ["kubelet.sock"]


@in_loop
async def test_a_kubelet_that_takes_the_directory_gets_the_plugins(directory: Path) -> None:
    async with served(directory) as running, connected(running, device("a")):
        (directory / "kubelet.sock").unlink()
        with listening(directory / "kubelet.sock"):
            await running.wait_out(PERIOD)
            await running.until(lambda: running.health() == {"a": False})
            [line] = running.plugins.conditions()
            assert "another process answers" in line
            assert "another process answers" in running.plugins._resources.why_lost(GPU)
            assert names_in(directory) == ["gpu.sock", "kubelet.sock"]
            await running.wait_out(RETRY_PERIOD)
        await running.wait_out(RETRY_PERIOD)
        await running.until(lambda: not running.plugins.conditions())
        assert names_in(directory) == ["kubelet.sock"]


@in_loop
async def test_the_socket_of_a_kubelet_outlives_the_agent(directory: Path) -> None:
    with ExitStack() as kubelet:
        async with served(directory):
            (directory / "kubelet.sock").unlink()
            kubelet.enter_context(listening(directory / "kubelet.sock"))
        assert names_in(directory) == ["kubelet.sock"]


@in_loop
async def test_a_file_in_the_place_of_the_socket_is_not_removed(directory: Path) -> None:
    (directory / "kubelet.sock").write_text("mine")
    async with served(directory) as running:
        [line] = running.plugins.conditions()
        assert f"{directory}/kubelet.sock cannot be made" in line
    assert (directory / "kubelet.sock").read_text() == "mine"
    assert names_in(directory) == ["kubelet.sock"]


@in_loop
async def test_a_directory_that_others_can_write_is_not_served(directory: Path) -> None:
    place = directory / "open"
    place.mkdir()
    place.chmod(0o777)
    async with served(place) as running:
        assert running.plugins.conditions() == (
            f"{place} can be written by others (mode 0777); close it: chmod go-w {place}",
        )
        with pytest.raises(CallError):
            await FakePlugin(place).register()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a" * 100, "bytes, a socket's has at most 107; set a shorter"),
        ("file", r"file cannot be used: .*; create it"),
    ],
)
def test_what_cannot_be_the_directory_is_an_error(directory: Path, name: str, words: str) -> None:
    (directory / "file").touch()
    with pytest.raises(DirectoryError, match=words):
        PluginDirectory(directory / name).check_free()

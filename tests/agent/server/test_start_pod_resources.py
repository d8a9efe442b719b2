from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.config.model import PodResourcesConfig
from agent.server.errors import StartError
from tests.agent.server.support import in_loop, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.support import World


def configure(world: World, path: Path | None) -> None:
    agent = replace(world.config.agent, pod_resources=PodResourcesConfig(path))
    world.config = replace(world.config, agent=agent)


def without_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports of gRPC fail, as without the extra."""
    ours = [name for name in sys.modules if name.startswith("agent.") and "pod_resources" in name]
    for name in (*ours, "agent.rpc", "agent.rpc"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)


@in_loop
async def test_without_a_socket_grpc_is_not_imported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_grpc(monkeypatch)
    async with running(world) as agent:
        assert agent.service._listeners.pod_resources is None
    assert "agent.rpc" not in sys.modules


@in_loop
async def test_without_the_extra_the_error_names_what_to_install(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_grpc(monkeypatch)
    configure(world, world.directory / "pod-resources" / "kubelet.sock")
    expected = (
        r"agent\.podResources\.socket: grpc is not installed; "
        r"install the extra: pip install 'numawarden\[grpc\]'"
    )
    with pytest.raises(StartError, match=expected):
        async with running(world):
            pass
    assert not (world.directory / "pod-resources").exists()


@in_loop
async def test_directories_above_the_socket_are_made(world: World) -> None:
    directory = world.directory / "kubelet" / "pod-resources"
    configure(world, directory / "kubelet.sock")
    async with running(world):
        assert directory.stat().st_mode & 0o777 == 0o750


@in_loop
async def test_a_directory_that_is_there_keeps_its_mode(world: World) -> None:
    directory = world.directory / "pod-resources"
    directory.mkdir(mode=0o700)
    configure(world, directory / "kubelet.sock")
    async with running(world):
        assert directory.stat().st_mode & 0o777 == 0o700


@in_loop
async def test_a_directory_that_cannot_be_made_keeps_the_agent_from_starting(world: World) -> None:
    (world.directory / "file").touch()
    configure(world, world.directory / "file" / "pod-resources" / "kubelet.sock")
    with pytest.raises(StartError, match=r"directory .*: Not a directory; create the directory"):
        async with running(world):
            pass

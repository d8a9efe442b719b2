"""`apply` where the kernel does not do as asked, and where nodes of memory overlap."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.cli import moves
from agent.cli.errors import ExitCode
from agent.managers.policy import MemoryManagerPolicy, TopologyManagerPolicy
from agent.pods.model import MOVE
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, make_world, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running, World

FREE = {"free": 1, "onOneNode": 1, "wholeCores": 1, "fragmentation": 0.0}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a host of four nodes with four cores of two threads each."""
    world = make_world(tmp_path)
    host = regular_host(packages=4, cores_per_node=4)
    world.kernel = EmulatedKernel(host.online, Mask.parse("0-3"))
    world.change_host(host)
    world.config = replace(
        world.config,
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
    )
    return world


def movable(body: bytes) -> bytes:
    return body.replace(b"spec:\n", f"  annotations: {{{MOVE}: memory}}\nspec:\n".encode(), 1)


def move(pod: tuple[str, str], cpus: str, new_cpus: str) -> dict[str, object]:
    sets = {"cpus": cpus, "newCpus": new_cpus, "nodes": "0", "newNodes": "0"}
    return {"uid": pod[0], "name": pod[1], "namespace": "shop", **sets, "bytes": 0}


def test_no_move_follows_one_that_the_kernel_does_not_enforce(
    agent: Running, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, pods = shell.world.kernel, ((UID, "web"), (OTHER_UID, "two"))
    for number, (uid, name) in enumerate(pods):
        assert shell.run("admit", shell.file(movable(manifest(name, uid))))[0] == ExitCode.OK
        kernel.mkdir(f"kubepods/pod{uid}/c0")
        kernel.spawn(f"kubepods/pod{uid}/c0", 7 + number)
    agent.client.reconcile()
    first, second = (pod.exclusive_cpus for pod in agent.client.pods())
    write = kernel.write

    def failing(path: str, file: str, value: str) -> None:
        if path.startswith(f"kubepods/pod{UID}") and file == "cpuset.cpus":
            raise OSError(errno.EBUSY, "busy", path)
        write(path, file, value)

    monkeypatch.setattr(kernel, "write", failing)
    # The second gets what the first leaves.
    planned = [move(pods[0], first, "3,19"), move(pods[1], second, first)]
    plan = {"moves": planned, "free": FREE, "then": FREE}
    code, out, _ = shell.run("apply", shell.file(json.dumps(plan).encode()))
    assert code == ExitCode.NOT_ENFORCED
    assert out.startswith(f"moved shop/web: CPUs {first} to 3,19\n")
    assert out.endswith(f"not made: shop/two: CPUs {second} to {first}\n")
    assert agent.client.pod(OTHER_UID).exclusive_cpus == second


def test_where_some_nodes_stay_the_agent_moves_all_pages(
    agent: Running, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, container = shell.world.kernel, f"kubepods/pod{UID}/c0"
    body = movable(manifest(cpu="10", memory="20Gi"))
    assert shell.run("admit", shell.file(body))[0] == ExitCode.OK
    for number, memory in enumerate(("4Gi", "6Gi")):
        small = manifest(f"small-{number}", f"u-{number}", cpu="2", memory=memory)
        assert shell.run("admit", shell.file(small))[0] == ExitCode.OK
    kernel.mkdir(container)
    kernel.spawn(container, 7)
    agent.client.reconcile()
    near = b'  annotations: {agent.numawarden/near-nodes: "1"}\nspec:\n'
    new = manifest("new", "u-new", cpu="8", memory="6Gi").replace(b"spec:\n", near)
    plan = shell.run("plan", "--for", shell.file(new), "-o", "json")[1]
    [planned] = json.loads(plan)["moves"]
    assert (planned["nodes"], planned["newNodes"]) == ("0-1", "0,3")

    def migrate(pid: int, old: Mask, new: Mask) -> None:
        raise AssertionError((pid, old, new))

    monkeypatch.setattr(moves, "migrate", migrate)
    assert shell.run("apply", shell.file(plan.encode()))[0] == ExitCode.OK
    assert kernel.read(container, "cpuset.mems").strip() == "0,3"

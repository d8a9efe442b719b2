"""Beside a kubelet that the configuration does not name the agent does not start."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from agent.cluster.plugs import PERIOD_SECONDS, PLUGS, check_undeclared, watch_undeclared
from agent.config.load import load_config
from agent.server.errors import StartError
from agent.server.plugs import Fakes
from agent.server.service_manager import ServiceManager
from agent.server.wiring import Wiring
from systemd.notify import Notifier
from tests.agent.server.support import make_world, running, until
from tests.agent.tools.doctor.hosts import PID, FakeHost

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.model import Config


def config(settings: str = "") -> Config:
    return load_config(f"agent: {{kubelet: {{{settings}}}}}".encode(), "config.yaml")


def test_a_kubelet_that_is_not_named_keeps_the_agent_from_starting(tmp_path: Path) -> None:
    host, world = FakeHost(tmp_path / "node"), make_world(tmp_path)
    fakes = Fakes(tree=world.kernel, live=False, root=host.root)
    with pytest.raises(StartError) as error:
        Wiring(world.config, ServiceManager(Notifier({}), None), world.clock, PLUGS, fakes)
    assert str(error.value) == (
        f"agent.kubelet: a kubelet runs (process {PID}) and agent.kubelet.enabled is false: "
        "two would give the same CPUs to different pods; stop it, or write `agent: {kubelet: "
        "{enabled: true}}` for an agent that manages its pods (see 'numawarden doctor'); `agent: "
        "{kubelet: {ignored: true}}` says that both are meant to run, or that k3s-server has none"
    )
    assert list(world.config.agent.state_directory.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "runs"),
    [
        ("k3s-agent", "in k3s-agent (process 4711) and"),
        ("k3s-server", "in k3s-server (process 4711; none with --disable-agent) and"),
        ("kubelite", "in kubelite (process 4711) and"),
        ("microshift", "in microshift (process 4711) and"),
        ("edgecore", "in edgecore (process 4711; none with modules.edged.enable: false) and"),
    ],
)
def test_a_kubelet_inside_another_program_keeps_the_agent_from_starting(
    tmp_path: Path, program: str, runs: str
) -> None:
    host = FakeHost(tmp_path)
    host.stop_kubelet()
    host.process(4711, program)
    with pytest.raises(StartError, match=re.escape(f"a kubelet runs {runs}")):
        check_undeclared(config(), host.root)
    check_undeclared(config("ignored: true"), host.root)


@pytest.mark.parametrize("socket", ["device-plugins", "pod-resources"])
def test_a_kubelet_in_a_program_that_is_not_known_is_found_by_its_sockets(
    tmp_path: Path, socket: str
) -> None:
    host, path = FakeHost(tmp_path), f"/var/lib/kubelet/{socket}/kubelet.sock"
    host.stop_kubelet()
    line = f"0000000000000000: 00000002 00000000 {{}} 0001 01 22763 {path}\n"
    host.write("/proc/net/unix", f"Num RefCount\n{line.format('00010000')}")
    check_undeclared(config(), host.root)  # of another mount namespace: it is not there
    host.socket(path)
    with pytest.raises(StartError, match=f"a kubelet listens on {path} and agent.kubelet.enabled"):
        check_undeclared(config(), host.root)
    check_undeclared(config("ignored: true"), host.root)
    own = f"agent: {{devicePlugins: {{enabled: true}}, podResources: {{socket: {path}}}}}"
    check_undeclared(load_config(own.encode(), "config.yaml"), host.root)
    host.write("/proc/net/unix", line.format("00000000"))
    check_undeclared(config(), host.root)


@pytest.mark.parametrize("settings", ["enabled: true", "ignored: true"])
def test_one_that_is_named_or_ignored_does_not(tmp_path: Path, settings: str) -> None:
    check_undeclared(config(settings), FakeHost(tmp_path).root)


def test_a_program_whose_name_only_begins_so_is_something_else(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.stop_kubelet()
    for pid, name in enumerate(("kubelet-exporter", "k3s", "k3s-server-load"), 4711):
        host.process(pid, name)
    check_undeclared(config(), host.root)


async def test_one_that_is_started_later_is_a_condition_until_it_ends(tmp_path: Path) -> None:
    host, world = FakeHost(tmp_path / "node"), make_world(tmp_path)
    async with running(world) as agent:
        conditions = agent.controller.state.observed.conditions

        def noticed(*, there: bool) -> bool:
            world.clock.advance(PERIOD_SECONDS)
            return ("kubelet" in conditions) is there

        watch = asyncio.create_task(watch_undeclared(agent.controller, world.config, host.root))
        await until(lambda: noticed(there=True))
        host.stop_kubelet()
        await until(lambda: noticed(there=False))
        watch.cancel()

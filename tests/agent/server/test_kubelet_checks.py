"""An agent starts beside a kubelet only if it is the only manager of cpusets there."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.cluster.checks import PERIOD_SECONDS, KubeletNotReadyError, kubelet_conditions
from tests.agent.server.support import PATIENCE, in_loop, make_world, running
from tests.agent.server.test_lean import modules_after
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from pathlib import Path

STATIC = '{"policyName":"static","defaultCpuSet":"0-15"}'


def test_beside_a_kubelet_without_managers_there_is_no_condition(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    with capture_logs() as lines:
        assert kubelet_conditions(host.config(), host.root) == {}
    assert lines == []


def test_two_managers_of_cpusets_are_rejected_in_the_words_of_doctor(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write(hosts.CPU_STATE, STATIC)
    host.add(hosts.CONFIG, "memoryManagerPolicy: Static\n")
    with pytest.raises(KubeletNotReadyError) as error:
        kubelet_conditions(host.config(), host.root)
    said = host.examine()
    for check in ("kubelet CPU manager", "kubelet memory manager"):
        assert f"{check}: {said[check].line}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_warning_is_a_condition_and_a_line_of_the_log(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.add(hosts.CONFIG, "topologyManagerPolicy: restricted\n")
    with capture_logs() as lines:
        conditions = kubelet_conditions(host.config(), host.root)
    line = host.examine()["kubelet topology manager"].line
    assert conditions == {"kubelet topology manager": line}
    assert [(one["event"], one["check"]) for one in lines] == [
        ("kubelet check", "kubelet topology manager")
    ]


def test_before_the_first_start_of_a_kubelet_the_agent_starts(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.stop_kubelet()
    for path in (hosts.CONFIG, hosts.CPU_STATE, hosts.MEMORY_STATE):
        host.remove(path)
    with capture_logs() as lines:
        assert kubelet_conditions(host.config(), host.root) == {}
    assert {one["event"] for one in lines} == {"kubelet check not possible"}


@in_loop
async def test_status_shows_what_the_start_found(tmp_path: Path) -> None:
    directory = tmp_path / "kubelet"
    directory.mkdir()
    (directory / "config.yaml").write_text("topologyManagerPolicy: restricted\n")
    world = make_world(tmp_path)
    agent = world.config.agent
    beside = replace(agent.kubelet, enabled=True, directory=directory)
    world.config = replace(world.config, agent=replace(agent, kubelet=beside))
    async with running(world) as found:
        reasons = {one.reason for one in found.controller.state.present_conditions()}
    assert "KubeletTopologyManager" in reasons


def test_without_a_kubelet_nothing_of_the_checks_is_imported() -> None:
    found = modules_after("from agent.cli.agent import import_agent", "import_agent()")
    assert [name for name in found if name.startswith("agent.tools.doctor")] == []
    assert "agent.cluster.checks" not in found


@in_loop
async def test_managers_turned_on_under_a_running_agent_are_a_condition(tmp_path: Path) -> None:
    directory = tmp_path / "kubelet"
    directory.mkdir()
    state = directory / "cpu_manager_state"
    state.write_text('{"policyName":"none"}')
    world = make_world(tmp_path)
    agent = world.config.agent
    beside = replace(agent.kubelet, enabled=True, directory=directory, nri_socket=None)
    world.config = replace(world.config, agent=replace(agent, kubelet=beside))

    async with running(world) as found:

        async def until(*, there: bool) -> None:
            conditions = found.controller.state.conditions
            while ("kubelet CPU manager" in conditions) is not there:
                world.clock.advance(PERIOD_SECONDS)
                await found.controller.worker.run(lambda: None)  # after what was asked before

        assert "kubelet CPU manager" not in found.controller.state.conditions
        state.write_text(STATIC)
        os.utime(state, ns=(1, 1))
        await asyncio.wait_for(until(there=True), PATIENCE)
        line = found.controller.state.conditions["kubelet CPU manager"]
        assert "two managers of cpusets on one host" in line
        state.write_text('{"policyName":"none"}')
        os.utime(state, ns=(2, 2))
        await asyncio.wait_for(until(there=False), PATIENCE)

"""An agent starts beside a kubelet only if it is the only manager of cpusets there."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.cluster.checks import PERIOD_SECONDS, KubeletNotReadyError, check_kubelet
from agent.managers.versions import KubernetesVersion
from tests.agent.pods.pods import app, guaranteed, pod
from tests.agent.server.support import PATIENCE, in_loop, make_world, running, until
from tests.agent.server.test_lean import modules_after
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import PID, FakeHost
from tests.fakes.api_server import TOKEN, Failure, api_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.config.agent import AgentConfig
    from agent.config.model import Config
    from tests.agent.server.support import Running, World

STATIC = '{"policyName":"static","defaultCpuSet":"0-15"}'


def test_two_managers_of_cpusets_are_rejected_in_the_words_of_doctor(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write(hosts.CPU_STATE, STATIC)
    host.add(hosts.CONFIG, "memoryManagerPolicy: Static\n")
    with pytest.raises(KubeletNotReadyError) as error:
        check_kubelet(host.config(), host.root).conditions()
    said = host.examine()
    for check in ("kubelet CPU manager", "kubelet memory manager"):
        assert f"{check}: {said[check].line}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_warning_is_a_condition_and_a_line_of_the_log(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    with capture_logs() as lines:
        assert check_kubelet(host.config(), host.root).conditions() == {}
        host.add(hosts.CONFIG, "topologyManagerPolicy: restricted\n")
        conditions = check_kubelet(host.config(), host.root).conditions()
    line = host.examine()["kubelet topology manager"].line
    assert conditions == {"kubelet topology manager": line}
    assert [(one["event"], one["check"]) for one in lines] == [
        ("kubelet check", "kubelet topology manager")
    ]


def test_before_the_first_start_of_a_kubelet_the_agent_starts(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.agent += "kubernetesVersion: v1.37\n"
    host.stop_kubelet()
    for path in (hosts.CONFIG, hosts.CPU_STATE, hosts.MEMORY_STATE):
        host.remove(path)
    with capture_logs() as lines:
        assert check_kubelet(host.config(), host.root).conditions() == {}
    assert {one["event"] for one in lines} == {"kubelet check not possible"}


def beside(world: World, **kubelet: object) -> AgentConfig:
    """Return the agent's configuration beside a kubelet."""
    agent = world.config.agent
    return replace(agent, kubelet=replace(agent.kubelet, enabled=True, nri_socket=None, **kubelet))


async def pass_until(agent: Running, condition: Callable[[], object]) -> None:
    """Let periods of the checks pass until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            agent.world.clock.advance(PERIOD_SECONDS)
            await agent.controller.worker.run(lambda: None)  # after what was asked before


@in_loop
async def test_a_kubelet_of_another_version_changes_the_rules_of_a_running_agent(
    tmp_path: Path,
) -> None:
    host, world = FakeHost(tmp_path / "node"), make_world(tmp_path)
    gates = {"PodLevelResourcesFixDefaulting": True}
    world.config = replace(world.config, agent=beside(world), feature_gates=gates)
    world.root = host.root
    host.program("Kubernetes v1.36.2")
    async with running(world) as found:
        state, changes = found.controller.state, [await asyncio.to_thread(found.client.status)]

        def seen() -> tuple[object, object]:
            said = state.observed.conditions.get("kubernetesVersion")
            return state.configured.governing, said

        for stamp, says in enumerate(("v1.38.0", "v1.36.2"), start=1):
            host.program(f"Kubernetes {says}")
            os.utime(host.at(hosts.PROGRAM), ns=(stamp, stamp))
            before = seen()
            await pass_until(found, lambda: seen() != before)  # noqa: B023  # called at once
            changes.append(await asyncio.to_thread(found.client.status))
            assert state.configured.rules.policy.version == "v1.38"
    # The configuration has a gate that v1.36 does not know: the rules stay.
    assert [each.kubernetes_version for each in changes] == ["v1.37", "v1.38", "v1.38"]
    assert changes[1].kubernetes_version_source == "/usr/bin/kubelet --version says v1.38.0"
    lines = [
        [each.line for each in now.conditions if each.reason == "KubernetesVersion"]
        for now in changes
    ]
    assert lines[1] == []
    for (line,) in (lines[0], lines[2]):
        assert "featureGates.PodLevelResourcesFixDefaulting: it came with Kubernetes v1.37" in line


@in_loop
async def test_until_the_kubelet_says_its_version_the_rules_of_the_last_decision_hold(
    tmp_path: Path,
) -> None:
    host, world = FakeHost(tmp_path / "node"), make_world(tmp_path)
    host.stop_kubelet()
    world.root, given = host.root, world.config
    with_kubelet = replace(given, agent=beside(world))
    unfit = replace(with_kubelet, feature_gates={"PodLevelResourcesFixDefaulting": True})

    async def governing(config: Config) -> str:
        world.config = config
        async with running(world) as found:
            if not config.agent.kubelet.enabled:
                await found.controller.admit(pod(app("main", guaranteed("cpu=2 memory=1Gi"))))
            status = await asyncio.to_thread(found.client.status)
            policy = found.controller.state.configured.rules.policy
        assert policy.version == status.kubernetes_version
        return f"{policy.version}, {status.kubernetes_version_source}"

    assert await governing(with_kubelet) == "v1.37, the default"
    named = replace(given, kubernetes_version=KubernetesVersion.V1_36)
    assert await governing(named) == "v1.36, kubernetesVersion"
    assert await governing(with_kubelet) == "v1.36, the last decision"
    assert await governing(unfit) == "v1.37, the default"
    # Not beside a kubelet, no version is waited for.
    assert await governing(given) == "v1.37, the default"
    host.write(f"/proc/{PID}/comm", "kubelet\n")
    host.program("Kubernetes v1.38.0")
    assert await governing(with_kubelet) == "v1.38, /usr/bin/kubelet --version says v1.38.0"


@in_loop
async def test_where_the_program_is_not_seen_the_node_object_says_the_version(
    tmp_path: Path, certificate: Path
) -> None:
    host, world = FakeHost(tmp_path / "node"), make_world(tmp_path)
    host.stop_kubelet()
    socket = host.at("/var/lib/kubelet/pod-resources/kubelet.sock")
    world.root, agent = host.root, world.config.agent
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with api_server(certificate) as fake:
        kubernetes = replace(
            agent.kubernetes,
            read_version=True,
            node_name="worker-1",
            server=fake.url,
            token_file=token,
            ca_file=certificate,
        )
        world.config = replace(world.config, agent=replace(beside(world), kubernetes=kubernetes))
        fake.faults = [Failure(403, "forbidden")] * 2  # at the start, and a minute later
        # The Node has the version of another kubelet a moment after that has its sockets.
        fake.kubelets = {"worker-1": ["v1.36.4", "v1.36.4", "v1.38.0"]}
        async with running(world) as found:
            state = found.controller.state

            def shown() -> str:
                said = state.observed.conditions.get("kubernetesVersion", "no condition")
                wrong = "no right" if "verbs get on nodes" in said else said
                return f"{state.configured.governing.source}: {wrong}"

            await until(lambda: shown() == "the default: no right")
            source = "the Node worker-1 says v1.36.4: no condition"
            await pass_until(found, lambda: shown() == source)
            socket.parent.mkdir(parents=True, exist_ok=True)
            socket.touch()
            source = "the Node worker-1 says v1.38.0: no condition"
            await pass_until(found, lambda: shown() == source)
            # What the program says goes before.
            host.write(f"/proc/{PID}/comm", "kubelet\n")
            host.program("Kubernetes v1.37.1")
            socket.unlink()
            source = "/usr/bin/kubelet --version says v1.37.1: no condition"
            await pass_until(found, lambda: shown() == source)
            assert fake.paths("GET") == ["/api/v1/nodes/worker-1"] * 5


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
    world.config = replace(world.config, agent=beside(world, directory=directory))
    async with running(world) as found:
        conditions = found.controller.state.observed.conditions
        assert "kubelet CPU manager" not in conditions
        state.write_text(STATIC)
        os.utime(state, ns=(1, 1))
        await pass_until(found, lambda: "kubelet CPU manager" in conditions)
        assert "two managers of cpusets on one host" in conditions["kubelet CPU manager"]
        state.write_text('{"policyName":"none"}')
        os.utime(state, ns=(2, 2))
        await pass_until(found, lambda: "kubelet CPU manager" not in conditions)

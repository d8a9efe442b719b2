"""Kubelet and runtime are asked over their sockets; what does not answer is not waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.cluster.kubelet.pods_api import SERVICE as PODS
from agent.cluster.kubelet.pods_api import V1ALPHA1
from agent.rpc.server import server
from agent.tools.doctor.facts import AskedWay
from agent.tools.doctor.gathering import SERVICE, V1, gather, with_answers
from agent.versions import ReportedVersion
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.rpc.messages import Message
    from agent.tools.doctor.facts import GatheredFacts

RUNTIME = "/run/containerd/containerd.sock"
API = f"{hosts.KUBELET}/pods-api/pods-api.sock"
#: No test takes longer unless it hangs, in seconds.
LONG = 60.0


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@contextmanager
def served(host: FakeHost, *, silent: bool = False) -> Iterator[None]:
    """Serve both sockets in a thread of its own; `silent` ones accept calls and never answer."""
    started, loops = threading.Event(), []
    for path in (RUNTIME, API):
        host.remove(path)

    async def version(request: Message) -> Message:
        del request
        await _wait()
        return V1["VersionResponse"](runtime_name="containerd", runtime_version="v2.1.9")

    async def pods(request: Message) -> Message:
        del request
        await _wait()
        return V1ALPHA1["ListPodsResponse"]()

    async def _wait() -> None:
        if silent:
            await asyncio.Event().wait()

    async def live() -> None:
        ended = asyncio.Event()
        cri = {"Version": (V1["VersionRequest"], version)}
        api = {"ListPods": (V1ALPHA1["ListPodsRequest"], pods)}
        servers = (
            server(host.at(RUNTIME), SERVICE, cri, concurrent=4),
            server(host.at(API), PODS, api, concurrent=4),
        )
        for each in servers:
            await each.start()
        loops.append((asyncio.get_running_loop(), ended))
        started.set()
        await ended.wait()
        for each in servers:
            await each.stop(0)

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    try:
        assert started.wait(LONG)
        yield
    finally:
        for loop, ended in loops:
            loop.call_soon_threadsafe(ended.set)
        thread.join(LONG)


def asked(host: FakeHost, seconds: float) -> tuple[ReportedVersion | None, tuple[AskedWay, ...]]:
    config = host.config()
    facts: GatheredFacts = gather(config, host.root, with_runtime=True)
    facts = with_answers(config, facts, host.root, seconds)
    assert facts.runtime is not None
    return facts.runtime.reported, facts.asked


def test_what_they_answer_are_facts(host: FakeHost) -> None:
    with served(host):
        assert asked(host, LONG) == (
            ReportedVersion("containerd", "v2.1.9", f"asked at {RUNTIME}"),
            (AskedWay(f"the Pods API at {API}", 0),),
        )


def test_what_never_answers_is_not_waited_for(host: FakeHost) -> None:
    with served(host, silent=True):
        reported, (way,) = asked(host, 0.2)
    assert reported is not None
    assert reported.problem == f"{RUNTIME} does not answer Version of CRI (DEADLINE_EXCEEDED)"
    assert way.problem


@pytest.mark.parametrize("listening", [True, False])
def test_a_socket_of_another_protocol_or_without_a_listener_is_a_problem(
    host: FakeHost, *, listening: bool
) -> None:
    for path in (RUNTIME, API):
        host.remove(path)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for other, path in ((first, RUNTIME), (second, API)):
            other.bind(str(host.at(path)))
            if listening:
                other.listen()
        reported, (way,) = asked(host, 0.2)
    assert reported is not None
    assert "does not answer Version of CRI" in reported.problem
    assert way.problem


def test_an_endpoint_that_does_not_answer_is_a_problem(host: FakeHost) -> None:
    host.remove(API)
    host.remove(RUNTIME)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/pods"
        host.agent = host.agent.replace(
            "{enabled: true}", f"{{enabled: true, podsEndpoint: '{url}', verifyCertificate: false}}"
        )
        reported, (way,) = asked(host, 0.2)
    assert reported is None
    assert way == AskedWay(f"the kubelet's endpoint {url}", 0, "no complete answer within 0.2 s")


def test_a_missing_token_is_a_problem_of_the_endpoint(host: FakeHost, tmp_path: Path) -> None:
    host.remove(API)
    keys = f"podsEndpoint: 'https://127.0.0.1:1/pods', tokenFile: {tmp_path}/token"
    host.agent = host.agent.replace("{enabled: true}", f"{{enabled: true, {keys}}}")
    _, (way,) = asked(host, LONG)
    assert "token" in way.problem

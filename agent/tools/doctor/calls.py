"""Asks the kubelet for its pods and the container runtime for its version, each with a deadline.

The runtime is asked over its CRI socket rather than its program run: its answer is about the
process that makes containers, and no program of others is started as root. It needs the extra
`grpc`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.kubelet.errors import PodsUnavailableError
from agent.kubelet.pods_api import PodsApi
from agent.kubelet.pods_endpoint import EndpointAccess, PodsEndpoint
from agent.rpc.calls import CallError, Client
from agent.rpc.messages import Messages
from agent.tools.doctor.facts import AskedWay, ReportedVersion
from agent.tools.doctor.gathering import below

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.model import Config
    from agent.tools.doctor.facts import GatheredFacts, HostPath

#: How long each of them may take to answer, in seconds; all are asked at the same time.
PATIENCE: Final = 10.0
SERVICE: Final = "runtime.v1.RuntimeService"
V1: Final = Messages(
    "runtime.v1",
    {
        "VersionRequest": {"version": (1, "string")},
        "VersionResponse": {
            "version": (1, "string"),
            "runtime_name": (2, "string"),
            "runtime_version": (3, "string"),
            "runtime_api_version": (4, "string"),
        },
    },
)


def with_answers(
    config: Config, facts: GatheredFacts, root: Path, seconds: float = PATIENCE
) -> GatheredFacts:
    """Return facts with what the kubelet and the runtime answer within so many seconds."""
    return asyncio.run(_with_answers(config, facts, root, seconds))


async def _with_answers(
    config: Config, facts: GatheredFacts, root: Path, seconds: float
) -> GatheredFacts:
    runtime = facts.runtime
    sockets = () if runtime is None else (runtime.containerd_socket, runtime.crio_socket)
    socket = next((one for one in sockets if one.there), None)
    reported, *ways = await asyncio.gather(
        _version(root, socket, seconds),
        _pods_api(config, facts, root, seconds),
        _pods_endpoint(config, seconds),
    )
    asked = tuple(way for way in ways if way is not None)
    if runtime is not None:
        runtime = replace(runtime, reported=reported)
    return replace(facts, runtime=runtime, asked=asked)


async def _version(root: Path, socket: HostPath | None, seconds: float) -> ReportedVersion | None:
    if socket is None:
        return None
    client = Client(below(root, socket.path), SERVICE)
    try:
        answer = await client.call(
            "Version", V1["VersionRequest"](), V1["VersionResponse"], seconds
        )
    except CallError as error:
        problem = f"{socket.path} does not answer Version of CRI ({error.code})"
        return ReportedVersion(problem=problem)
    finally:
        await client.close()
    source = f"asked at {socket.path}"
    return ReportedVersion(answer.runtime_name, answer.runtime_version, source)


async def _pods_api(
    config: Config, facts: GatheredFacts, root: Path, seconds: float
) -> AskedWay | None:
    if not facts.kubelet.pods_api.there:
        return None
    api = PodsApi(below(root, config.agent.kubelet.directory))
    return await _asked(f"the Pods API at {facts.kubelet.pods_api.path}", api, seconds)


async def _pods_endpoint(config: Config, seconds: float) -> AskedWay | None:
    kubelet = config.agent.kubelet
    if not kubelet.pods_endpoint:
        return None
    trust = (kubelet.token_file, kubelet.ca_file, kubelet.verify_certificate)
    endpoint = PodsEndpoint(EndpointAccess(kubelet.pods_endpoint, *trust))
    return await _asked(f"the kubelet's endpoint {kubelet.pods_endpoint}", endpoint, seconds)


async def _asked(way: str, pods: PodsApi | PodsEndpoint, seconds: float) -> AskedWay:
    """Return how many pods a way lists, or why it does not, and close it."""
    try:
        listed = await pods.pods(seconds)
    except PodsUnavailableError as error:
        return AskedWay(way, problem=error.found)
    finally:
        await pods.close()
    return AskedWay(way, len(listed.pods))

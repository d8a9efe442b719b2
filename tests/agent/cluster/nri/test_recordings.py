"""What real runtimes sent, through a session: recorded from containerd 2.1.9 and 2.3.4.

The recordings are messages as JSON, one event a line, with those of other programs between them.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.protobuf.json_format import ParseDict

from agent.cluster.nri.events import EVENTS
from agent.cluster.nri.messages import V1ALPHA1, ContainerResources, PodSandbox, RuntimeContainer
from tests.agent.cluster.nri.support import RecordingHandler, serving
from tests.agent.server.support import until
from tests.fakes.nri_runtime import FakeRuntime, running
from tests.shared import needs_shared, shared_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES: Final = "cluster-lab/samples"
RECORDINGS: Final = ("nri-0.12-containerd-2.3.4", "nri-0.8-containerd-2.1.9")
pytestmark = [pytest.mark.shared, needs_shared(SAMPLES)]

#: The methods of the handler by the event in a recording; other events call none.
METHODS: Final = {
    "RunPodSandbox": "sandbox_started",
    "StopPodSandbox": "sandbox_stopped",
    "RemovePodSandbox": "sandbox_removed",
    "UpdatePodSandbox": "sandbox_updated",
    "CreateContainer": "container_created",
    "UpdateContainer": "container_updated",
    "PostStartContainer": "container_started",
    "StopContainer": "container_stopped",
    "RemoveContainer": "container_removed",
}
KINDS: Final = {
    "Configure": "ConfigureRequest",
    "Synchronize": "SynchronizeRequest",
    "UpdateContainer": "UpdateContainerRequest",
    "UpdatePodSandbox": "UpdatePodSandboxRequest",
}


def records(name: str) -> list[dict[str, Any]]:
    """Return the events of a recording that a runtime sent."""
    folder = shared_dir()
    assert folder is not None
    with gzip.open(folder / SAMPLES / f"{name}.jsonl.gz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    return [each for each in found if each["ev"] in EVENTS or each["ev"] in KINDS]


def message(record: dict[str, Any]) -> Any:  # noqa: ANN401  # a message
    if record.get("via") == "StateChange":
        kind = "StateChangeEvent"
    else:
        kind = KINDS.get(
            record["ev"], "PodEvent" if record.get("ctr") is None else "ContainerEvent"
        )
    return ParseDict(record["req"], V1ALPHA1[kind](), ignore_unknown_fields=True)


def connections(name: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each connection of a recording, from Configure on."""
    one: list[dict[str, Any]] = []
    for record in records(name):
        if record["ev"] == "Configure" and one:
            yield one
            one = []
        one.append(record)
    yield one


def expected(record: dict[str, Any]) -> Iterator[str]:
    if record["ev"] == "Configure":
        yield f"configured {record['req']['runtimeName']}"
    elif record["ev"] == "Synchronize":
        pods, containers = (len(record["req"].get(key, ())) for key in ("pods", "containers"))
        yield f"synchronize {pods} {containers}"
    elif record["ev"] in METHODS:
        subject = "/".join(filter(None, (record["pod"], record["ctr"])))
        yield f"{METHODS[record['ev']]} {subject}"


@pytest.mark.parametrize("name", RECORDINGS)
async def test_a_recording_calls_the_handler_in_its_order(tmp_path: Path, name: str) -> None:
    seen = 0
    for recorded in connections(name):
        configure, synchronize, *events = recorded
        assert (configure["ev"], synchronize["ev"]) == ("Configure", "Synchronize")
        asked = message(synchronize)
        runtime = FakeRuntime(
            tmp_path / "nri.sock",
            name=configure["req"]["runtimeName"],
            version=configure["req"]["runtimeVersion"],
            nri_version=configure["req"].get("NRIVersion", ""),
            pods=list(asked.pods),
            containers=list(asked.containers),
        )
        handler = RecordingHandler()
        async with running(runtime), serving(runtime.socket, handler, seconds=60) as session:
            plugin = await runtime.plugin()
            await until(lambda: session.state.connected)
            for record in events:
                method = "StateChange" if record.get("via") == "StateChange" else record["ev"]
                reply = await plugin.call(method, message(record))
                assert reply.code == 0
        assert handler.events[:-1] == [text for record in recorded for text in expected(record)]
        seen += len(events)
    assert seen > 20


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_pod_and_container_of_a_recording_is_read_as_it_was_sent(name: str) -> None:
    for record in records(name):
        request, read = record["req"], message(record)
        pods = request.get("pods", []) + [request[key] for key in ("pod",) if key in request]
        found = [*getattr(read, "pods", ()), *([read.pod] if hasattr(read, "pod") else ())]
        for sent, pod in zip(pods, found, strict=True):
            check_pod(sent, PodSandbox.of(pod))
        containers = request.get("containers", [])
        found = [*getattr(read, "containers", ())]
        if "container" in request:
            containers, found = [request["container"]], [read.container]
        for sent, container in zip(containers, found, strict=True):
            check_container(sent, RuntimeContainer.of(container))


def check_pod(sent: dict[str, Any], sandbox: PodSandbox) -> None:
    assert sandbox.id == sent["id"]
    assert sandbox.uid == sent["uid"]
    assert (sandbox.namespace, sandbox.name) == (sent["namespace"], sent["name"])
    assert sandbox.annotations == sent["annotations"]
    assert sandbox.cgroup_parent == sent["linux"]["cgroupParent"]
    resources = sent["linux"].get("podResources", {}).get("cpu", {})
    assert sandbox.cpu_quota == number(resources, "quota")
    assert sandbox.cpu_shares == number(resources, "shares")


def check_container(sent: dict[str, Any], container: RuntimeContainer) -> None:
    assert (container.id, container.sandbox_id) == (sent["id"], sent["podSandboxId"])
    assert container.name == sent["name"]
    assert [f"{key}={value}" for key, value in container.environment.items()] == sent.get("env", [])
    assert container.annotations == sent["annotations"]
    assert container.cgroups_path == sent["linux"]["cgroupsPath"]
    assert container.pid == sent.get("pid", 0)
    resources = sent["linux"]["resources"]
    cpu = resources.get("cpu", {})
    assert container.resources == ContainerResources(
        cpus=cpu.get("cpus", ""),
        mems=cpu.get("mems", ""),
        quota_us=number(cpu, "quota"),
        period_us=number(cpu, "period"),
        shares=number(cpu, "shares"),
        memory=number(resources.get("memory", {}), "limit"),
    )


def number(values: dict[str, Any], key: str) -> int | None:
    return int(values.get(key, {}).get("value", 0)) or None

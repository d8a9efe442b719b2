"""Texts that others chose, from a runtime and a kubelet to everything that the agent prints."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from agent.cli.main import run_command
from agent.cluster.nri.events import NriEvent
from agent.server import log_output as logs
from tests.agent.cli.test_others_texts import ANNOTATIONS, EVIL, LONGEST, demand_lines
from tests.agent.cluster.test_cluster import Cluster, amounts, container, pod, put, whole
from tests.agent.server.test_log import configuring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

CONTAINERS: Final[tuple[dict[str, Any], ...]] = (
    {"name": EVIL}, {"image": EVIL}, {"resources": {}}
)  # fmt: skip
OWN: Final = pod("own", container("main", 1))


def pods() -> Iterator[dict[str, Any]]:
    """Yield pods of a kubelet, each with the text in one place."""
    metadata, (main,) = OWN["metadata"], OWN["spec"]["containers"]
    for number, key in enumerate(ANNOTATIONS):
        name = pod(f"a{number}")["metadata"]
        yield {**OWN, "metadata": {**name, "annotations": {key: EVIL}}}
    yield {**OWN, "metadata": {**metadata, "labels": {EVIL: EVIL}}}
    for number, fields in enumerate(CONTAINERS):
        spec = {"containers": [{**main, **fields}]}
        yield {**OWN, "metadata": pod(f"c{number}")["metadata"], "spec": spec}
    limits = {**amounts(1)["limits"], EVIL: "1"}
    spec = {"containers": [{**main, "resources": {"limits": limits, "requests": limits}}]}
    yield {**OWN, "metadata": pod("r")["metadata"], "spec": spec}


async def test_they_are_bounded_and_send_nothing_to_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, stream = Cluster(tmp_path), io.StringIO()
    runtime = cluster.runtime.nri
    runtime.name = runtime.version = runtime.nri_version = EVIL
    evil = dict.fromkeys(("id", "name", "uid", "namespace"), EVIL)
    sandbox = {**evil, "annotations": {EVIL: EVIL}, "linux": {"cgroup_parent": EVIL}}

    async def printed(*command: str) -> str:
        socket = str(cluster.world.socket)
        await asyncio.to_thread(run_command, [*command, "--socket", socket])
        out, err = capsys.readouterr()
        assert isinstance(out, str)
        return out + str(err)

    with configuring():
        logs.configure("json", "info", stream)
        async with whole(cluster):
            for each in pods():
                cluster.put(each)
            for field in ("name", "namespace"):
                metadata = {**pod(field)["metadata"], field: EVIL}
                file = cluster.control / "pods" / f"{field}.json"
                file.write_text(json.dumps({**OWN, "metadata": metadata}))
            plugin = runtime.plugins[-1]
            mine = {"id": EVIL, "pod_sandbox_id": EVIL, "name": EVIL}
            for event in (NriEvent.RUN_POD_SANDBOX, NriEvent.CREATE_CONTAINER):
                await plugin.event(event, sandbox, mine)
            await plugin.call(EVIL)
            await put(cluster, pod("last", container("last", 1)))
            for asked in (("status",), ("list",), ("history", "-n", "1000"), ("map",), ("check",)):
                demand_lines(await printed(*asked))
                found = await printed(*asked, "-o", "json")
                assert json.loads(found)
                demand_lines(found, 2 * LONGEST)
            demand_lines(await printed("show", "default/c0"))
            url = f"http://127.0.0.1:{cluster.agent.port}/metrics"
            demand_lines(await asyncio.to_thread(lambda: urlopen(url).read().decode()))
    assert "pwned" in stream.getvalue()
    demand_lines(stream.getvalue(), 48 << 10)

"""What a real containerd sent of a real kubelet's pod, answered by a whole agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from agent.cluster.nri.messages import V1ALPHA1
from sysfs.mask import Mask
from tests.agent.cluster.nri.test_recordings import RECORDINGS, SAMPLES, connections, message
from tests.agent.cluster.test_cluster import Cluster, container, until
from tests.fakes.kubelet.core_v1 import encoded
from tests.fakes.pods_api import FakePodsApi
from tests.shared import needs_shared

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [pytest.mark.shared, needs_shared(SAMPLES)]

#: What the containers of the recorded pod ask for (the lab's mixed.yaml).
ASKED: Final = {"init1": 2, "side1": 1, "init2": 1, "app": 2, "aux": 1}


def specification(sandbox: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded pod as its Pods API had it."""
    always = {"side1": {"restartPolicy": "Always"}}
    made = {name: container(name, cpus, **always.get(name, {})) for name, cpus in ASKED.items()}
    first = ("init1", "side1", "init2")
    return {
        "metadata": {name: sandbox[name] for name in ("name", "namespace", "uid")},
        "spec": {
            "initContainers": [made[name] for name in first],
            "containers": [made[name] for name in ("app", "aux")],
        },
    }


async def test_the_recorded_pod_gets_what_it_asks_for(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    (records, *_) = connections(RECORDINGS[1])
    (started,) = [each for each in records if each["ev"] == "RunPodSandbox"]
    pod = specification(started["req"]["pod"])
    uid = pod["metadata"]["uid"]
    cluster.directory.mkdir()
    api = FakePodsApi(cluster.directory)
    api.pods[uid] = encoded(pod)
    await api.start()
    cluster.runtime.nri.own_methods = False
    cluster.cgroups().start()
    cluster.cgroups().ensure(uid, pod["spec"])
    adjusted: dict[str, Any] = {}
    async with cluster.with_runtime(), cluster.with_agent():
        plugin = await cluster.runtime.nri.plugin()
        for record in records:
            if record["ev"] not in ("RunPodSandbox", "CreateContainer", "PostStartContainer"):
                continue
            method = "StateChange" if record.get("via") == "StateChange" else record["ev"]
            reply = await plugin.call(method, message(record))
            assert not reply.code, reply.message
            if record["ev"] == "RunPodSandbox":
                await until(lambda: uid in cluster.admitted())
            elif record["ev"] == "CreateContainer":
                answer = V1ALPHA1["CreateContainerResponse"].FromString(reply.payload).adjust
                adjusted[record["ctr"]] = answer
    await api.stop()
    sets = {name: Mask.parse(each.linux.resources.cpu.cpus) for name, each in adjusted.items()}
    assert {name: len(cpus) for name, cpus in sets.items()} == ASKED
    assert len(sets["side1"] | sets["app"] | sets["aux"]) == 4
    assert not sets["side1"] & (sets["init1"] | sets["init2"])
    quotas = {each.linux.resources.cpu.quota.value for each in adjusted.values()}
    assert quotas == {-1}
    written = {entry.value for entry in adjusted["app"].env}
    assert str(sets["app"]) in written

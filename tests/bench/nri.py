"""A runtime with many pods, and the plugin's answers over its socket.

Both ends are in this process, but for pods that come at once (`tests.bench.storm`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from agent.cluster.nri.events import NriEvent
from agent.cluster.nri.messages import V1ALPHA1, Adjustment
from sysfs.mask import Mask
from tests.agent.cluster.nri.support import CONTAINER, POD, RecordingHandler, serving
from tests.bench.measure import of_samples
from tests.bench.storm.creations import creations
from tests.fakes.nri_runtime import FakeRuntime, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.measure import Figure

_PODS: Final = 2500
_CONTAINERS_OF_A_POD: Final = 2
#: So many pods and as many containers fit in a message of 4 MiB.
_PART: Final = 1000
_TIMES: Final = 5
_CREATED: Final = 2000
#: As many annotations as a pod of a kubelet has, each as long.
_ANNOTATIONS: Final = {f"io.kubernetes.cri.annotation-{number}": "v" * 40 for number in range(14)}
_ADJUSTMENT: Final = Adjustment(cpus=Mask.parse("2-3"), mems=Mask.of(0), quota_us=-1)


def answers() -> Iterator[Figure]:
    """Synchronize 2,500 pods, repair each container, create containers, have 110 pods come."""
    synchronized: list[int] = []
    created: list[int] = []
    asyncio.run(_measure(synchronized, created))
    yield of_samples(f"nri/synchronize/pods{_PODS}", synchronized)
    yield of_samples("nri/create", created)
    yield from creations()


async def _measure(synchronized: list[int], created: list[int]) -> None:
    handler = RecordingHandler()
    handler.adjustment = _ADJUSTMENT
    containers = [_container(number) for number in range(_CONTAINERS_OF_A_POD * _PODS)]
    handler.repairs = {each.id: _ADJUSTMENT for each in containers}
    with TemporaryDirectory() as folder:
        runtime = FakeRuntime(
            Path(folder) / "nri.sock",
            pods=[_pod(number) for number in range(_PODS)],
            containers=containers,
            part=_PART,
        )
        async with running(runtime):
            for number in range(_TIMES):
                started = perf_counter_ns()
                async with serving(runtime.socket, handler, synchronizing=60):
                    plugin = await runtime.plugin(number)
                    synchronized.append(perf_counter_ns() - started)
                    assert len(plugin.repairs) == len(containers)
            async with serving(runtime.socket, handler, synchronizing=60):
                plugin = await runtime.plugin(_TIMES)
                for _ in range(_CREATED):
                    started = perf_counter_ns()
                    await plugin.event(NriEvent.CREATE_CONTAINER, POD, CONTAINER)
                    created.append(perf_counter_ns() - started)


def _pod(number: int) -> Any:  # noqa: ANN401  # a message
    pod = POD | {"id": f"{number:064}", "uid": f"{number:036}", "annotations": _ANNOTATIONS}
    return V1ALPHA1["PodSandbox"](**pod)


def _container(number: int) -> Any:  # noqa: ANN401  # a message
    container = CONTAINER | {
        "id": f"{number:064}",
        "pod_sandbox_id": f"{number // _CONTAINERS_OF_A_POD:064}",
        "annotations": _ANNOTATIONS,
        "env": [f"VARIABLE_{each}=value {each}" for each in range(12)],
    }
    return V1ALPHA1["Container"](**container)

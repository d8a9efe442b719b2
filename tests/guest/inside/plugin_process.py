"""A device plugin in a process of its own, run by the agent's Python beside the agent.

`python3 plugin_process.py DIRECTORY RESOURCE ID=NODE...` serves devices until it is killed, and
registers whenever `kubelet.sock` is made again, as plugins do. With `--list SOCKET` it prints what
podresources lists there instead, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.pod_resources import POD_RESOURCES_LISTER, V1
from tests.fakes.device_plugin import FakePlugin, device

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How often the socket of the agent is looked for, in seconds.
PERIOD = 0.2


async def serve(directory: Path, resource: str, places: Sequence[str]) -> None:
    """Serve the devices and register them until the process is killed."""
    plugin = FakePlugin(directory, resource, "guest.sock", preferring=True)
    named = [place.partition("=")[::2] for place in places]
    plugin.send(*(device(name, int(node)) for name, node in named))
    known = None
    while True:
        found = _identity(directory / "kubelet.sock")
        if found is not None and found != known:
            # The agent removes all sockets of the directory when it starts.
            await plugin.stop()
            await plugin.start()
            try:
                await plugin.register()
                known = found
            except CallError as error:
                print(error, file=sys.stderr, flush=True)
        await asyncio.sleep(PERIOD)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


async def listed(socket: Path) -> list[dict[str, object]]:
    """Return what podresources lists: name, CPUs and devices of each container."""
    client = Client(socket, POD_RESOURCES_LISTER)
    try:
        answer = await client.call(
            "List", V1["ListPodResourcesRequest"](), V1["ListPodResourcesResponse"], 30.0
        )
    finally:
        await client.close()
    return [
        {
            "pod": pod.name,
            "container": container.name,
            "cpus": list(container.cpu_ids),
            "devices": {each.resource_name: list(each.device_ids) for each in container.devices},
        }
        for pod in answer.pod_resources
        for container in pod.containers
    ]


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print(json.dumps(asyncio.run(listed(Path(sys.argv[2])))))
    else:
        asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))

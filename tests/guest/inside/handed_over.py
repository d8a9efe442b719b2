"""What the agent makes of a delivery that no provider in the guest makes, by the agent's own code.

`python3 -P handed_over.py DIRECTORY CGROUP`, run by the agent's Python, reads a delivery (JSON) and
writes the CDI file of a pod with it. It prints the arguments by tool, or why it has none, and those
of podman where no CDI file is written as `podman without CDI`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.api.documents.kernel import KernelDocument
from agent.api.views import pod_document
from agent.cli.errors import CommandError
from agent.cli.start_arguments import Tool, start_arguments
from agent.devices.cdi_files import CdiFiles
from agent.devices.delivery_checks import checked
from agent.managers.allocation import ContainerAllocation, PodAllocation
from agent.managers.delivery import Delivery, DeviceNode, Mount
from agent.pods.model import ContainerKind, QosClass
from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.api.documents.pods import PodDocument


def main(directory: str, cgroup: str) -> int:
    """Write the file, print the arguments; 1 if there is anything to complain about."""
    given = json.load(sys.stdin)
    delivery = Delivery(
        environment=given["environment"],
        mounts=tuple(Mount(**mount) for mount in given["mounts"]),
        device_nodes=tuple(DeviceNode(**node) for node in given["device_nodes"]),
    )
    checked(delivery, "the scenario", "example.com/odd")
    container = ContainerAllocation("main", ContainerKind.APP, delivery=delivery)
    pod = PodAllocation(given["uid"], "odd", "default", QosClass.GUARANTEED, "", (container,))
    files = CdiFiles(Path(directory))
    files.write(pod)
    kernel: dict[str | None, tuple[KernelDocument, ...]] = {None: (KernelDocument(cgroup=cgroup),)}
    plain = pod_document(pod, Mask.of(0), kernel=kernel)
    by_name = pod_document(pod, Mask.of(0), kernel=kernel, cdi_names=files.names(pod))
    printed = {str(tool): _arguments(tool, by_name) for tool in Tool}
    printed["podman without CDI"] = _arguments(Tool.PODMAN, plain)
    sys.stdout.write(msgspec.json.encode(printed).decode())
    return 1 if files.conditions else 0


def _arguments(tool: Tool, pod: PodDocument) -> list[str] | str:
    """Return the arguments, or why the tool has none."""
    try:
        return start_arguments(tool, pod, pod.containers[0])
    except CommandError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

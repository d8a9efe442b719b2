"""`allocated_pods_state`: what the kubelet has admitted, by uid, in a file of its directory."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.fakes.kubelet.pods import KubeletPod

NAME: Final = "allocated_pods_state"


def write(directory: Path, pods: Iterable[KubeletPod]) -> None:
    """Write the file with the resources of these pods."""
    entries = {pod.uid: _entry(pod) for pod in pods}
    data = json.dumps({"entries": entries}, separators=(",", ":"))
    # The kubelet's checksum is one of Go's own; no reader but the kubelet verifies the file by it.
    text = json.dumps({"data": data, "checksum": zlib.crc32(data.encode())})
    new = directory / f".{NAME}"
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(directory / NAME)


def _entry(pod: KubeletPod) -> Mapping[str, Any]:
    containers = {each["name"]: each.get("resources", {}) for each in pod.containers()}
    entry: dict[str, Any] = {"ContainerResources": containers}
    if pod.spec.get("resources"):
        entry["PodLevelResources"] = pod.spec["resources"]
    return entry

"""What completes the kubelet's files: pods from manifests or a cluster, and containers' ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, field

from agent.parsing.errors import Mistake
from agent.parsing.nodes import plain
from agent.parsing.reader import UnreadableError, read_document
from agent.pods.errors import ManifestError
from agent.pods.manifest import pod_from_document
from agent.safe_files import read_bounded
from agent.tools.kubelet_state.checksums import Name  # noqa: TC001 - msgspec reads annotations
from agent.tools.kubelet_state.errors import ContainerListError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from agent.parsing.nodes import Plain
    from agent.pods.model import Pod

_SUFFIXES: Final = (".json", ".yaml", ".yml")
_LISTS: Final = ("List", "PodList")
#: A cluster shows a static pod as a mirror with a uid of its own; this is the kubelet's uid for it.
_MIRRORED: Final = "kubernetes.io/config.mirror"


def read_pods(path: Path, desired: Collection[str], *, pod_level: bool) -> dict[str, Pod]:
    """Return the pods of the `desired` uids that a file, or the files of a directory, describe.

    A file is a Pod manifest or a list of pods (`kubectl get pods -o json`), YAML or JSON. Other
    pods are passed over unread. `pod_level` is the gate PodLevelResources. Raises `ManifestError`.
    """
    pods: dict[str, Pod] = {}
    for file in _manifests(path):
        for place, document in _documents(file):
            uid = _uid(document)
            if uid not in desired:
                continue
            source = f"{file}{place}"
            described = {**document, "metadata": {**_metadata(document), "uid": uid}}
            if uid in pods:
                raise ManifestError(source, (Mistake("metadata.uid", f"a second pod has {uid}"),))
            pods[uid] = pod_from_document(described, source, pod_level=pod_level)
    return pods


class _Metadata(Struct):
    name: Name


class _Labels(Struct):
    uid: Name = field(name="io.kubernetes.pod.uid")


class _Container(Struct):
    id: Name
    metadata: _Metadata
    labels: _Labels


class _ContainerList(Struct):
    containers: list[_Container]


def read_container_ids(path: Path) -> dict[str, tuple[str, str]]:
    """Return {container id: (pod uid, container name)} of the output of `crictl ps -a -o json`.

    Raises `ContainerListError`, and `OSError` as the system does.
    """
    try:
        listed = msgspec.json.decode(read_bounded(path), type=_ContainerList)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContainerListError(path, str(error)) from error
    return {each.id: (each.labels.uid, each.metadata.name) for each in listed.containers}


def _manifests(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())


def _documents(file: Path) -> Iterator[tuple[str, dict[str, Plain]]]:
    """Yield the pods of a file, unread, each with its place in the file."""
    document = _parsed(file)
    if isinstance(document, dict) and document.get("kind") in _LISTS:
        items = document.get("items")
        for number, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                yield f" items[{number}]", item
    elif isinstance(document, dict) and document.get("kind") == "Pod":
        yield "", document
    else:
        problem = Mistake("kind", "expected a Pod, or a List of them", 1)
        raise ManifestError(str(file), (problem,))


def _parsed(file: Path) -> Plain:
    """Return the content of a file; a cluster's list in JSON may be larger than any manifest."""
    data = read_bounded(file)
    try:
        if data.lstrip().startswith(b"{"):
            parsed: Plain = json.loads(data)
            return parsed
        return plain(read_document(data))
    except UnreadableError as error:
        raise ManifestError(str(file), (error.problem,)) from error
    except (ValueError, RecursionError) as error:
        problem = Mistake("", f"this is not JSON: {error}")
        raise ManifestError(str(file), (problem,)) from error


def _uid(document: dict[str, Plain]) -> str:
    metadata = _metadata(document)
    annotations = metadata.get("annotations")
    mirrored = annotations.get(_MIRRORED) if isinstance(annotations, dict) else None
    uid = mirrored or metadata.get("uid")
    return uid if isinstance(uid, str) else ""


def _metadata(document: dict[str, Plain]) -> dict[str, Plain]:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}

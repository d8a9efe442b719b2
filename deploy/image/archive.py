"""The image as one file that podman and docker load, byte for byte the same for the same tree.

The format is that of `docker image save` (a tar with manifest.json, a configuration and a layer):
that of OCI has no health check, and podman drops one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from deploy.image.debian import ARCHITECTURE
from deploy.image.tree import CONFIG, HEALTH, PREFIX

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "localhost/numawarden"
SECOND: Final = 1_000_000_000

#: Docker's defaults are 30 s for the check itself and three failures; the time for a start is the
#: unit's TimeoutStartSec.
HEALTHCHECK: Final = {
    "Test": ["CMD", f"/{HEALTH}"],
    "Interval": 30 * SECOND,
    "Timeout": 10 * SECOND,
    "StartPeriod": 300 * SECOND,
    "Retries": 3,
}


def labels(version: str, revision: str, epoch: int) -> dict[str, str]:
    """Return the image's labels, as of OCI's image specification ("Pre-Defined Annotation Keys").

    `revision` is the commit, `epoch` its time in seconds.
    """
    label = "org.opencontainers.image"
    return {
        f"{label}.title": "Numawarden",
        f"{label}.description": "NUMA resource agent: admits pods, pins them with cgroup v2",
        f"{label}.version": version,
        f"{label}.revision": revision,
        f"{label}.created": _time(epoch),
        f"{label}.licenses": "Apache-2.0",
    }


def write(file: Path, root: Path, version: str, revision: str, epoch: int) -> None:
    """Write the image of a root directory.

    All of it belongs to root and is as old as `epoch` (seconds), whatever the tree's own owners and
    times are.
    """
    layer = file.with_suffix(".layer")
    _write_layer(layer, root, epoch)
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    described = _json(_configuration(labels(version, revision, epoch), digest, epoch))
    name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [f"{NAME}:{version}"], "Layers": [f"{digest}.tar"]}]
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar, layer.open("rb") as content:
        _add(tar, "manifest.json", io.BytesIO(_json(manifest)), epoch)
        _add(tar, name, io.BytesIO(described), epoch)
        _add(tar, f"{digest}.tar", content, epoch)
    layer.unlink()


def _configuration(labelled: dict[str, str], layer: str, epoch: int) -> dict[str, Any]:
    created = _time(epoch)
    return {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "created": created,
        "config": {
            "Env": [f"PATH=/{PREFIX}/bin:/usr/bin"],
            "Entrypoint": [f"/{PREFIX}/bin/numawarden"],
            "Cmd": ["agent", "--config", f"/{CONFIG}"],
            "Healthcheck": HEALTHCHECK,
            "Labels": labelled,
            "StopSignal": "SIGTERM",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "history": [{"created": created, "created_by": "make image"}],
    }


def _write_layer(file: Path, root: Path, epoch: int) -> None:
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = epoch
        return member

    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        for directory, names, files in os.walk(root):
            names.sort()
            for name in sorted([*names, *files]):
                path = f"{directory}/{name}"
                tar.add(path, os.path.relpath(path, root), recursive=False, filter=plain)


def _add(tar: tarfile.TarFile, name: str, content: Any, epoch: int) -> None:  # noqa: ANN401
    member = tarfile.TarInfo(name)
    member.size = content.seek(0, io.SEEK_END)
    member.mtime = epoch
    content.seek(0)
    tar.addfile(member, content)


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

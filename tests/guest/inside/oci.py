"""A container's root file system, and an OCI image of it, made of busybox without any network."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BUSYBOX: Final = Path("/bin/busybox")
DIRECTORIES: Final = ("bin", "dev", "etc", "proc", "run", "sys", "tmp")
APPLETS: Final = ("cat", "grep", "head", "sh", "sleep", "tr", "true")

SLEEPS: Final[Mapping[str, object]] = {
    "Env": ["PATH=/bin"],
    "Cmd": ["/bin/sleep", "1000000"],
}
MEDIA: Final = "application/vnd.oci.image"


def write_root(directory: Path) -> Path:
    """Lay out a root file system in a new directory and return it."""
    for name in DIRECTORIES:
        (directory / name).mkdir(parents=True)
    (directory / "bin/busybox").write_bytes(BUSYBOX.read_bytes())
    (directory / "bin/busybox").chmod(0o755)
    for applet in APPLETS:
        (directory / "bin" / applet).symlink_to("busybox")
    (directory / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    return directory


def write_image(
    file: Path, reference: str, root: Path, config: Mapping[str, object] = SLEEPS
) -> Path:
    """Write an OCI archive with one uncompressed layer: the tree below `root`.

    `config` says what containers of it run (the image specification's `config`).
    """
    layer = _tar_of(root)
    image = _json(
        architecture="amd64",
        os="linux",
        config=config,
        rootfs={"type": "layers", "diff_ids": [_digest(layer)]},
    )
    manifest = _json(
        schemaVersion=2,
        mediaType=f"{MEDIA}.manifest.v1+json",
        config=_descriptor("config.v1+json", image),
        layers=[_descriptor("layer.v1.tar", layer)],
    )
    name = {"io.containerd.image.name": reference}
    index = _json(
        schemaVersion=2,
        manifests=[_descriptor("manifest.v1+json", manifest) | {"annotations": name}],
    )
    with tarfile.open(file, "w") as archive:
        _add(archive, "oci-layout", _json(imageLayoutVersion="1.0.0"))
        _add(archive, "index.json", index)
        for blob in (layer, image, manifest):
            _add(archive, _digest(blob).replace("sha256:", "blobs/sha256/"), blob)
    return file


def _tar_of(root: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(root, ".")
    return buffer.getvalue()


def _json(**content: object) -> bytes:
    return json.dumps(content).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": f"{MEDIA}.{media}", "digest": _digest(blob), "size": len(blob)}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))

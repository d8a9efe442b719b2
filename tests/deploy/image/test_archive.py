from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from deploy.image import archive, tree
from tests.guest.scenarios import container

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = 1_800_000_000
CREATED = "2027-01-15T08:00:00Z"


def plant(root: Path, names: list[str]) -> Path:
    """Make a small root with files, a link and modes, in the order of the names."""
    root.mkdir()
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")
    (root / "usr/bin/program").chmod(0o755)
    (root / "bin").symlink_to("usr/bin")
    (root / "private").mkdir(0o700)
    return root


NAMES = ["usr/bin/program", "etc/passwd", "etc/group", "a"]


@pytest.fixture
def image(tmp_path: Path) -> dict[str, bytes]:
    """Return the files of an image by name."""
    file = tmp_path / "image.tar"
    archive.write(file, plant(tmp_path / "root", NAMES), "1.2", "c0ffee", EPOCH)
    with tarfile.open(file) as tar:
        return {one.name: (tar.extractfile(one) or io.BytesIO()).read() for one in tar}


def configuration(image: dict[str, bytes]) -> dict[str, Any]:
    [manifest] = json.loads(image["manifest.json"])
    document: dict[str, Any] = json.loads(image[manifest["Config"]])
    return document


def test_configuration_and_layer_have_the_digests_that_name_them(image: dict[str, bytes]) -> None:
    [manifest] = json.loads(image["manifest.json"])
    [layer] = manifest["Layers"]
    assert manifest["RepoTags"] == ["localhost/numawarden:1.2"]
    assert manifest["Config"] == f"{hashlib.sha256(image[manifest['Config']]).hexdigest()}.json"
    digest = hashlib.sha256(image[layer]).hexdigest()
    assert configuration(image)["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{digest}"]}


def test_the_image_has_the_labels_of_oci(image: dict[str, bytes]) -> None:
    labels = configuration(image)["config"]["Labels"]
    prefix = "org.opencontainers.image."
    assert {name.removeprefix(prefix): text for name, text in labels.items()} == {
        "title": "Numawarden",
        "description": labels[f"{prefix}description"],
        "version": "1.2",
        "revision": "c0ffee",
        "created": CREATED,
        "licenses": "Apache-2.0",
    }


def test_the_image_runs_the_agent_and_asks_for_its_health(image: dict[str, bytes]) -> None:
    config = configuration(image)["config"]
    command = [*config["Entrypoint"], *config["Cmd"]]
    assert command == [f"/{tree.PREFIX}/bin/numawarden", "agent", "--config", f"/{tree.CONFIG}"]
    # No shell is in the image: the check has to be a program, which the guests run as well.
    assert f"/{tree.HEALTH}" == container.HEALTH
    assert config["Healthcheck"]["Test"] == ["CMD", container.HEALTH]
    assert config["Healthcheck"]["Interval"] == 30 * 10**9


def test_the_layer_is_the_tree_owned_by_root(image: dict[str, bytes], tmp_path: Path) -> None:
    [manifest] = json.loads(image["manifest.json"])
    with tarfile.open(fileobj=io.BytesIO(image[manifest["Layers"][0]])) as tar:
        members = {one.name: one for one in tar}
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in members.values()} == {
            (0, 0, "", EPOCH)
        }
        assert set(members) == {
            *("a", "bin", "etc", "etc/group", "etc/passwd", "private"),
            *("usr", "usr/bin", "usr/bin/program"),
        }
        assert members["bin"].linkname == "usr/bin"
        assert (members["usr/bin/program"].mode, members["private"].mode) == (0o755, 0o700)
        tar.extractall(tmp_path / "out", filter="tar")
    assert (tmp_path / "out/etc/passwd").read_text() == "etc/passwd\n"


def test_the_same_tree_gives_the_same_bytes_whenever_it_was_made(tmp_path: Path) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    archive.write(first, plant(tmp_path / "one", NAMES), "1", "abc", EPOCH)
    other = plant(tmp_path / "two", NAMES[::-1])
    for path in other.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    archive.write(second, other, "1", "abc", EPOCH)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["first.tar", "second.tar"]

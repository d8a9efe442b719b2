from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from deploy import building
from deploy.building import BuildError
from deploy.image import debian

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTROL = """\
Package: thing
Version: 1:2.0-3
Architecture: amd64
Maintainer: Packager <packager@example.org>
Description: stands for a package
 Version: of a text that is not a field
"""


def make_package(directory: Path) -> Path:
    source, file = directory / "source", directory / "thing.deb"
    (source / "DEBIAN").mkdir(parents=True)
    (source / "DEBIAN/control").write_text(CONTROL)
    build = ["dpkg-deb", "--root-owner-group", "--build"]
    subprocess.run([*build, source, file], check=True, capture_output=True)
    return file


def test_a_package_is_described_by_its_control_file_and_its_hash(tmp_path: Path) -> None:
    file = make_package(tmp_path)
    package = debian.describe(file)
    assert (package.name, package.version, package.architecture) == ("thing", "1:2.0-3", "amd64")
    assert package.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert package.control == CONTROL


def test_what_is_not_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_text("nothing\n")
    with pytest.raises(BuildError, match=r"dpkg-deb --field .*x\.deb exited with 2"):
        debian.describe(tmp_path / "x.deb")


#: Files of the builder, and those that stay.
BUILDERS = (
    *("dev/null", "etc/apt/sources.list", "etc/resolv.conf", "usr/bin/debconf-show"),
    *("usr/share/doc/thing/changelog.gz", "usr/share/doc/thing/examples/one"),
    *("usr/share/man/man1/thing.1", "var/lib/dpkg/status"),
)
KEPT = ("etc/os-release", "usr/bin/python3.13", "usr/share/doc/thing/copyright")


def unpack(root: Path) -> None:
    """Stand in for mmdebstrap: a package, and files of those it would have unpacked."""
    archives = root / debian.ARCHIVES
    archives.mkdir(parents=True)
    make_package(archives)
    for name in (*BUILDERS, *KEPT):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "dev/fd").symlink_to("/proc/self/fd")


def test_the_root_keeps_programs_and_licences_and_nothing_of_the_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, asked = tmp_path / "root", []

    def run(command: Sequence[str | Path], epoch: int | None = None) -> str:
        if command[0] != "mmdebstrap":
            return building.run(command)
        asked.append((command[-1], epoch))
        unpack(root)
        return ""

    monkeypatch.setattr(debian, "run", run)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    [package] = debian.bootstrap(root, ["deb http://mirror.example trixie main"], 7)
    assert asked == [("deb http://mirror.example trixie main", 7)]
    assert package.name == "thing"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    assert files == {*KEPT, "var/lib/dpkg/status.d/thing"}
    assert (root / "dev").is_dir()
    assert (root / debian.STATUS / "thing").read_text() == CONTROL


def test_without_mmdebstrap_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(BuildError, match="apt-get install mmdebstrap"):
        debian.bootstrap(tmp_path / "root", [], 0)


@pytest.mark.parametrize("name", ["packages", "removed"])
def test_lists_are_read_without_their_comments(name: str) -> None:
    entries = debian.entries(name)
    assert entries
    for entry in entries:
        assert not entry.startswith(("#", "/", " "))
        assert entry.strip() == entry

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from deploy.deb import archive, tree
from deploy.deb.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

TARGET = TARGETS["debian-13"]
VERSION = "0.1.0-1~debian.13"
EPOCH = 1_700_000_000


def packed(directory: Path, names: tuple[str, ...] = ("one", "two/three")) -> Path:
    """Pack the files that are the same in every package, and some more, made in this order."""
    root = directory / "root"
    for name in names:
        (root / "opt" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "opt" / name).write_text(f"the text of {name}\n")
    tree.lay_out(root)
    tree.settle(root, EPOCH)
    return archive.write(root, VERSION, TARGET, EPOCH, directory / "dist")


def field(package: Path, name: str) -> str:
    command = ["dpkg-deb", "--field", str(package), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("package"))


@pytest.fixture
def inside(package: Path, tmp_path: Path) -> Path:
    """Return a directory with the control files of the package."""
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    return tmp_path / "control"


def test_the_same_content_gives_the_same_bytes_however_it_is_made(tmp_path: Path) -> None:
    first = packed(tmp_path / "first")
    mask = os.umask(0o077)
    try:
        second = packed(tmp_path / "second", ("two/three", "one"))
    finally:
        os.umask(mask)
    assert first.read_bytes() == second.read_bytes()


def test_a_package_is_named_by_version_and_architecture_and_belongs_to_root(package: Path) -> None:
    assert package.name == f"numawarden_{VERSION}_amd64.deb"
    command = ["dpkg-deb", "--contents", str(package)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}


@pytest.mark.parametrize("name", ["debian-12", "debian-13", "ubuntu-24.04"])
def test_a_package_depends_on_the_python_that_its_environment_is_for(name: str) -> None:
    target = TARGETS[name]
    control = archive.describe(VERSION, target, 1)
    [depends] = [line for line in control.splitlines() if line.startswith("Depends: ")]
    assert f" python{target.python}," in depends


def test_the_configuration_is_the_administrators(inside: Path) -> None:
    assert (inside / "conffiles").read_text() == "/etc/numawarden/config.yaml\n"


def test_dpkg_can_verify_every_file(package: Path, inside: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "out"], check=True)
    lines = [line.split("  ", 1) for line in (inside / "md5sums").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    assert "etc/numawarden/config.yaml" in listed
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and not path.is_symlink():
            digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            assert listed.pop(str(path.relative_to(tmp_path / "out"))) == digest
    assert listed == {}


def test_the_maintainer_scripts_are_there_and_a_shell_reads_them(inside: Path) -> None:
    scripts = {path.name: path for path in inside.iterdir() if os.access(path, os.X_OK)}
    assert set(scripts) == {"postinst", "prerm", "postrm"}
    for script in scripts.values():
        subprocess.run(["sh", "-n", script], check=True)


def test_a_new_package_replaces_those_of_its_distribution_alone(tmp_path: Path) -> None:
    names = [
        *("numawarden_0.1-1~debian.13_amd64.deb", "numawarden_0.1-1~debian.13.cdx.json"),
        *("numawarden_0.1-1~debian.12_amd64.deb", "numawarden_0.1-1~debian.12.cdx.json"),
        *("numawarden-0.1-py3-none-any.whl", "numawarden-0.1-image.cdx.json"),
    ]
    for name in names:
        (tmp_path / name).touch()
    archive.remove_built(tmp_path, TARGET)
    assert {path.name for path in tmp_path.iterdir()} == set(names[2:])


def test_the_installed_size_is_that_of_all_files_in_kib(tmp_path: Path) -> None:
    small = int(field(packed(tmp_path / "small"), "Installed-Size"))
    root = tmp_path / "large/root/opt"
    root.mkdir(parents=True)
    (root / "large").write_bytes(b"x" * (300 * 1024 - 1))
    large = int(field(packed(tmp_path / "large"), "Installed-Size"))
    assert large - small == 300


@pytest.mark.parametrize(("named", "member"), [("", b"data.tar.xz"), ("gzip", b"data.tar.gz")])
def test_a_compressor_that_is_named_as_for_dpkg_deb_packs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, member: bytes
) -> None:
    monkeypatch.delenv(archive.COMPRESSOR, raising=False)
    if named:
        monkeypatch.setenv(archive.COMPRESSOR, named)
    assert member in packed(tmp_path).read_bytes()

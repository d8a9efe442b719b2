"""The hosts of the playground are hosts as discovery reads them."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from agent.tools.playground import HOSTS, PlaygroundError, captured_host, described_host
from sysfs.described import write_tree
from sysfs.discover import discover

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", HOSTS)
def test_a_named_host_is_discovered_as_it_is_described(name: str, tmp_path: Path) -> None:
    described = HOSTS[name]().host
    found = discover(write_tree(described, tmp_path))
    assert found.warnings == ()
    assert found.cpus == described.cpus
    assert found.nodes == described.nodes
    assert [each.address for each in found.devices] == [each.address for each in described.devices]


@pytest.mark.parametrize("name", HOSTS)
def test_devices_are_on_nodes_that_the_host_has(name: str) -> None:
    described = HOSTS[name]()
    nodes = {node.id for node in described.host.nodes}
    assert all(set(ids.values()) <= nodes for ids in described.devices.values())


def test_another_name_is_taken_for_a_capture(tmp_path: Path) -> None:
    with pytest.raises(PlaygroundError, match="cray-1 is neither a capture nor one of two-sockets"):
        described_host("cray-1", tmp_path / "capture")


def archive(file: Path, names: dict[str, str]) -> Path:
    with tarfile.open(file, "w") as tar:
        for name, text in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return file


@pytest.mark.parametrize("below", ["", "host/"], ids=["at the top", "in a folder"])
def test_a_capture_is_the_host_that_was_captured(below: str, tmp_path: Path) -> None:
    described = HOSTS["epyc"]().host
    tree = write_tree(described, tmp_path / "tree")
    names = {
        f"{below}{path.relative_to(tree)}": path.read_text()
        for path in tree.rglob("*")
        if path.is_file()
    }
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    found = captured_host(archive(tmp_path / "host.tar", names), unpacked)
    assert found.host.cpus == described.cpus
    assert found.host.nodes == described.nodes
    assert captured_host(tree, unpacked).host.cpus == described.cpus


def test_a_file_that_cannot_be_unpacked_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no archive")
    with pytest.raises(PlaygroundError, match=r"notes\.txt is neither a capture nor one of two-so"):
        captured_host(file, tmp_path)


def test_an_archive_without_sys_is_rejected(tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    with pytest.raises(PlaygroundError, match="no directory sys"):
        captured_host(archive(tmp_path / "a.tar", {"readme": "text"}), unpacked)


def test_an_archive_that_is_larger_than_any_host_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "large.tar"
    with tarfile.open(file, "w") as tar:
        member = tarfile.TarInfo("sys/large")
        member.size = 1 << 40
        tar.fileobj.write(member.tobuf())
    with pytest.raises(PlaygroundError, match="more files or bytes"):
        captured_host(file, tmp_path)


def test_an_archive_writes_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    with pytest.raises(PlaygroundError):
        captured_host(archive(tmp_path / "a.tar", {"../outside": "text"}), unpacked)
    assert not (tmp_path / "outside").exists()

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
    described, devices = HOSTS[name]().host, HOSTS[name]().devices
    nodes = {node.id for node in described.nodes}
    assert all(set(ids.values()) <= nodes for ids in devices.values())
    found = discover(write_tree(described, tmp_path))
    assert found.warnings == ()
    assert found.cpus == described.cpus
    assert found.nodes == described.nodes
    assert [each.address for each in found.devices] == [each.address for each in described.devices]


def test_another_name_is_taken_for_a_capture(tmp_path: Path) -> None:
    with pytest.raises(PlaygroundError, match="cray-1 is neither a capture nor one of two-sockets"):
        described_host("cray-1", tmp_path / "capture")


def archive(file: Path, names: dict[str, str]) -> Path:
    """Write an archive; a text `-> x` makes a symbolic link, `=> x` a hard one."""
    with tarfile.open(file, "w") as tar:
        for name, text in names.items():
            member = tarfile.TarInfo(name)
            kind, _, target = text.partition(" ")
            if kind in {"->", "=>"}:
                member.type = tarfile.SYMTYPE if kind == "->" else tarfile.LNKTYPE
                member.linkname = target
            else:
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


def test_what_is_no_capture_is_rejected_and_writes_nothing_elsewhere(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no archive")
    with pytest.raises(PlaygroundError, match=r"notes\.txt is neither a capture nor one of two-so"):
        captured_host(text, tmp_path)
    outside, deep = tmp_path / "outside", "a/" * 3
    outside.mkdir()
    #: As tarfile's filter lets pass before Python 3.11.13, 3.12.11 and 3.13.4.
    long = {f"{'d' * 240}/" * n + "l": "-> " + "d" * 240 for n in range(1, 17)}
    for number, (names, said) in enumerate(
        (
            ({"readme": "text"}, "no directory sys"),
            ({"../outside/x": "text"}, r'"\.\./outside/x" is outside of its directory'),
            ({f"{outside}/x": "text"}, "is outside of its directory"),
            ({"sys": f"-> {outside}", "sys/x": "text"}, "File exists"),
            ({"sys": f"-> {outside}"}, '"sys" leads to ".*", outside of its directory'),
            ({"z/z": "", f"{deep}l": "-> ../../../z", f"{deep}x": "-> l/../../outside"}, "outside"),
            ({"sys/x": "=> ../../outside/x"}, '"sys/x" is no file, directory or symbolic link'),
            ({"sys": "-> sys"}, "symbolic links"),
            ({**long, "sys": "-> " + ("d" * 240 + "/") * 17 + "../" * 18 + "outside"}, "too long"),
        )
    ):
        unpacked = tmp_path / str(number)
        unpacked.mkdir()
        with pytest.raises(PlaygroundError, match=said):
            captured_host(archive(tmp_path / "a.tar", names), unpacked)
    assert not list(outside.iterdir())


def test_an_archive_that_is_larger_than_any_host_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "large.tar"
    with tarfile.open(file, "w") as tar:
        member = tarfile.TarInfo("sys/large")
        member.size = 1 << 40
        tar.fileobj.write(member.tobuf())
    with pytest.raises(PlaygroundError, match="more files or bytes"):
        captured_host(file, tmp_path)

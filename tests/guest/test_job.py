from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.guest import job
from tests.guest.errors import GuestError

if TYPE_CHECKING:
    from pathlib import Path


def add(tar: tarfile.TarFile, name: str, kind: bytes = tarfile.REGTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.size = 4 if kind == tarfile.REGTYPE else 0
    member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    tar.addfile(member, io.BytesIO(b"text"))


def test_results_cannot_leave_their_directory(tmp_path: Path) -> None:
    disk = tmp_path / "out.tar"
    with tarfile.open(disk, "w") as tar:
        add(tar, "./logs/agent.log")
        add(tar, "../escaped")
        add(tar, "link", tarfile.SYMTYPE)
        add(tar, "/absolute")
    job.unpack(disk, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").rglob("*") if not p.is_dir()] == ["agent.log"]
    assert not (tmp_path / "escaped").exists()


def test_a_disk_that_was_never_written_gives_nothing(tmp_path: Path) -> None:
    job.blank(tmp_path / "out.tar")
    job.unpack(tmp_path / "out.tar", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert job.results(tmp_path / "out") == {}


def test_a_disk_of_something_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(GuestError, match="cannot read the results"):
        job.unpack(tmp_path / "out.tar", tmp_path / "out")

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

from agent.runtimes.files import LIMIT, RuntimeFileError, read_json, stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


class Content(Struct):
    """Something with a text."""

    text: str = ""


def rejected(file: Path) -> str:
    with pytest.raises(RuntimeFileError) as error:
        read_json(file, Content)
    assert error.value.path == file
    return str(error.value)


def test_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"text": "a", "more": [1, {"b": null}]}')
    assert read_json(file, Content).text == "a"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"text": 1}', b'{"text": "\xff"}', b"[" * 100_000, b"[]", b"{} {}"],
    ids=["empty", "cut off", "of another type", "no UTF-8", "deep", "a list", "two"],
)
def test_damage_is_said_with_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert rejected(file).startswith(f"{file}: it is damaged (")


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"{}" + b" " * (LIMIT - 2))
    assert read_json(file, Content).text == ""
    file.write_bytes(b"{}" + b" " * (LIMIT - 1))
    assert rejected(file) == f"{file}: it cannot be read (it is larger than {LIMIT} bytes)"


def test_a_file_that_others_can_write_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    file.chmod(0o664)
    assert rejected(file).startswith(
        f"{file}: it can be written by others (mode 0664), so the runtime"
    )


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert rejected(tmp_path / "fifo").endswith("it is not a regular file")


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    assert rejected(tmp_path).endswith("it cannot be read (Is a directory)")


def test_a_file_that_cannot_be_opened_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")

    def reject(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", reject)
    assert rejected(file).endswith("it cannot be read (Permission denied)")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "config.json", Content)
    assert stamp_of(str(tmp_path / "config.json")) is None


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    before = stamp_of(str(file))
    assert before == stamp_of(str(file))
    file.write_text("{ }")
    assert stamp_of(str(file)) != before

from __future__ import annotations

import errno
import io
from typing import TYPE_CHECKING

import pytest

from agent.files import read_bounded, take

if TYPE_CHECKING:
    from pathlib import Path


class Endless(io.RawIOBase):
    """Zeros without end, as of a device; counts how many were taken."""

    taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self.taken += len(buffer)
        return len(buffer)


def test_a_file_up_to_the_limit_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 200_000)
    assert read_bounded(file, 200_000) == b"x" * 200_000


def test_a_file_above_the_limit_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(OSError, match="it is larger than 10 bytes") as caught:
        read_bounded(file, 10)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(file))


def test_what_never_ends_is_given_up_soon_after_the_limit() -> None:
    zeros = Endless()
    with pytest.raises(OSError, match="larger"):
        take(io.BufferedReader(zeros), 1 << 20, "-")
    assert zeros.taken < 2 << 20


def test_no_file_has_a_null_byte_in_its_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="null byte") as caught:
        read_bounded(tmp_path / "a\0b")
    assert caught.value.errno == errno.EINVAL

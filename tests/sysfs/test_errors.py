from __future__ import annotations

import pickle

import pytest

from sysfs.files import (
    InconsistentTree,
    MalformedFile,
    MissingFile,
    SysfsError,
    UnreadableFile,
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MissingFile("/s/online", "name the root"), ("/s/online", "no such file", "name the root")),
        (UnreadableFile("/s/x", "Permission denied"), ("/s/x", "Permission denied", "permissions")),
        (MalformedFile("/s/x", "0-z", "a list"), ("/s/x", "'0-z'", "a list", "capture it again")),
        (InconsistentTree("/s/x", "CPU 3 twice"), ("/s/x", "CPU 3 twice", "try once more")),
    ],
)
def test_an_error_names_file_fault_and_remedy_in_one_line(
    error: SysfsError, words: tuple[str, ...]
) -> None:
    assert all(word in str(error) for word in words)
    assert "\n" not in str(error)
    assert (error.path, str(error)) == (words[0], str(error))


@pytest.mark.parametrize(
    "error",
    [
        MissingFile("/s", "do"),
        UnreadableFile("/s", "why"),
        MalformedFile("/s", "x", "y"),
        InconsistentTree("/s", "x"),
        SysfsError("/s", "found", "do"),
    ],
)
def test_errors_cross_process_boundaries(error: SysfsError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    assert (type(again), str(again)) == (type(error), str(error))


def test_long_content_is_cut_and_line_breaks_are_quoted() -> None:
    text = str(MalformedFile("/s", "a\n" * 500, "a number"))
    assert "\n" not in text
    assert len(text) < 300
